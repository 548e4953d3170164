"""Are limits of time kept, and what do they cost in memory? Calls of all queries on networks of all sizes.

    python scripts/measure/limits.py CORPUS [--seconds 1 --seconds 5] [--only yolo] [--stacks]

CORPUS is a folder with the networks below. Each is asked the deterministic query as it is, and both others with
standard deviations of 1 % of each weight. A call is a process of its own; its limit counts from where the files are
read on, in processor seconds of one thread, so that other work on the machine changes nothing. `over` is what the call
took beyond its limit; imports are not counted.
"""

from __future__ import annotations

import faulthandler
import math
import resource
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

PAIRS = {
    "nano": ("test/test_nano.onnx", "test/test_nano.vnnlib"),
    "acasxu": ("acasxu/ACASXU_run2a_1_1_batch_2000.onnx", "acasxu/prop_1.vnnlib"),
    "mnist_fc": ("mnist_fc/mnist-net_256x2.onnx", "mnist_fc/prop_0_0.03.vnnlib"),
    "sigmoid": ("eran_2021/ffnnSIGMOID__Point_6x200.onnx", "eran_2021/mnist_spec_idx_1150_eps_0.01200.vnnlib"),
    "oval": ("oval21/cifar_base_kw.onnx", "oval21/cifar_base_kw-img2578-eps0.021176470588235297.vnnlib"),
    "biasfield": ("cifar_biasfield/cifar_bias_field_0.onnx", "cifar_biasfield/prop_0.vnnlib"),
    "cgan": (
        "cgan/cGAN_imgSz32_nCh_3_nonlinear_activations.onnx",
        "cgan/cGAN_imgSz32_nCh_3_nonlinear_activations_prop_0_input_eps_0.010_output_eps_0.015.vnnlib",
    ),
    "vit": ("vit/pgd_2_3_16.onnx", "vit/pgd_2_3_16_1005.vnnlib"),
    "resnet": (
        "sri_resnet_a/resnet_3b2_bn_mixup_adv_4.0_bs128_lr-1.onnx",
        "sri_resnet_a/cifar10_spec_idx_1551_eps_0.00198.vnnlib",
    ),
    "signs": (
        "traffic_signs/3_30_30_QConv_16_3_QConv_32_2_Dense_43_ep_30.onnx",
        "traffic_signs/model_30_idx_11985_eps_1.00000.vnnlib",
    ),
    "dist_shift": ("dist_shift/mnist_concat.onnx", "dist_shift/index1028_delta0.13.vnnlib"),
    "collins": ("collins_rul_cnn/NN_rul_full_window_20.onnx", "collins_rul_cnn/if_then_5levels_w20.vnnlib"),
    "cctsdb": ("cctsdb_yolo/patch-1.onnx", "cctsdb_yolo/spec_onnx_patch-1_idx_00559_0.vnnlib.gz"),
    "yolo": ("yolo/TinyYOLO.onnx", "yolo/TinyYOLO_prop_000011_eps_1_255.vnnlib.gz"),
}
QUERIES = ("deterministic", "probabilistic", "decision")
DEVIATION = 0.01
"""Of each weight, as a share of it."""


def call(folder: Path, name: str, query: str, seconds: float, stacks: bool) -> tuple[str, str, float, float]:
    """Verdict, bounds, seconds over the limit, and GiB at most."""
    time.monotonic = time.process_time
    import torch

    from bnn_vnnlib import InputError, read_model, read_property, verify
    from bnn_vnnlib.model import model_from_proto
    from bnn_vnnlib.posteriors.convert import Spread, Stated, convert

    torch.set_num_threads(1)
    network, asked = (folder / part for part in PAIRS[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        if query == "deterministic":
            model = read_model(network)
        else:
            proto, _ = convert(network, Stated((Spread(DEVIATION, relative=True),)), "gaussian")
            model = model_from_proto(proto)
        begun = time.process_time()
        if stacks:
            faulthandler.dump_traceback_later(2 * seconds + 2, repeat=True)
        property = read_property(asked, model.network.signature)
        found = verify(model, property, query=query, timeout=seconds, started=begun)
    except InputError as refused:
        return "refused", str(refused)[:60], 0.0, 0.0
    over = time.process_time() - begun - seconds
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    bounds = ""
    if found.p_safe is not None:
        bounds = f"[{found.p_safe.lower:.3g}, {found.p_safe.upper:.3g}]"
    if found.decision is not None:
        finite = sum(math.isfinite(value) for value in (*found.decision.row_lower, *found.decision.row_upper))
        bounds = f"{finite} of {2 * len(found.decision.row_lower)} finite"
    return str(found.verdict), bounds, over, peak


def _call(question: tuple) -> tuple[str, str, float, float]:
    return call(*question)


def main(
    corpus: Path,
    seconds: Annotated[list[float] | None, typer.Option()] = None,
    only: Annotated[list[str] | None, typer.Option(help="Names of networks.")] = None,
    query: Annotated[list[str] | None, typer.Option()] = None,
    stacks: Annotated[bool, typer.Option(help="Print where a call is that takes twice its limit.")] = False,
) -> None:
    """A line for each call, then the worst."""
    worst: dict[float, float] = {}
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for limit in seconds or [1.0, 5.0]:
            for name in only or PAIRS:
                for asked in query or QUERIES:
                    verdict, bounds, over, peak = pool.apply(_call, ((corpus, name, asked, limit, stacks),))
                    worst[limit] = max(worst.get(limit, -math.inf), over)
                    print(f"{limit:g} s | {name} | {asked} | {verdict} | {bounds} | {over:+.1f} s | {peak:.1f} GiB",
                          flush=True)  # fmt: skip
    for limit, most in worst.items():
        print(f"{limit:g} s: at most {most:+.1f} s over")


if __name__ == "__main__":
    typer.run(main)
