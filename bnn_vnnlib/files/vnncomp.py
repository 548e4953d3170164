"""The competition's files of results: writing them exactly, reading them leniently.

1. Results files. VNN-LIB 1.0: the verdict, then `((X_0 v)`, `(X_1 v)`, ..., `(Y_0 v))`, one pair a line.
VNN-LIB 2.x: the verdict, then for every declared variable (inputs, hidden nodes, outputs) a line `name type [dims]` and
one value a line.
2. Witnesses as serialised tensors, a file a variable: what `--serialise-assignments` of VNN-LIB 2.x asks for.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib.arrays import Floats
from bnn_vnnlib.errors import InputError, SoundnessError
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.readers import kinds, located, read_text
from bnn_vnnlib.result import Result, Verdict, Witness
from bnn_vnnlib.signature import Signature, Variable
from bnn_vnnlib.system.durable import replacing, scratch_of

# 1. Results files

_SPELLINGS = {**{word.value: word for word in Verdict}, "timed-out": Verdict.TIMEOUT}
_PAIR = re.compile(r"\(\s*([XY])_(\d+)\s+([^\s()]+)\s*\)")
_MAX_BYTES, _MAX_DIMS, _MAX_VALUES = 2**28, 32, 2**31  # bytes of a results file; of one of its variables
_HEADLESS = re.compile(r"\s*(\(\s*\(\s*[XY]_\d|[A-Za-z]\w*\s+\w+\s*\[[\d\s,]*\])")
_HEADER = re.compile(r"([A-Za-z]\w*)\s+(\w+)\s*\[([\d\s,]*)\]")


@dataclass(frozen=True, eq=False)
class ResultsFile:
    """What a results file says.

    Attributes
    ----------
    verdict : its first line ("timed-out" counts as timeout)
    values : the witness by variable, shaped as its header says; a 1.0 file has X (n,) and, unless omitted, Y (m,).
        Empty without a witness.
    """

    verdict: Verdict
    values: Mapping[str, Floats] = field(default_factory=dict)


def results_text(result: Result, prop: Property) -> str:
    """The results file of a finished run: the verdict, and the witness if it is sat.

    Raises
    ------
    SoundnessError : a sat without a witness, or a witness that is not finite
    """
    return "\n".join([_certain(result).verdict.value, *_witness_lines(_certain(result), prop)]) + "\n"


def standard_output(result: Result, prop: Property) -> str:
    """What stands on standard output: `results_text`, except that VNN-LIB 2.x spells a timeout `timed-out`."""
    result = _certain(result)
    return "\n".join([spoken(result.verdict, prop), *_witness_lines(result, prop)]) + "\n"


def _certain(result: Result) -> Result:
    """The result as the format can say it: a verdict with a confidence is none of its words, so it becomes `unknown`
    and stands in the record alone.
    """
    decided = result.verdict in (Verdict.SAT, Verdict.UNSAT)
    return replace(result, verdict=Verdict.UNKNOWN) if decided and result.statistics is not None else result


def spoken(verdict: Verdict, prop: Property | None) -> str:
    """The word for a verdict on standard output (1.0's if the property is not known yet)."""
    modern = prop is not None and prop.version[0] >= 2
    return "timed-out" if verdict is Verdict.TIMEOUT and modern else verdict.value


def write_text(path: Path, text: str) -> None:
    """Write a file in one step, so that nobody ever reads half of it, and onto the disk.

    Raises
    ------
    InputError : the file cannot be written
    """
    target = path.resolve()
    if target.exists() and not target.is_file():  # a device or a pipe must not be replaced
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", path=path) from error
        return
    try:
        with replacing(target) as stream:
            stream.write(text.encode())
    except InputError as error:
        raise InputError(error.message, path=path) from error


def check_writable(path: Path) -> None:
    """Make sure, before any work, that `write_text` can write there: by trying it, next to the file.

    Raises
    ------
    InputError : no such folder, a folder in place of the file, no permission, no space, a name that is too long
    """
    target = path.resolve()
    scratch = scratch_of(target)
    try:
        if target.is_dir():
            raise InputError("cannot be written: this is a folder, expected the name of a file", path=path)
        if not target.parent.is_dir():
            raise InputError("cannot be written: there is no such folder", path=path)
        if target.exists() and not os.access(target, os.W_OK):
            raise InputError("cannot be written: no permission", path=path)
        if target.is_file() or not target.exists():
            scratch.write_bytes(b"\n")
            scratch.unlink()
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", path=path) from error


def read_result(path: str | Path) -> ResultsFile:
    """Read a results file in either format.

    More is accepted than is ever written: a gzip file, a witness without the verdict in front of it (as competitions
    archive them) or on its line, blanks inside `[1, 2]`, a 1.0 witness without its Y, `timed-out`.

    Raises
    ------
    InputError : an unknown verdict, a malformed or incomplete witness, a value that is not finite
    """
    path = located(Path(path))
    kinds.expect(path, kinds.RESULTS)
    text = read_text(path, _MAX_BYTES, "a results file")
    if _HEADLESS.match(text):
        text = f"{Verdict.SAT}\n{text}"
    head = re.match(r"\s*([^\s(]*)", text)
    word, rest = (head[1], text[head.end() :]) if head else ("", "")
    if word not in _SPELLINGS:
        raise InputError(f"unknown verdict {word!r}; expected one of {', '.join(_SPELLINGS)}", path=path, line=1)
    verdict = _SPELLINGS[word]
    if verdict is not Verdict.SAT or not rest.strip():
        return ResultsFile(verdict)
    read = _read_pairs if rest.lstrip().startswith("(") else _read_tensors
    return ResultsFile(verdict, read(rest, path))


def _witness_lines(result: Result, prop: Property) -> list[str]:
    if result.verdict is not Verdict.SAT:
        return []
    if result.witness is None:
        raise SoundnessError("the verdict is sat but there is no witness")
    return witness_lines(result.witness, prop)


def witness_lines(witness: Witness, prop: Property) -> list[str]:
    """The witness as a results file has it below its verdict; by themselves they claim nothing (see `read_result`)."""
    x, y = witness.x, witness.y
    if x.shape != (prop.signature.input_size,) or y.shape != (prop.signature.output_size,):
        raise SoundnessError(f"a witness of shapes {x.shape}, {y.shape} does not fit the property")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise SoundnessError("a witness must be finite")
    if prop.version[0] >= 2:
        lines = {
            "input": _all_lines(prop.signature.inputs, x),
            "hidden": list(map(_tensor_lines, prop.hidden, _hidden_values(witness, prop))),
            "output": _all_lines(prop.signature.outputs, y),
        }
        return list(chain.from_iterable(lines[kind][i] for kind, i in prop.declared))
    pairs = [f"(X_{i} {v!r})" for i, v in enumerate(x.tolist())] + [f"(Y_{i} {v!r})" for i, v in enumerate(y.tolist())]
    pairs[0], pairs[-1] = f"({pairs[0]}", f"{pairs[-1]})"
    return pairs


def _hidden_values(witness: Witness, prop: Property) -> list[Floats]:
    values = [value.astype(np.float64) for value in witness.hidden]
    if [value.shape for value in values] != [hidden.shape for hidden in prop.hidden]:
        raise SoundnessError("the witness does not have the values of the hidden nodes that the property declares")
    return values


def _all_lines(variables: tuple[Variable, ...], flat: Floats) -> list[list[str]]:
    """The lines of each variable."""
    return list(map(_tensor_lines, variables, np.split(flat, np.cumsum([one.size for one in variables])[:-1])))


def _tensor_lines(variable: Variable, values: Floats) -> list[str]:
    dims = ",".join(map(str, variable.shape))
    # A number of VNN-LIB 2.x has no exponent; this is the shortest decimal that reads back the same.
    numbers = (np.format_float_positional(value, trim="0") for value in values.reshape(-1))
    return [f"{variable.name} {variable.element_type} [{dims}]", *numbers]


def _number(text: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", path=path) from None
    if not math.isfinite(value):
        raise InputError(f"a witness must be finite, found {text!r}", path=path)
    return value


def _read_pairs(text: str, path: Path) -> dict[str, Floats]:
    rubbish = _PAIR.sub("", text).replace("(", "", 1).replace(")", "", 1).strip()
    if rubbish:
        raise InputError(f"expected ((X_0 value) ... (Y_0 value)), found {rubbish[:40]!r}", path=path)
    found: dict[str, list[float]] = {"X": []}
    for letter, index, value in _PAIR.findall(text):
        values = found.setdefault(letter, [])
        if (index.lstrip("0") or "0") != str(len(values)):
            raise InputError(f"expected {letter}_{len(values)}, found {letter}_{index}", path=path)
        values.append(_number(value, path))
    return {letter: np.array(values) for letter, values in found.items()}


def _read_tensors(text: str, path: Path) -> dict[str, Floats]:
    """Name -> values (in their declared shape) of the tensors that a results file lists."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found: dict[str, Floats] = {}
    place = 0
    while place < len(lines):
        header = _HEADER.fullmatch(lines[place])
        if header is None:
            raise InputError(f"expected 'name type [dims]', found {lines[place]!r}", path=path)
        if header[1] in found:
            raise InputError(f"{header[1]} is there twice", path=path)
        dims = header[3].replace(",", " ").split()
        shape = tuple(int(part) for part in dims if len(part) < 10)
        size = math.prod(shape)
        if len(shape) < len(dims) or len(dims) > _MAX_DIMS or math.prod(part for part in shape if part) > _MAX_VALUES:
            raise InputError(f"{header[1]} has a shape that no witness has", path=path)
        values = [_number(line, path) for line in lines[place + 1 : place + 1 + size]]
        if len(values) < size:
            raise InputError(f"{header[1]} needs {size} values, found {len(values)}", path=path)
        found[header[1]] = np.array(values).reshape(shape)
        place += 1 + size
    return found


# 2. Serialised tensors


def make_writable_folder(folder: Path) -> None:
    """Make sure, before any work, that files can be written there; InputError if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made: {error.strerror}", path=folder) from None
    check_writable(folder / "X.pb")


def write_assignments(folder: Path, witness: Witness, prop: Property, model: Signature) -> list[Path]:
    """Write VARIABLE.pb (an ONNX TensorProto) for every declared variable.

    Parameters
    ----------
    folder : see `make_writable_folder`
    witness : x and y, flattened in the order of declaration
    prop : declares the names and shapes
    model : has the element types, which a property with `real` variables leaves open

    Raises
    ------
    InputError : a file cannot be written
    """
    from onnx import numpy_helper

    written = []
    sides = ((witness.x, prop.signature.inputs, model.inputs), (witness.y, prop.signature.outputs, model.outputs))
    tensors: dict[str, NDArray] = dict(zip((node.name for node in prop.hidden), witness.hidden, strict=True))
    for values, declared, actual in sides:
        start = 0
        for variable, tensor in zip(declared, actual, strict=True):
            piece = values[start : start + variable.size].reshape(variable.shape)
            tensors[variable.name] = piece.astype(tensor.element_type)
            start += variable.size
    for name, piece in tensors.items():
        written.append(folder / f"{name}.pb")
        data = numpy_helper.from_array(piece, name).SerializeToString()
        try:
            written[-1].write_bytes(data)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", path=written[-1]) from None
    return written
