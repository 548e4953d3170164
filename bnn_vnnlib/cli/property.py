"""`bnn-vnnlib property`: a requirement as a VNN-LIB file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bnn_vnnlib.cli.guard import check_positive, guard, stderr_console
from bnn_vnnlib.cli.options import Debug, with_options
from bnn_vnnlib.errors import InputError, OptionError, did_you_mean
from bnn_vnnlib.printable import say

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bnn_vnnlib.network.network import Model
    from bnn_vnnlib.requirements import Region, Requirement, Version

_CLASSES, _INPUTS, _FILES = "What is required", "For which inputs", "Files"
_PAIRS = "Two inputs, two networks"


def _option(help: str, panel: str, *names: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def _numbers(help: str, panel: str = _INPUTS) -> Any:  # noqa: A002
    text = f"{help} Numbers with commas between them, or a file."
    return _option(text, panel, metavar="NUMBERS", show_default=False)


_Kind = Annotated[
    str,
    typer.Argument(
        autocompletion=lambda: list(_NEEDS),
        help="robust: the label's output stays the largest. within: every output stays in an interval. Of expected "
        "probabilities: most_likely: the label's is the largest; confident: it is at least TAU; uncertain: none is "
        "above TAU; least_cost: deciding the label costs least. Of two inputs (--lower, --upper): monotone, fair, "
        "global; of two networks: equivalent.",
    ),
]
_Out = Annotated[Path | None, _option("The file to write.", _FILES, "--out", "-o")]
_Benchmark = Annotated[
    Path | None,
    _option(
        "In place of --out: one property for each row, with the network and instances.csv, for `run`.",
        _FILES,
        metavar="FOLDER",
    ),
]
_Network = Annotated[
    Path | None,
    _option("The ONNX model: shapes are checked, and the mean network's own label or y is the default.", _FILES),
]
_Version = Annotated[Literal["1.0", "2.0"], _option("Version of VNN-LIB.", _FILES)]
_Limit = Annotated[float, _option("Time limit of each instance in instances.csv, in seconds.", _FILES)]
_Center = Annotated[
    Path | None,
    _option(
        "The inputs that regions lie around, one a row: .npy, .npz or .parquet (x, if wanted label, y, "
        "radius, valid_lower, valid_upper, mean, std), .csv, or a picture (values 0 to 1).",
        _INPUTS,
    ),
]
_RowOf = Annotated[int | None, _option("Only this row of it.", _INPUTS, min=0)]
_Radius = Annotated[str | None, _numbers("How far each input may differ, in the units of the data; one, or n.")]
_Lower = Annotated[str | None, _numbers("In place of --center and --radius: the smallest inputs.")]
_Upper = Annotated[str | None, _numbers("The largest inputs.")]
_Clip = Annotated[
    tuple[float, float] | None, _option("Range of values that an input may have.", _INPUTS, metavar="LOW HIGH")
]
_Mean = Annotated[str | None, _numbers("The network takes (x - MEAN) / STD.")]
_Std = Annotated[str | None, _numbers("See --mean.")]
_Label = Annotated[
    int | None, _option("The class, from 0.", _CLASSES, min=0, show_default="in the file, else the network's own")
]
_Outputs = Annotated[
    int | None, _option("How many outputs the network has.", _CLASSES, min=1, show_default="as --network says")
]
_Least = Annotated[str | None, _numbers("within: the least value of each output; one, or m; -inf.", _CLASSES)]
_Most = Annotated[str | None, _numbers("within: the largest value of each output; inf.", _CLASSES)]
_Delta = Annotated[
    str | None,
    _numbers("within: how far each output may differ from y (in the file, else the network's own).", _CLASSES),
]
_Tau = Annotated[str | None, _option("confident, uncertain: a probability.", _CLASSES, metavar="NUMBER")]
_Grows = Annotated[int | None, _option("monotone: the input that grows.", _PAIRS, "--input", min=0)]
_Output = Annotated[int | None, _option("Only this output.", _PAIRS, min=0, show_default="0 of monotone, else all")]
_Decreasing = Annotated[bool, _option("monotone: the output never rises.", _PAIRS, "--decreasing")]
_Sensitive = Annotated[list[int] | None, _option("fair: an input that may differ in any way.", _PAIRS, min=0)]
_Eps = Annotated[str | None, _numbers("fair, global: how far all other inputs may differ.", _PAIRS)]
_Second = Annotated[Path | None, _option("equivalent: the other network.", _PAIRS, metavar="MODEL")]
_Costs = Annotated[str | None, _numbers("least_cost: K_i, the cost of deciding class i where it is wrong.", _CLASSES)]


@with_options("query", "tau_safe", "tau_unsafe", "rule")
def property(
    kind: _Kind, out: _Out = None, benchmark: _Benchmark = None, network: _Network = None, version: _Version = "1.0",
    limit: _Limit = 60.0, center: _Center = None, row: _RowOf = None, radius: _Radius = None, lower: _Lower = None,
    upper: _Upper = None, clip: _Clip = None, mean: _Mean = None, std: _Std = None, label: _Label = None,
    outputs: _Outputs = None, least: _Least = None, most: _Most = None, delta: _Delta = None, tau: _Tau = None,
    input_: _Grows = None, output: _Output = None, decreasing: _Decreasing = False, sensitive: _Sensitive = None,
    eps: _Eps = None, second: _Second = None, costs: _Costs = None, debug: Debug = False, **options: Any,
) -> None:  # fmt: skip
    """Write a requirement on the outputs as VNN-LIB, negated as the format wants it, with its meaning in words."""
    console = stderr_console()
    where = {"center": center, "row": row, "radius": radius, "lower": lower, "upper": upper, "clip": clip,
             "mean": mean, "std": std}  # fmt: skip
    what = {"label": label, "least": least, "most": most, "delta": delta, "tau": tau, "costs": costs}
    pair = {"input": input_, "output": output, "decreasing": decreasing or None, "sensitive": sensitive or None,
            "eps": eps, "second": second}  # fmt: skip
    comment = {name: str(value) for name, value in options.items() if value is not None}
    with guard(console, debug):
        from bnn_vnnlib.question.options import Options

        known = (*_NEEDS, *_RELATIONS)
        if kind not in known:
            raise OptionError(f"unknown kind {kind!r}; known are {', '.join(known)}{did_you_mean(kind, known)}")
        if kind in _RELATIONS:
            _refuse_idle(kind, {**where, "benchmark": benchmark, **what, **pair}, ("lower", "upper", *_RELATIONS[kind]))
            Options(**options).question()
            _write_relation(console, kind, out, network, lower, upper, {**pair, "delta": delta}, comment)
            return
        _refuse_idle(kind, pair, _NEEDS[kind])
        if (out is None) == (benchmark is None):
            raise OptionError("say where to write: --out FILE for one property, or --benchmark FOLDER for many")
        if benchmark is not None and network is None:
            raise OptionError("a benchmark names its network: add --network MODEL")
        check_positive("--limit", limit)
        Options(**options).question()  # refuses thresholds that are none before there is a file that has them
        model = None if network is None else _model(network)
        found = _required(kind, where, what, outputs, model, comment, one=benchmark is None)
        if benchmark is not None and network is not None:
            texts = {f"{kind}_{i}.vnnlib": _text(region, asked, version, model, comment) for i, region, asked in found}
            _write_benchmark(benchmark, network, texts, limit)
            say(console, f"wrote {len(texts)} properties and instances.csv into {benchmark}",
                f"next: bnn-vnnlib run {benchmark} --out {benchmark.name}-results")  # fmt: skip
        elif out is not None:
            from bnn_vnnlib.files.vnncomp import write_text
            from bnn_vnnlib.model.files import keep_inputs

            keep_inputs(out, network, center)
            _, region, asked = found[0]
            write_text(out, _text(region, asked, version, model, comment))
            say(console, f"required: {asked.says}, for every input {region.says}", f"wrote {out}",
                f"next: bnn-vnnlib verify {out} --network {network or 'MODEL'}")  # fmt: skip


def _required(
    kind: str, where: dict[str, Any], what: dict[str, Any], outputs: int | None, model: Model | None,
    comment: dict[str, str], *, one: bool,
) -> list[tuple[int, Region, Requirement]]:  # fmt: skip
    """Of each input its row, its region and what is required there; OptionError if only `one` is wanted and there are
    more.
    """
    if kind in _OF_DECISION and "query" not in comment and model is not None and model.posterior is None:
        raise OptionError(
            f"{kind} is about expected probabilities over a posterior, and this network has none: ask robust or "
            "within, or add --query deterministic to ask about the network's own outputs", path=model.path
        )  # fmt: skip
    inputs, size = _Inputs.read(**where, model=model), _outputs(outputs, model)
    if one and len(inputs) > 1:
        message = f"holds {len(inputs)} inputs: choose one with --row, or write a --benchmark"
        raise OptionError(message, path=where["center"])
    own = None if model is None else inputs.predicted(model)
    asked = [_requirement(kind, what, inputs, index, size, own).asked(comment) for index in range(len(inputs))]
    return [(inputs.rows[index], inputs.region(index), asked[index]) for index in range(len(inputs))]


_RELATIONS: dict[str, tuple[str, ...]] = {
    "monotone": ("input", "output", "decreasing"), "fair": ("sensitive", "eps", "delta", "output"),
    "global": ("eps", "delta", "output"), "equivalent": ("second", "delta", "output"),
}  # fmt: skip


def _refuse_idle(kind: str, given: dict[str, Any], taken: tuple[str, ...]) -> None:
    idle = [name for name, value in given.items() if value is not None and name not in taken]
    if idle:
        raise OptionError(f"--{idle[0]} says nothing to {kind}, which takes --{', --'.join(taken)}")


def _write_relation(
    console: Any, kind: str, out: Path | None, network: Path | None, lower: str | None, upper: str | None,
    given: dict[str, Any], comment: dict[str, str],
) -> None:  # fmt: skip
    """Write a property of two inputs or two networks."""
    from bnn_vnnlib import relations
    from bnn_vnnlib.files.examples import read_vector
    from bnn_vnnlib.files.vnncomp import write_text
    from bnn_vnnlib.model.files import keep_inputs

    optional = ("output", "decreasing")
    wanted = [name for name in _RELATIONS[kind] if name not in optional and given[name] is None]
    missing = [
        name for name, value in (("out", out), ("network", network), ("lower", lower), ("upper", upper)) if not value
    ]
    if missing + wanted or out is None or network is None or lower is None or upper is None:
        raise OptionError(f"{kind} needs --{(missing + wanted)[0]}")
    model, box = _model(network), (read_vector(lower, "--lower"), read_vector(upper, "--upper"))
    which = None if given["output"] is None else [given["output"]]
    eps = None if given["eps"] is None else read_vector(given["eps"], "--eps")
    match kind:
        case "monotone":
            found = relations.monotone(
                model, *box, given["input"], given["output"] or 0, decreasing=bool(given["decreasing"])
            )
        case "fair":
            found = relations.fair(model, *box, given["sensitive"], eps, given["delta"], which)  # type: ignore[arg-type]
        case "global":
            found = relations.global_robustness(model, *box, eps, given["delta"], which)  # type: ignore[arg-type]
        case _:
            found = relations.equivalent(model, _model(given["second"]), *box, given["delta"], which)
    keep_inputs(out, network, given["second"])
    settings = f"; bnn-vnnlib: {' '.join(f'{name}={value}' for name, value in comment.items())}\n" if comment else ""
    write_text(out, settings + found.text)
    files = f"--network f={network}" + (f" --network g={given['second']}" if given["second"] else "")
    say(console, f"required: {found.says}", f"wrote {out}", f"next: bnn-vnnlib verify {out} {files}")


@dataclass
class _Inputs:
    """The arrays of the file or of the options, N inputs."""

    arrays: dict[str, Any]
    rows: list[int]
    path: Path | None
    radius: Any
    clip: tuple[Any, Any] | None
    mean: Any
    std: Any

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def read(
        cls, center: Path | None, row: int | None, radius: str | None, lower: str | None, upper: str | None,
        clip: tuple[float, float] | None, mean: str | None, std: str | None, model: Model | None,
    ) -> _Inputs:  # fmt: skip
        """The inputs that the options name: a box, or rows of a file with a radius; OptionError for contradictions."""
        from bnn_vnnlib.files.examples import read_vector

        def vector(name: str, text: str | None) -> Any:
            return arrays.get(name) if text is None else read_vector(text, f"--{name}")

        if center is None:
            if lower is None or upper is None:
                raise OptionError("say for which inputs: --center FILE --radius R, or --lower and --upper")
            if radius is not None or clip is not None or row is not None:
                raise OptionError("--radius, --row and --clip belong to --center; --lower and --upper say it all")
            arrays = {"lower": read_vector(lower, "--lower"), "upper": read_vector(upper, "--upper")}
            return cls(arrays, [0], None, None, None, vector("mean", mean), vector("std", std))
        if lower is not None or upper is not None:
            raise OptionError("give either --center and --radius, or --lower and --upper")
        arrays = _read_rows(center, row, model)
        size = vector("radius", radius)
        if size is None:
            raise OptionError("say how far the inputs may differ: --radius", path=center)
        ends = arrays.get("valid_lower"), arrays.get("valid_upper")
        if clip is None and (ends[0] is None) != (ends[1] is None):
            raise InputError("holds one end of the valid range only", path=center)
        range_: tuple[Any, Any] | None = clip if clip is not None else None if ends[0] is None else ends
        rows = list(range(len(arrays["x"]))) if row is None else [row]
        return cls(arrays, rows, center, size, range_, vector("mean", mean), vector("std", std))

    def region(self, index: int) -> Region:
        from bnn_vnnlib.requirements import around, between

        units = {"mean": 0 if self.mean is None else self.mean, "std": 1 if self.std is None else self.std}
        if self.path is None:
            return between(self.arrays["lower"], self.arrays["upper"], **units)
        name = self.path.name if len(self.arrays["x"]) == 1 else f"row {self.rows[index]} of {self.path.name}"
        return around(self.arrays["x"][self.rows[index]], self.radius, self.clip, **units, called=name)

    def own(self, name: str, index: int) -> Any:
        """The label or y of an input, by the name of the file's array; None where the file has no such array."""
        return self.arrays[name][self.rows[index]] if name in self.arrays else None

    def predicted(self, model: Model) -> NDArray:
        """(N, m): what the mean network says of the centres, or of the middle of the box."""
        import numpy as np

        from bnn_vnnlib.sweeps.inputs import mean_output

        if self.path is None:
            ends = [np.asarray(self.arrays[name], float) for name in ("lower", "upper")]
            x = np.atleast_2d(ends[0] / 2 + ends[1] / 2)
        else:
            x = np.asarray(self.arrays["x"][self.rows], float)
        if self.mean is not None or self.std is not None:
            mean, std = (np.asarray(v if v is not None else d, float) for v, d in ((self.mean, 0), (self.std, 1)))
            x = (x - mean) / std
        if x.shape[1] != model.network.signature.input_size:
            want = model.network.signature.input_size
            raise InputError(f"the network takes {want} numbers, found {x.shape[1]}", path=self.path)
        return mean_output(model, x)


