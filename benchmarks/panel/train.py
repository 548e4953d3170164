"""Train what is missing of the panel: `python train.py --data FOLDER --out FOLDER`.

Writes OUT/onnx/NAME.onnx, the posterior as the verifier reads it, and OUT/onnx/NAME.json: what is known of it. A
network with dropout is written as its library exports it; NAME_mean.onnx beside it has the dropout layers left out,
and its record says which weights they drop columns of, so that networks can be drawn.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from posteriors import DROPOUT, Dropout, Member, members
from torch import nn


def train(member: Member, data: Path, out: Path) -> dict[str, Any]:
    """Train one member, write it, and return its record."""
    started, path = time.monotonic(), out / f"{member.name}.onnx"
    read = member.read(data)
    found = member.train(member.make, read)
    record: dict[str, Any] = {"architecture": member.architecture, "method": member.method, "notes": []}
    if isinstance(found, Dropout):
        found.write(path)
        net = found.net.eval()
        layers = list(net)
        torch.onnx.export(
            net, (torch.from_numpy(read.test_x[:1]),), str(out / f"{member.name}_mean.onnx"), dynamo=False
        )
        dropped = [f"{k}.weight" for k, layer in enumerate(layers) if k and isinstance(layers[k - 1], nn.Dropout)]
        record["dropout"] = dict.fromkeys(dropped, DROPOUT)
    else:
        found.write(path)
        record["notes"] = list(found.notes)
        record["agreement"] = None if found.agreement is None else str(found.agreement)
    return {**record, "trainer": member.train.__name__, "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Train all members that are not there; those whose data are not there are left out, and said so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(), help="folder with mnist_t10k.npz and uci_concrete.npz")
    parser.add_argument("--out", type=Path, required=True, help="the panel's folder")
    parser.add_argument("--only", nargs="+", default=[], help="members whose name contains one of these")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    warnings.simplefilter("ignore")  # the libraries' own
    folder = options.out / "onnx"
    folder.mkdir(parents=True, exist_ok=True)
    for member in members():
        record = folder / f"{member.name}.json"
        if record.exists() or (options.only and not any(part in member.name for part in options.only)):
            continue
        try:
            found = train(member, options.data, folder)
        except FileNotFoundError as error:
            print(f"{member.name}: left out, {error}", flush=True)
            continue
        record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{member.name}: {found['seconds']} s, {found.get('agreement') or ''}", flush=True)


if __name__ == "__main__":
    main()
