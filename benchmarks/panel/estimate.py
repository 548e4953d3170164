"""Write the questions, and what drawn networks say of them: `python estimate.py --data FOLDER --out FOLDER`.

OUT/vnnlib and OUT/instances.csv are a benchmark as `bnn-vnnlib run` takes it. OUT/estimates.json has for each property

    p_safe       share of 2,000 drawn networks in which an attack found no violation (an estimate, and too large
                 where the attack missed one)
    d            least and largest value that an attack found of the decision: the expected probability of the class to
                 keep, or the expected output; averaged over the same networks
    unit         what errors of d are measured by: 1, or the targets' span
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch
from posteriors import members
from questions import DRAWS, TIMEOUT, Cell, Trained, cells, trained

from bnn_vnnlib import attack
from bnn_vnnlib.attack import Attack
from bnn_vnnlib.problem.problem import OutputCases, Problem, from_cases, from_labels

EACH = Attack(steps=20, restarts=2)
MEAN = Attack(steps=30, restarts=2)
FAR = 1e3
"""A threshold that no output reaches, so that an attack goes on to the end."""
FEW = 200
"""Networks whose mean guides the attack on the decision; its value is then averaged over all."""


def estimates(net: Trained, questions: list[Cell]) -> list[dict[str, object]]:
    """One record a question."""
    lower, upper = (torch.tensor(np.stack([getattr(q, side) for q in questions])) for side in ("lower", "upper"))
    classes, outputs = net.data.classes, net.model.network.signature.output_size
    if classes is None:
        problem = from_cases(lower, upper, [_outside(q.low, q.high) for q in questions], outputs)
        chosen = torch.zeros(len(questions), dtype=torch.int64)
    else:
        chosen = torch.tensor([q.label for q in questions])
        problem = from_labels(lower, upper, chosen, outputs)
    broken = sum(_broken(net, problem, weights) for weights in net.draws(DRAWS))
    ends = [_extreme(net, lower, upper, chosen, sign) for sign in (1.0, -1.0)]
    unit = 1.0 if classes is not None else net.data.span
    return [
        {
            "architecture": net.member.architecture, "method": net.member.method, "radius": question.radius,
            "output": int(chosen[i]), "classes": classes, "unit": unit, "p_safe": 1 - float(broken[i]) / DRAWS,
            "d": [min(float(ends[0][i]), float(ends[1][i])), max(float(ends[0][i]), float(ends[1][i]))],
        }
        for i, question in enumerate(questions)
    ]  # fmt: skip


def _outside(low: float, high: float) -> OutputCases:
    no = np.array([False])
    return [(np.array([[1.0]]), np.array([low]), no), (np.array([[-1.0]]), np.array([-high]), no)]


def _broken(net: Trained, problem: Problem, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """(N,): in how many of these networks an attack found a violation."""
    _, value = attack.run(net.model.network, problem, weights, EACH)
    return (value <= 0).sum(0)


def _extreme(net: Trained, lower: torch.Tensor, upper: torch.Tensor, chosen: torch.Tensor, sign: float) -> torch.Tensor:
    """(N,): the least (sign 1) or largest (sign -1) decision that an attack found."""
    network, outputs = net.model.network, net.model.network.signature.output_size
    transform = "identity" if net.data.classes is None else "softmax"
    rows = sign * torch.nn.functional.one_hot(chosen, outputs).double().numpy()
    cases = [[(row[None], np.array([-FAR]), np.array([False]))] for row in rows]
    guides = next(net.draws(FEW, FEW))
    x, _ = attack.run(network, from_cases(lower, upper, cases, outputs), guides, MEAN, transform, "mean")
    return net.predictive(x[0].numpy()).gather(1, chosen[:, None])[:, 0]


def main() -> None:
    """Every trained member in turn; what is there already is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(), help="folder with mnist_t10k.npz and uci_concrete.npz")
    parser.add_argument("--out", type=Path, required=True, help="the panel's folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out, kept = options.out, options.out / "estimates.json"
    found: dict[str, dict[str, object]] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    (out / "vnnlib").mkdir(exist_ok=True)
    nets = [net for member in members() if (net := trained(member, options.data, out))]
    asked = {net.member.name: cells(net) for net in nets}
    for net in nets:
        for question in asked[net.member.name]:
            text = question.text(net.model.network.signature.output_size)
            (out / "vnnlib" / f"{question.name}.vnnlib").write_text(text, encoding="utf-8")
    # The first input of every network, the second of every network, ...: a run that is ended early has seen them all.
    rounds = [[question for question in column if question] for column in itertools.zip_longest(*asked.values())]
    with (out / "instances.csv").open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        for question in itertools.chain(*rounds):
            table.writerow((f"onnx/{question.network}.onnx", f"vnnlib/{question.name}.vnnlib", TIMEOUT))
    for net in nets:
        questions, begun = asked[net.member.name], time.monotonic()
        if not all(question.name in found for question in questions):
            named = zip(questions, estimates(net, questions), strict=True)
            found |= {question.name: estimate for question, estimate in named}
            kept.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        print(f"{net.member.name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