def _read_rows(center: Path, row: int | None, model: Model | None) -> dict[str, Any]:
    """The arrays of a file of inputs, which has that row."""
    from bnn_vnnlib.files.examples import read_examples

    inputs = () if model is None else model.network.signature.inputs
    arrays = dict(read_examples(center, inputs[0].shape if len(inputs) == 1 else None))
    count = len(arrays["x"])
    if row is not None and row >= count:
        raise InputError(f"holds {count} inputs, rows 0 to {count - 1}; there is no row {row}", path=center)
    for name in ("label", "y"):
        if name in arrays and len(arrays[name]) != count:
            raise InputError(f"array {name!r} must have {count} rows, as the inputs do", path=center)
    return arrays


def _model(path: Path) -> Model:
    from bnn_vnnlib.model import read_model

    return read_model(path)


def _outputs(outputs: int | None, model: Model | None) -> int:
    if model is None:
        if outputs is None:
            raise OptionError("say how many outputs the network has: --outputs M, or --network MODEL")
        return outputs
    size = model.network.signature.output_size
    if outputs not in (None, size):
        raise OptionError(f"the network has {size} outputs, --outputs says {outputs}", path=model.path)
    return size


_OF_DECISION = ("most_likely", "least_cost", "confident", "uncertain")
_NEEDS: dict[str, tuple[str, ...]] = {
    "robust": ("label",), "most_likely": ("label",), "confident": ("label", "tau"), "uncertain": ("tau",),
    "least_cost": ("label", "costs"), "within": ("least", "most", "delta"),
}  # fmt: skip


