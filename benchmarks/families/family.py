"""A family of models: trained, written in the competition's layout, and described in its README.

A family's `generate.py` says what is trained and which properties are asked; everything else is here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from catalogue import Instance
from folder import Folder, predict, score, spread_of
from networks import Architecture, onnx_model
from numpy.typing import NDArray
from splits import Split
from training import Gaussians, Settings, fit_variational

from bnn_vnnlib import attach
from bnn_vnnlib.network.network import GaussianDiagonal, Posterior, WeightSamples
from families.chains import Chain, draw_samples
from families.natural import Natural, fit_natural

DRAWS = 100
Networks = list[dict[str, torch.Tensor]]
Test = Callable[[Path, dict[str, "Fitted"]], Iterable[Instance]]


@dataclass(frozen=True)
class Variant:
    """One model: what is fitted, how, and on which data.

    `bits` keeps only so many binary digits of (means, variances): a posterior that is nearly the same and packs better.
    """

    architecture: Architecture
    read: Callable[[Path], Split]
    settings: Settings
    method: Literal["variational", "natural", "chain"] = "variational"
    natural: Natural = field(default_factory=Natural)
    chain: Chain = field(default_factory=Chain)
    bits: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model as it is written: its data, its posterior, and networks that stand for it."""

    variant: Variant
    split: Split
    mean: dict[str, torch.Tensor]
    posterior: Posterior
    networks: Networks
    spread: str

    def outputs(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The predictive."""
        return predict(self.variant.architecture, self.networks, x)

    def row(self) -> list[str]:
        """Its row in the README."""
        architecture, x = self.variant.architecture, self.split.test_x
        return [
            architecture.name,
            str(sum(tensor.numel() for tensor in self.mean.values())),
            self.spread,
            score(architecture, self.split, self.outputs(x)),
            score(architecture, self.split, predict(architecture, [self.mean], x)),
        ]


def shortened(array: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Round to `bits` binary digits after the leading one."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(np.ldexp(mantissa, bits + 1)), exponent - bits - 1).astype(np.float32)


def fit(variant: Variant, data: Path, seed: int) -> Fitted:
    """Train a model."""
    split = variant.read(data)
    if variant.method == "chain":
        return _from_samples(variant, split, seed)
    by = fit_variational if variant.method == "variational" else _natural(variant)
    fitted = by(variant.architecture, split, variant.settings, seed)
    if variant.bits is not None:
        fitted = _short(fitted, variant.bits)
    generator = torch.Generator().manual_seed(seed)
    posterior = GaussianDiagonal({name: sd.double().numpy() ** 2 for name, sd in fitted.sd.items()})
    networks = [fitted.draw(generator) for _ in range(DRAWS)]
    return Fitted(variant, split, fitted.mean, posterior, networks, spread_of(fitted))


def _natural(variant: Variant) -> Callable[[Architecture, Split, Settings, int], Gaussians]:
    return lambda architecture, split, settings, seed: fit_natural(architecture, split, settings, seed, variant.natural)


def _short(fitted: Gaussians, bits: tuple[int, int]) -> Gaussians:
    mean = {name: torch.from_numpy(shortened(tensor.numpy(), bits[0])) for name, tensor in fitted.mean.items()}
    variance = {name: torch.from_numpy(shortened(tensor.numpy() ** 2, bits[1])) for name, tensor in fitted.sd.items()}
    return Gaussians(mean, {name: tensor.sqrt() for name, tensor in variance.items()})


def _from_samples(variant: Variant, split: Split, seed: int) -> Fitted:
    settings, chain = variant.settings, variant.chain
    begin = fit_variational(variant.architecture, split, replace(settings, share=0.0), seed).mean
    samples = draw_samples(variant.architecture, split, settings.prior_sd, settings.noise_sd, chain, begin, seed)
    count = variant.chain.kept
    mean = {name: tensor.mean(dim=0) for name, tensor in samples.items()}
    networks = [{name: tensor[k] for name, tensor in samples.items()} for k in range(count)]
    posterior = WeightSamples({n: t.double().numpy() for n, t in samples.items()}, np.full(count, 1 / count))
    return Fitted(
        variant, split, mean, posterior, networks, f"{count} samples by NUTS on {variant.chain.points} points"
    )


def write(fitted: Fitted, folder: Folder, producer: str) -> None:
    """Write the model with its posterior."""
    architecture = fitted.variant.architecture
    proto = onnx_model(architecture, {name: tensor.double().numpy() for name, tensor in fitted.mean.items()})
    proto.producer_name = producer
    folder.write_model(architecture.name, attach(proto, fitted.posterior, likelihood=architecture.likelihood))


@dataclass(frozen=True)
class Family:
    """What a generator makes; `ask` writes the properties of fitted models."""

    root: Path
    shipped: tuple[Variant, ...]
    further: tuple[Variant, ...]
    ask: Callable[[dict[str, Fitted], int], Iterable[Instance]]
    packed: bool = False

    def main(self, description: str, arguments: list[str] | None = None) -> None:
        """The command line of a generator."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--data", type=Path, required=True, help="folder of the data; see families/sources.py")
        parser.add_argument("--out", type=Path, default=self.root, help="where to write (default: this folder)")
        parser.add_argument("--seed", type=int, default=0, help="of training and of the choice of points (default 0)")
        parser.add_argument("--steps", type=int, help="training steps instead of the family's (for trying it out)")
        choices = [variant.architecture.name for variant in (*self.shipped, *self.further)]
        parser.add_argument("--only", nargs="+", choices=choices, help="only these models, and no properties")
        options = parser.parse_args(arguments)
        torch.set_num_threads(1)  # sums in one order
        folder = Folder(options.out, ("1.0",), self.packed)
        wanted = self._wanted(options.only, options.steps)
        models = {}
        for variant in wanted:
            started = time.monotonic()
            fitted = fit(variant, options.data, options.seed)
            write(fitted, folder, f"benchmarks/{self.root.name}/generate.py")
            print(*fitted.row(), f"{time.monotonic() - started:.0f} s", sep=" | ", flush=True)
            models[variant.architecture.name] = fitted
        if options.only is None:
            instances = list(self.ask(models, options.seed))
            folder.write_properties(instances)
            print(f"{len(instances)} properties")
            if options.out == self.root and options.steps is None:
                folder.write_figures([fitted.row() for fitted in models.values()])

    def _wanted(self, names: list[str] | None, steps: int | None) -> list[Variant]:
        if names is None:
            chosen = list(self.shipped)
        else:
            chosen = [v for v in (*self.shipped, *self.further) if v.architecture.name in names]
        if steps is None:
            return chosen
        chain = Chain(points=50, warmup=steps, kept=2, thinning=1, depth=3)
        return [replace(v, settings=replace(v.settings, steps=steps), chain=chain) for v in chosen]


def dense(
    name: str,
    sizes: tuple[int, ...],
    likelihood: Literal["categorical", "gaussian"],
    activation: Literal["Relu", "Tanh"] = "Relu",
) -> Architecture:
    """A chain of dense layers."""
    from networks import Layer

    layers = tuple(Layer(f"dense{k + 1}", "dense", *sizes[k : k + 2]) for k in range(len(sizes) - 1))
    return Architecture(name, (1, sizes[0]), layers, activation, likelihood)
