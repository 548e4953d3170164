"""Which properties the benchmark has: a list for the digits models and one for the diabetes model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import properties as p
from networks import CONV, DIABETES, ENSEMBLE, MLP, Architecture
from numpy.typing import NDArray
from properties import Spec
from splits import Split

Outputs = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # (N, d) -> (N, m)
RADII = {MLP.name: ("0.02", "0.06", "0.12"), CONV.name: ("0.02", "0.06", "0.1"), ENSEMBLE.name: ("0.03", "0.08")}
IMAGES = {MLP.name: 6, CONV.name: 4, ENSEMBLE.name: 4}
ROW = 4  # of the pixels that the row property shifts
SEX = 1  # column of the diabetes data that never moves


@dataclass(frozen=True)
class Instance:
    """A property for a model, with its time limit in seconds."""

    architecture: Architecture
    spec: Spec
    timeout: int = 30


def digits_instances(split: Split, outputs: Mapping[str, Outputs], seed: int) -> Iterator[Instance]:
    """Properties of test images; the same images for all models, chosen among those that every model gets right."""
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(split.test_y))
    right = {name: net(split.test_x).argmax(axis=1) == split.test_y for name, net in outputs.items()}
    known = [int(i) for i in order if all(hits[i] for hits in right.values())]
    for architecture in (MLP, CONV, ENSEMBLE):
        name = architecture.name
        for index in known[: IMAGES[name]]:
            for radius in RADII[name]:
                yield _robust(architecture, split, index, radius)
        missed = next(int(i) for i in order if not right[name][i])
        yield _robust(architecture, split, missed, RADII[name][1], note="which the model gets wrong")
    yield from _further(split, known)


def _robust(
    architecture: Architecture, split: Split, index: int, radius: str, note: str = "", options: str = "", kind: str = ""
) -> Instance:
    label, image = int(split.test_y[index]), p.exact(split.test_x[index])
    where = f"test image {index} (digit {label})" + (f", {note}," if note else "")
    text = f"Pixels within {radius} of {where} clipped to [0, 1]: no other digit may score as much."
    assertions = [*p.image_box(image, Decimal(radius)), p.other_class(label)]
    return _instance(architecture, f"{kind or 'robust'}_{index}_{radius}", text, assertions, options)


def _further(split: Split, known: list[int]) -> Iterator[Instance]:
    """One property of each other kind: thresholds, decision, linear input constraints, conjunctions, two boxes."""
    first, second, third = known[:3]
    strict = "query=probabilistic tau_safe=0.98 tau_unsafe=0.05"
    yield _robust(MLP, split, first, "0.02", options=strict, kind="thresholds")
    yield _robust(MLP, split, first, "0.02", options="query=decision", kind="decision")
    yield _robust(ENSEMBLE, split, first, "0.03", options="query=decision tau_safe=0.95", kind="decision")
    yield _robust(MLP, split, first, "0.02", options="query=deterministic", kind="deterministic")

    label, image = int(split.test_y[third]), p.exact(split.test_x[third])
    text = f"Pixels within 0.08 of test image {third} (digit {label}), total brightness within 0.1 of the image's."
    constrained = [*p.image_box(image, Decimal("0.08")), *p.sum_unchanged(image, Decimal("0.1"))]
    yield _instance(CONV, f"brightness_{third}", text, [*constrained, p.other_class(label)], timeout=60)

    text = f"Row {ROW} of test image {third} (digit {label}) shifts by up to 0.25, all its pixels alike up to 0.01."
    radii = [Decimal("0.25") if i // 8 == ROW else Decimal(0) for i in range(64)]
    assertions = [*p.box(image, radii), *p.row_together(image, ROW, Decimal("0.01")), p.other_class(label)]
    yield _instance(MLP, f"row_{third}", text, assertions, timeout=60)

    label, image = int(split.test_y[first]), p.exact(split.test_x[first])
    targets = [digit for digit in (3, 8, 5) if digit != label][:2]
    text = f"Pixels within 0.03 of test image {first} (digit {label}): neither {targets[0]} nor {targets[1]} may win."
    wins = "(or " + " ".join(p.largest(target) for target in targets) + ")"
    yield _instance(MLP, f"targeted_{first}", text, [*p.image_box(image, Decimal("0.03")), wins])

    both = [p.exact(split.test_x[index]) for index in (first, second)]
    target = next(digit for digit in (3, 8, 5) if digit not in split.test_y[[first, second]])
    text = f"Near test image {first} (within 0.03) and near {second} (within 0.05), digit {target} may not win."
    cases = [
        p.conjunction([*p.image_box(centre, Decimal(radius)), p.largest(target)[5:-1]])
        for centre, radius in zip(both, ("0.03", "0.05"), strict=True)
    ]
    yield _instance(CONV, f"two_images_{first}_{second}", text, ["(or " + " ".join(cases) + ")"])


def diabetes_instances(split: Split, outputs: Outputs, seed: int) -> Iterator[Instance]:
    """Regression: the output stays within a quarter of the test targets' range around the target."""
    chance = np.random.default_rng(seed)
    tolerance = (split.test_y.max() - split.test_y.min()) / 4
    errors = np.abs(outputs(split.test_x)[:, 0] - split.test_y)
    near, far = (chance.permutation(np.flatnonzero(part)) for part in (errors < tolerance, errors >= tolerance))
    for index in map(int, near[:3]):
        for radius in ("0.2", "0.6"):
            yield _interval(split, index, radius, tolerance)
        yield _interval(split, index, "0.3", tolerance, options="query=decision", kind="decision")
    yield _interval(split, int(far[0]), "0.05", tolerance)

    index = int(near[0])
    text = f"Around test patient {index} the output is above 0.25 bmi - 2.5 (both standardised)."
    row = "(<= (- Y_0 (* 0.25 X_2)) (- 2.5))"
    yield _instance(DIABETES, f"trend_{index}", text, [*_patient_box(split, index, "0.3"), row])


def _interval(
    split: Split, index: int, radius: str, tolerance: float, options: str = "", kind: str = "interval"
) -> Instance:
    low, high = p.exact(split.test_y[index] + np.array([-tolerance, tolerance]))
    text = f"Features (but not sex) within {radius} sd of test patient {index}: the output stays near the target."
    assertions = [*_patient_box(split, index, radius), p.outside(low, high)]
    return _instance(DIABETES, f"{kind}_{index}_{radius}", text, assertions, options)


def _patient_box(split: Split, index: int, radius: str) -> list[str]:
    features = split.test_x[index].copy()
    features[SEX] = np.round(features[SEX] * 64) / 64  # a point that float32 holds exactly, so that witnesses exist
    return p.box(p.exact(features, 6), [Decimal(0) if i == SEX else Decimal(radius) for i in range(10)])


def _instance(
    architecture: Architecture, name: str, text: str, assertions: list[str], options: str = "", timeout: int = 30
) -> Instance:
    comments = (text, f"bnn-vnnlib: {options}") if options else (text,)
    shapes = architecture.input_shape, (1, architecture.outputs)
    return Instance(architecture, Spec(f"{architecture.name}_{name}", comments, tuple(assertions), *shapes), timeout)
