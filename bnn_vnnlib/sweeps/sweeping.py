"""Bounds of many boxes on one or many networks (`bnn-vnnlib sweep`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError, OptionError, names_arguments
from bnn_vnnlib.files.arrays import Arrays
from bnn_vnnlib.jobs.chunks import carry_out, growing, usual_chunk
from bnn_vnnlib.jobs.parts import Cost, PartsFolder, Step
from bnn_vnnlib.jobs.pool import Slots
from bnn_vnnlib.jobs.progress import Watch
from bnn_vnnlib.network.network import Floats
from bnn_vnnlib.question.options import Options
from bnn_vnnlib.result import Query
from bnn_vnnlib.setting import Setting
from bnn_vnnlib.sweeps.questions import AskedRows, draw_columns, setting_of, settings_of, with_seed
from bnn_vnnlib.sweeps.source import Source, model_digest
from bnn_vnnlib.sweeps.summary import Summary, summarise, write_summary
from bnn_vnnlib.sweeps.table import Table
from bnn_vnnlib.system.environment import plain_state

_USUAL_MEMORY, _NUMBERS_PER_GIB = 2.0, 2**21
"""GiB, where nobody says; numbers of the widest layer over the boxes of a chunk for each of them, at most: all that is
kept of the boxes takes about half of the memory."""

_NUMBERS = 2**17
"""Numbers of a chunk, about: larger chunks are no faster, and tell and keep less."""

_PIECES, _MIN_REFINED, _MIN_CHUNK = 4, 64, 32
"""Chunks for each worker, if they do not become smaller than `_MIN_CHUNK` boxes. What one pass leaves open is refined
together, so that fewer boxes than `_MIN_REFINED` are too few where memory has room for more."""

_DEARER = 16
"""A box of `decision` takes so many times as long, so that its chunks are smaller."""


@dataclass(frozen=True)
class Pair:
    """A table and its network; or, where the table names networks, {name: network}."""

    source: Source | Mapping[str, Source]
    table: Table


@dataclass(frozen=True, eq=False)
class SweepResult:
    """Rows of a finished sweep.

    Attributes
    ----------
    columns : by name, each (N, ..): see docs/sweeps.md
    summary : counts by network and label
    spent : time and memory
    """

    columns: Arrays
    summary: Summary
    spent: Cost


@dataclass(frozen=True, eq=False)
class _BoxesTask:
    """Some boxes on one network."""

    source: Source
    lower: Floats
    upper: Floats
    asked: AskedRows
    bounding: Options
    points: bool
    names: Arrays

    def run(self, earlier: Step | None) -> Arrays:
        """The columns of these rows."""
        from bnn_vnnlib.batch import verify_batch

        model = self.source.model
        asked = self.asked.arguments(model.network.signature.output_size)
        found = verify_batch(model, self.lower, self.upper, **asked, **self.bounding.given)
        columns = dict(self.names)
        prefix = "decision" if found.lower.ndim == 2 else "p_safe"
        columns |= {f"{prefix}_lower": found.lower, f"{prefix}_upper": found.upper}
        for side, rows in (("row_lower", found.row_lower), ("row_upper", found.row_upper)):
            if rows is not None and (ordered := self.asked.row_columns(rows)) is not None:
                columns[side] = ordered
        if not self.asked.nothing:
            columns["verdict"] = np.array([str(verdict) for verdict in found.verdicts], dtype=str)
        columns |= draw_columns(self.bounding, found.draws)
        return columns | ({"point": found.points} if self.points else {})


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows of one table on one network."""

    pair: int
    network: str
    source: Source
    rows: NDArray[np.int64]


