"""Real files: every case and the whole corpus beside the checkout. Skipped where they are absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnn_vnnlib import Property
from bnn_vnnlib.errors import InputError, PropertyError, UnsupportedError, VnnlibSyntaxError
from bnn_vnnlib.question.property import HalfSpaces
from bnn_vnnlib.signature import Signature, Variable
from bnn_vnnlib.vnnlib import looks_like_vnnlib, read_property

IDENTITY = Signature((Variable("x", "float32", (1, 2)),), (Variable("y", "float32", (1, 2)),))
# Refused here where the table allows a choice.
CHOICE = {"v18": False, "v19": True, "v33": True, "v34": False, "v39": True, "v40": True, "v43": True,
          "w04": False, "w05": True, "w09": True, "w19": True}  # fmt: skip


def test_cases(shared: Path) -> None:
    """Which cases parse and which are refused, as the table says."""
    seen = 0
    for line in (shared / "cases" / "expected.tsv").read_text().splitlines():
        if line.startswith(("#", "w07")):  # about two networks: tests/test_pairs.py
            continue
        name, _, outcome = line.split("\t")
        path = shared / "cases" / name
        outcomes = set(outcome.split("|"))
        refused = outcomes == {"refuse"} if len(outcomes) == 1 or "refuse" not in outcomes else CHOICE[name[:3]]
        if refused:
            with pytest.raises(InputError) as caught:
                read_property(path, IDENTITY)
            assert caught.value.path == path
        else:
            assert read_property(path, IDENTITY).boxes.lower.shape[1] == 2, name
        seen += 1
    assert seen > 40


def test_scalar_case(shared: Path) -> None:
    prop = read_property(shared / "cases" / "w13_scalar.vnnlib")
    assert (prop.signature.inputs[0].shape, prop.boxes.upper.tolist()) == ((), [[1.0]])


def test_corpus_parses_or_is_refused_by_name(shared: Path) -> None:
    paths = sorted((shared / "corpus").rglob("*.vnnlib*"))
    refused = {}
    for path in paths:
        try:
            prop = read_property(path)
            assert np.isfinite(prop.boxes.lower).all()
            assert prop.num_cases > 0
        except (VnnlibSyntaxError, PropertyError, UnsupportedError) as error:
            refused[path.name] = error
        assert looks_like_vnnlib(path)
    assert len(paths) == 195
    assert len(refused) < 25, refused
    folders = {path.parent.name for path in paths if path.name in refused}
    # 1.0 files that real tools read: only the one that is known to use an undeclared output is refused.
    assert folders <= {"ACC", "drones_1d_hovering", "nnenum_bug", "vnnlib2_cora_tests", "vnnlib2_standard_tests"}


def test_models_are_no_properties(shared: Path) -> None:
    models = sorted((shared / "corpus").rglob("*.onnx"))[:10]
    assert models
    assert not any(map(looks_like_vnnlib, models))


def canonical(prop: Property) -> frozenset:
    """The property without order: a set of (box, set of constraints, set of rows)."""

    def rows(half_spaces: HalfSpaces, owner: int) -> frozenset:
        which = np.flatnonzero(half_spaces.owner == owner)
        inputs = np.zeros((len(half_spaces), 0)) if half_spaces.inputs is None else half_spaces.inputs
        parts = (half_spaces.outputs, inputs, half_spaces.bound[:, None], half_spaces.strict[:, None])
        table = np.concatenate(parts, axis=1)[which] + 0.0
        return frozenset(map(bytes, table))

    boxes = [b"".join(map(bytes, (prop.boxes.lower[b], prop.boxes.upper[b]))) for b in range(len(prop.boxes))]
    return frozenset(
        (boxes[box], rows(prop.constraints, int(box)), rows(prop.rows, case)) for case, box in enumerate(prop.case_box)
    )


def test_pairs_of_versions_agree(shared: Path) -> None:
    pairs = 0
    for first in sorted((shared / "corpus" / "fc_v1v2").rglob("v1_*.vnnlib")):
        second = first.with_name("v2_" + first.name[3:].replace(".vnnlib", ".v2.vnnlib"))
        broken = first.parent.name == "ACC" or "eps_001_" in first.name or first.name == "v1_lindex_1.vnnlib"
        if broken:
            continue
        assert canonical(read_property(first)) == canonical(read_property(second)), first.name
        pairs += 1
    assert pairs >= 20


def test_ten_thousand_disjuncts(shared: Path) -> None:
    prop = read_property(shared / "corpus" / "fc_v1v2" / "nn4sys_2023" / "v1_lindex_10000.vnnlib")
    assert (len(prop.boxes), prop.num_cases, len(prop.rows)) == (10_000, 20_000, 20_000)
    assert prop.case_box[:4].tolist() == [0, 0, 1, 1]
