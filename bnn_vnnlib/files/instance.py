"""One instance: which file is the property, which the model, and do they fit together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnn_vnnlib.errors import InputError, OptionError, UnsupportedError
from bnn_vnnlib.question.property import Property
from bnn_vnnlib.readers import kinds

_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class Files:
    """The two inputs; `network` is the NAME of `--network NAME=MODEL`, if one was given."""

    prop: Path
    model: Path
    network: str | None = None

    def __post_init__(self) -> None:
        for name in ("prop", "model"):
            object.__setattr__(self, name, _existing(getattr(self, name)))

    @property
    def by_role(self) -> dict[str, Path]:
        """As the JSON record names them."""
        return {"property": self.prop, "model": self.model}

    def check_name(self, prop: Property) -> None:
        """Refuse a NAME that the property does not declare (VNN-LIB 1.0 declares none)."""
        if self.network is not None and prop.network is not None and self.network != prop.network:
            message = f"the property declares the network {prop.network!r}, but --network names {self.network!r}"
            raise OptionError(message, path=self.prop)


def find_files(files: Sequence[Path], networks: Sequence[str]) -> Files:
    """`PROPERTY --network [NAME=]MODEL`, or two files in any order, told apart by what is in them.

    Raises
    ------
    OptionError : too few or too many files, or two that cannot be told apart
    UnsupportedError : more than one network
    """
    if len(networks) > 1:
        raise UnsupportedError(f"{len(networks)} networks were given; only single-network queries are supported")
    match len(files), len(networks):
        case 1, 1:
            name, model = _named(networks[0])
            return Files(files[0], model, name)
        case 2, 0:
            return Files(*_in_order(files[0], files[1]))
        case 1, 0:
            kind = kinds.kind_of(kinds.start_of(_existing(files[0])) or b"")
            if kind is not None and kinds.MODEL in kind.suits:
                raise OptionError("the property is missing: give it beside this model", path=files[0])
            raise OptionError("the model is missing: add --network MODEL, or give two files", path=files[0])
        case _:
            raise OptionError("expected PROPERTY --network MODEL, or MODEL PROPERTY")


def _existing(path: Path) -> Path:
    packed = Path(f"{path}.gz")  # benchmarks are stored packed but named unpacked
    for candidate in (path, packed):
        if _is_file(candidate):
            return candidate
    is_folder = _is_file(path, folder=True)
    raise InputError("this is a folder, not a file" if is_folder else "no such file", path=path)


def _is_file(path: Path, folder: bool = False) -> bool:
    """Whether there is such a file (or folder); a name that no file can have, such as one too long, is none."""
    try:
        return path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):
        return False


def _named(text: str) -> tuple[str | None, Path]:
    found = _NAMED.fullmatch(text)
    if found is None or _is_file(Path(text)):
        return None, Path(text)
    return found[1], Path(found[2])


def _in_order(first: Path, second: Path) -> tuple[Path, Path]:
    from bnn_vnnlib.vnnlib import looks_like_vnnlib

    first, second = _existing(first), _existing(second)
    match looks_like_vnnlib(first), looks_like_vnnlib(second):
        case True, False:
            return first, second
        case False, True:
            return second, first
        case True, True:
            raise OptionError(
                f"both files are VNN-LIB text, and neither is a model (the other is {second})", path=first
            )
    # Neither reads like VNN-LIB: let the one that is named so be refused with its own line and column.
    ordered = sorted((first, second), key=lambda path: ".vnnlib" not in path.name)
    if ".vnnlib" in ordered[0].name:
        return ordered[0], ordered[1]
    said = "; ".join(f"{path.name}: {_kind(path)}" for path in (first, second))
    raise OptionError(f"neither file is VNN-LIB text ({said})", path=first)


def _kind(path: Path) -> str:
    kind = kinds.kind_of(kinds.start_of(path) or b"")
    return "not known" if kind is None else kind.what