class _SweepJob:
    """The chunks of a sweep: rows of one table on one network each, in the order of the tables.

    Parameters
    ----------
    chunk : their size; None: as it suits so many workers
    """

    def __init__(
        self, pairs: Sequence[Pair], bounding: Options, chunk: int | None, points: bool, workers: int = 1
    ) -> None:
        self._pairs, self._bounding, self._points = pairs, bounding, points
        if not pairs or not all(len(pair.table) for pair in pairs):
            raise InputError("the table holds no rows", path=pairs[0].table.path if pairs else None)
        if chunk is not None and chunk < 1:
            raise OptionError(f"a chunk holds at least one row, not {chunk}")
        blocks = [block for number, pair in enumerate(pairs) for block in _blocks(number, pair)]
        self.setting, self._networks, widest = self._checked(blocks)
        self.query = self.setting.query
        each = widest * (_DEARER if self.query is Query.DECISION else 1)
        room = int(_NUMBERS_PER_GIB * (bounding.memory or _USUAL_MEMORY))
        most = max(1, min(room // each, max(_NUMBERS // each, _MIN_REFINED)))
        rows = sum(len(block.rows) for block in blocks)
        self._chunk = chunk or usual_chunk(rows, workers, most, _MIN_CHUNK, _PIECES)
        self._chunks = list(_cut(blocks, self._chunk))

    def _checked(self, blocks: Sequence[_Block]) -> tuple[Setting, dict[str, str], int]:
        """The run over the first network, a hash of each, the widest layer; refuses what cannot be asked of one."""
        digests: dict[str, str] = {}
        runs: dict[int, Setting] = {}
        for block in blocks:
            table = self._pairs[block.pair].table
            if id(block.source) not in runs:
                runs[id(block.source)] = setting_of(self._bounding, block.source.model)
            setting = runs[id(block.source)]
            signature = setting.model.network.signature
            if table.lower.shape[1] != signature.input_size:
                wants = f"network {block.network} takes {signature.input_size}"
                raise InputError(f"boxes have {table.lower.shape[1]} inputs, {wants}", path=table.path)
            table.asked.rows(block.rows).check(signature.output_size, setting.query, table.path)
            digests[self._key(block)] = model_digest(setting.model)
        if len({setting.model.network.signature.output_size for setting in runs.values()}) > 1:
            raise InputError("the networks have different numbers of outputs: sweep them one after the other")
        if len({setting.query for setting in runs.values()}) > 1:
            raise InputError("some of the networks carry a posterior and some do not: say which query is asked of all")
        networks = [setting.model.network for setting in runs.values()]
        widest = max(math.prod(node.shape) for network in networks for node in network.nodes)
        return next(iter(runs.values())), digests, widest

    def _key(self, block: _Block) -> str:
        return block.network if len(self._pairs) == 1 else f"{block.pair}:{block.network}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options, and hashes of networks and arrays."""
        question = self.setting.question
        settings: dict[str, Any] = {"job": "sweep", "version": __version__, **settings_of(self._bounding)}
        settings |= {"query": self.query.value, "tau_safe": question.tau_safe, "tau_unsafe": question.tau_unsafe}
        settings |= {"chunk": self._chunk, "points": self._points}
        settings |= {f"network {name}": value for name, value in self._networks.items()}
        for number, pair in enumerate(self._pairs):
            place = "" if len(self._pairs) == 1 else f" of table {number}"
            settings |= {f"array {name}{place}": value for name, value in pair.table.digests.items()}
        return settings

    def __len__(self) -> int:
        return len(self._chunks)

    def size(self, chunk: int) -> int:
        """Number of rows in a chunk."""
        return len(self._chunks[chunk].rows)

    def task(self, chunk: int) -> _BoxesTask:
        """The work of a chunk."""
        block = self._chunks[chunk]
        table, rows = self._pairs[block.pair].table, block.rows
        names: Arrays = {"table": np.full(len(rows), block.pair)} if len(self._pairs) > 1 else {}
        names |= {"row": rows, "network": np.full(len(rows), block.network)}
        if table.asked.labels is not None:
            names["label"] = table.asked.labels[rows]
        if table.group is not None:
            names["group"] = table.group[rows]
        return _BoxesTask(
            block.source, table.lower[rows], table.upper[rows], table.asked.rows(rows), self._bounding, self._points,
            names,
        )  # fmt: skip


def _cut(blocks: Sequence[_Block], chunk: int) -> Iterator[_Block]:
    """Pieces of the blocks, none larger than a chunk, the first ones smaller."""
    sizes = growing(chunk)
    for block in blocks:
        rows = block.rows
        while len(rows):
            size = next(sizes)
            yield replace(block, rows=rows[:size])
            rows = rows[size:]


def _blocks(number: int, pair: Pair) -> list[_Block]:
    """The rows of each network, networks in the order of their first row."""
    rows = np.arange(len(pair.table))
    if isinstance(pair.source, Source):
        if pair.table.network is not None:
            raise InputError("the table names networks: give the folder that holds them", path=pair.table.path)
        model = pair.source.model
        return [_Block(number, "model" if model.path is None else model.path.name, pair.source, rows)]
    if pair.table.network is None:
        raise InputError("the table must say which network: array 'network' is missing", path=pair.table.path)
    names, first, of_row = np.unique(pair.table.network, return_index=True, return_inverse=True)
    blocks = []
    for place in np.argsort(first):
        name = str(names[place])
        if name not in pair.source:
            raise InputError(f"row {first[place]} names an unknown network {name!r}", path=pair.table.path)
        blocks.append(_Block(number, name, pair.source[name], rows[of_row == place]))
    return blocks


@names_arguments
@plain_state()
def sweep(
    pairs: Sequence[Pair], bounding: Options | None = None, *, out: str | Path | None = None, chunk: int | None = None,
    points: bool = False, workers: int = 1, threads: int | None = None,
    scheduler: str | None = None, watch: Watch | None = None,
) -> SweepResult:  # fmt: skip
    """Bound every box of every table.

    Parameters
    ----------
    pairs : tables with their networks
    bounding : how; the defaults are those of `verify_batch`
    out : folder for bounds.parquet and summary.csv; a sweep that was ended goes on in it (None: in memory only)
    chunk : rows bounded at a time, and lost at most by each worker when the process is killed; the first chunks are
        smaller. None: that of the sweep that goes on, else what suits the table and the workers
    points : keep the attacked point of each row
    workers, threads : processes, and threads of each (None: torch's own number; in other processes as the environment
        says, else 1)
    scheduler : address of a Dask scheduler, on which the chunks are bounded, or "local": a cluster of so many workers
        on this machine; the workers must find the networks under the same paths
    watch : called after each chunk

    Raises
    ------
    InputError : tables, networks and options that do not fit, before any work; a folder that holds another sweep
    """
    where, folder = Slots(workers, threads, scheduler), None if out is None else PartsFolder(Path(out))
    if chunk is None and folder is not None:
        chunk = folder.chunk
    job = _SweepJob(pairs, with_seed(bounding or Options(), folder), chunk, points, workers)
    order = ("row", "table") if len(pairs) > 1 else ("row",)
    columns, spent = carry_out(job, folder, where, watch, file="bounds.parquet", order=order)
    question = job.setting.question
    summary = summarise(columns, question.tau_safe, question.tau_unsafe)
    if folder is not None:
        write_summary(folder.path / "summary.csv", summary)
    return SweepResult(columns, summary, spent)
