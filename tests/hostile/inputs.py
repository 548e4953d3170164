"""Many mangled files in a row: counted, resumable, those that break a reader kept."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.model.files import read_proto
from bnn_vnnlib.vnnlib.parse import read_property_text
from hostile.mutate_archive import archives, mangled_archive, mangled_parquet, parquets
from hostile.mutate_model import mangled_model
from hostile.mutate_text import mangled_text
from hostile.mutate_values import INSTANCES, RESULTS, mangled_json, mangled_results, mangled_table
from hostile.reader import Outcome, Reader
from support.records import decision, plain, safe, values

LARGEST = {".vnnlib": 120_000, ".onnx": 700_000, ".csv": 100_000}
"""Bytes of a seed: larger ones cost time and show nothing more."""

SHARES = {".vnnlib": 30, ".onnx": 30, ".npz": 20, ".csv": 6, ".json": 6, ".txt": 5, ".parquet": 3}
"""How many of a hundred files are of this kind."""


def seeds(folders: list[Path]) -> dict[str, list[bytes]]:
    """Files to mangle, by suffix: properties, models and tables under the folders, and some of each other kind."""
    found: dict[str, list[bytes]] = {".vnnlib": [], ".onnx": [], ".csv": [table.encode() for table in INSTANCES]}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            suffix = next((s for s in found if path.name.removesuffix(".gz").endswith(s)), None)
            if suffix is None or not path.is_file() or path.stat().st_size > LARGEST[suffix]:
                continue
            try:
                data = (
                    read_proto(path)[0].SerializeToString()
                    if suffix == ".onnx"
                    else read_property_text(path)[0].encode()
                )
            except InputError:
                continue
            if 0 < len(data) <= LARGEST[suffix]:
                found[suffix].append(data)
    if not all(found.values()):
        raise FileNotFoundError(f"no seed files under {', '.join(map(str, folders))}")
    made = {".npz": archives(), ".parquet": parquets(), ".json": records(), ".txt": [text.encode() for text in RESULTS]}
    return {**found, **made}


def records() -> list[bytes]:
    """Records of a run's instances, one for each query and one of a failure."""
    names = {"category": "c", "network": "n", "property": "p", "prepare_time": 0.0, "run_time": 1.0, "checked": None}
    results = safe("sat", 0.1, 0.2), decision("unknown", [0.0], [1.0]), plain("unsat"), "a reason"
    return [json.dumps(values(result, {}) | {"run": names}).encode() for result in results]


def case(seed: int, found: dict[str, list[bytes]], kind: str | None = None) -> tuple[str, bytes]:
    """Suffix and content of the file with this number; `kind` is a suffix, if only such files are wanted."""
    rng = Random(seed)
    suffix = kind or rng.choices(list(SHARES), list(SHARES.values()))[0]
    some = found[suffix]
    match suffix:
        case ".onnx":
            return suffix, mangled_model(rng, some)
        case ".npz":
            return suffix, mangled_archive(rng, some)
        case ".parquet":
            return suffix, mangled_parquet(rng, some)
    texts = [data.decode() for data in some[:400]]
    mangled = {".vnnlib": mangled_text, ".csv": mangled_table, ".json": mangled_json, ".txt": mangled_results}
    return suffix, mangled[suffix](rng, texts)


class Campaign:
    """Files by number, from where the last run stopped.

    Parameters
    ----------
    folder : of the progress file and of the files that break a reader
    first : number of the first file
    found : files to mangle, see `seeds`
    kind : suffix, if only such files are wanted
    """

    def __init__(self, folder: Path, first: int, found: dict[str, list[bytes]], kind: str | None = None) -> None:
        self.folder, self.found, self.kind = folder, found, kind
        self.next, self.counts, self.failures = first, Counter[str](), list[str]()
        folder.mkdir(parents=True, exist_ok=True)
        self._record = folder / f"progress-{first}{kind or ''}.json"
        if self._record.is_file():
            stored = json.loads(self._record.read_text(encoding="utf-8"))
            self.next, self.failures, self.counts = stored["next"], stored["failures"], Counter(stored["counts"])

    def run(self, reader: Reader, until: float, most: int | None = None) -> Iterator[int]:
        """Read files until a moment of time.monotonic(), `most` of them at most; yields the number of each."""
        last = None if most is None else self.next + most
        while time.monotonic() < until and (last is None or self.next < last):
            number = self.next
            suffix, data = case(number, self.found, self.kind)
            outcome = reader.read(suffix, data)
            self.counts[f"{suffix} {outcome.kind}"] += 1
            if outcome.kind in ("crash", "hang"):
                self.failures.append(str(self._keep(number, suffix, data, outcome)))
            self.next = number + 1
            if number % 100 == 0 or outcome.kind in ("crash", "hang"):
                self.save()
            yield number

    def save(self) -> None:
        """Write the progress down; a kill between two writes leaves the older file."""
        stored = {"next": self.next, "failures": self.failures, "counts": self.counts}
        partial = self._record.with_suffix(".part")
        partial.write_text(json.dumps(stored) + "\n", encoding="utf-8")
        partial.replace(self._record)

    def _keep(self, number: int, suffix: str, data: bytes, outcome: Outcome) -> Path:
        path = self.folder / f"{number}{suffix}"
        path.write_bytes(data)
        path.with_suffix(f"{suffix}.txt").write_text(f"{outcome.kind}: {outcome.text}\n", encoding="utf-8")
        return path