def _requirement(
    kind: str, given: dict[str, Any], inputs: _Inputs, index: int, size: int, predicted: NDArray | None
) -> Requirement:
    """What is asked of one input; options that say nothing to this kind are refused.

    Parameters
    ----------
    predicted : (N, m) the mean network's outputs, where there is one
    """
    from bnn_vnnlib import requirements
    from bnn_vnnlib.files.examples import read_vector

    idle = [name for name, value in given.items() if value is not None and name not in _NEEDS[kind]]
    if idle:
        raise OptionError(f"--{idle[0]} says nothing to {kind}, which takes --{', --'.join(_NEEDS[kind])}")
    if kind == "within":
        return requirements.within(*_interval(given, inputs, index, size, predicted))
    named: dict[str, Any] = {}
    for name in _NEEDS[kind]:
        value = given[name]
        if name == "label" and value is None:
            value = inputs.own("label", index)
            value = int(predicted[index].argmax()) if value is None and predicted is not None else value
        if value is None:
            also = ", or --network for the network's own" if name == "label" else ""
            raise OptionError(f"{kind} needs --{name}{also}")
        named[name] = read_vector(value, "--costs") if name == "costs" else value
    if kind == "least_cost":
        if len(named["costs"]) != size:
            raise OptionError(f"--costs must be {size} numbers, one for each output, found {len(named['costs'])}")
        return requirements.least_cost(list(named["costs"]), int(named["label"]))
    return requirements.MAKERS[kind](size, **{name: int(v) if name == "label" else v for name, v in named.items()})


