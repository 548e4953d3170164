"""Residual networks of the corpus with a random last layer: P_safe beside the deterministic query on their mean.

    python scripts/measure/last_layer.py CORPUS [--seconds 10]

The images are those of the corpus's properties over CIFAR-10 whose inputs are normalised; each network is asked about
those that it classifies as their property does, over balls of 0.25/255 to 2/255 before normalisation. The weights of
the last dense layer alone get standard deviations of 5 % of their means. P_safe >= 0.95 is asked for. Where the mean
network is proved safe and P_safe is not, so many networks are drawn and attacked, each for itself: the share that
withstands is an estimate from above. Clocks count processor seconds of one thread.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import typer

if TYPE_CHECKING:
    from bnn_vnnlib.network.network import Model

NETWORKS = ("cifar10_resnet_2021/resnet_2b.onnx", "sri_resnet_a/resnet_3b2_bn_mixup_adv_4.0_bs128_lr-1.onnx")
SCALES = np.repeat([0.2471, 0.2435, 0.2616], 1024)
"""What one unit of a normalised input is, before it."""

RADII, SHARE, NETWORKS_DRAWN = (0.25, 0.5, 1.0, 1.5, 2.0), 0.05, 200


def images(corpus: Path) -> dict[str, tuple[np.ndarray, int]]:
    """The centre and the class of each property over 3,072 normalised inputs."""
    found = {}
    for path in sorted(corpus.glob("*/*.vnnlib")):
        text = path.read_text()
        least, most = (dict(re.findall(rf"\({sign} X_(\d+) (-?[\d.e-]+)\)", text)) for sign in (">=", "<="))
        rows = re.findall(r"\((<=|>=) Y_(\d+) Y_(\d+)\)", text)
        common = set.intersection(*({a, b} for _, a, b in rows)) if rows else set()
        if len(least) == len(most) == 3072 and len(common) == 1:
            x = np.array([(float(least[str(i)]) + float(most[str(i)])) / 2 for i in range(3072)])
            if x.min() < -0.5:
                found[path.stem] = x, int(common.pop())
    return found


def attacked(model: Model, low: np.ndarray, high: np.ndarray, label: int) -> float:
    """The share of drawn networks that no attack breaks."""
    from bnn_vnnlib.attack import Attack, run
    from bnn_vnnlib.network.families import sample
    from bnn_vnnlib.problem.problem import from_labels

    if model.posterior is None:
        raise ValueError("nothing is random")
    problem = from_labels(torch.tensor(low), torch.tensor(high), torch.tensor([label]), 10)
    drawn = sample(model.network, model.posterior, NETWORKS_DRAWN, torch.Generator().manual_seed(0))
    _, values = run(model.network, problem, drawn, Attack(steps=20, restarts=2), "identity")
    return float((values > 0).double().mean())


def main(corpus: Path, seconds: float = 10.0) -> None:
    """A line for each network, image and radius; then what was proved."""
    torch.set_num_threads(1)
    time.monotonic = time.process_time
    import onnx

    from bnn_vnnlib import read_model, verify_batch
    from bnn_vnnlib.model import model_from_proto
    from bnn_vnnlib.network.evaluate import evaluate
    from bnn_vnnlib.posteriors.convert import Spread, Stated, convert, weight_names

    total = {"mean network proved": 0, "P_safe >= 0.95 of these": 0, "P_safe < 0.95 of these": 0}
    asked = images(corpus)
    for name in NETWORKS:
        path = corpus / name
        last = weight_names(read_model(path).network, onnx.load(path))[-2]
        spread = Spread(SHARE, relative=True, pattern=last)
        model = model_from_proto(convert(path, Stated((spread,)), "categorical")[0])
        fixed = replace(model, posterior=None)
        for image, (x, label) in asked.items():
            if int(evaluate(model.network, torch.tensor(x[None])).argmax()) != label:
                continue
            for radius in RADII:
                low, high = ((x + sign * radius / 255 / SCALES)[None] for sign in (-1, 1))
                begun = time.process_time()
                sure = verify_batch(fixed, low, high, [label], query="deterministic", timeout=seconds)
                middle = time.process_time()
                found = verify_batch(model, low, high, [label], query="probabilistic", timeout=seconds)
                ended = time.process_time()
                told = f"[{found.lower[0]:.6g}, {found.upper[0]:.6g}] {found.verdicts[0]}"
                if sure.verdicts[0] == "unsat":
                    total["mean network proved"] += 1
                    total["P_safe >= 0.95 of these"] += found.verdicts[0] == "unsat"
                    total["P_safe < 0.95 of these"] += found.verdicts[0] == "sat"
                    if found.verdicts[0] != "unsat":
                        told += f", attacked {attacked(model, low, high, label):.3f}"
                spent = f"{middle - begun:.1f} s, {ended - middle:.1f} s"
                print(f"{Path(name).stem} | {image} | {radius:g} | {sure.verdicts[0]} | {told} | {spent}", flush=True)
    print(total)


if __name__ == "__main__":
    typer.run(main)