def _interval(
    given: dict[str, Any], inputs: _Inputs, index: int, size: int, predicted: NDArray | None
) -> tuple[list[Any], list[Any]]:
    """Lower and upper ends of `within` for the outputs."""
    from bnn_vnnlib.files.examples import read_vector
    from bnn_vnnlib.requirements import numbers

    def ends(name: str) -> list[Any]:
        text = given[name]
        found = ["inf"] if text is None else list(read_vector(text, f"--{name}"))
        if len(found) not in (1, size):
            raise OptionError(f"--{name} must be one number, or {size}, found {len(found)}")
        return found * (size if len(found) == 1 else 1)

    if given["delta"] is None:
        if given["least"] is None and given["most"] is None:
            raise OptionError("within needs --least and --most (one of them is enough), or --delta")
        return ends("least"), ends("most")
    if given["least"] is not None or given["most"] is not None:
        raise OptionError("give either --delta, or --least and --most")
    middle = inputs.own("y", index)
    if middle is None:
        if predicted is None:
            raise OptionError("--delta is around y, which the file has not: add --network for the network's own")
        middle = predicted[index]
    y = numbers(middle, None, "y")
    if len(y) != size:
        raise OptionError(f"y must be {size} numbers for each input, found {len(y)}", path=inputs.path)
    delta = numbers(read_vector(given["delta"], "--delta"), size, "--delta")
    if min(delta) <= 0:
        raise OptionError(f"--delta must be positive, found {min(delta)}")
    return [a - d for a, d in zip(y, delta, strict=True)], [a + d for a, d in zip(y, delta, strict=True)]


def _text(region: Region, what: Requirement, version: Version, model: Model | None, comment: dict[str, str]) -> str:
    from bnn_vnnlib.requirements import property_text

    return property_text(region, what, version, None if model is None else model.network.signature, comment)


def _write_benchmark(folder: Path, network: Path, texts: dict[str, str], limit: float) -> None:
    """onnx/, vnnlib/ and instances.csv, the table last: whoever finds it finds the rest."""
    from bnn_vnnlib.files.vnncomp import make_writable_folder, write_text
    from bnn_vnnlib.model.files import read_proto, write_model
    from bnn_vnnlib.readers.text import table_text

    if (folder / "instances.csv").exists():
        raise OptionError("there is a benchmark in this folder: name a new one", path=folder)
    for part in (folder, folder / "onnx", folder / "vnnlib"):
        make_writable_folder(part)
    proto, found = read_proto(network)
    write_model(proto, folder / "onnx" / found.name)
    for name, text in texts.items():
        write_text(folder / "vnnlib" / name, text)
    rows = [(f"onnx/{found.name}", f"vnnlib/{name}", f"{limit:g}") for name in texts]
    write_text(folder / "instances.csv", table_text(rows))
