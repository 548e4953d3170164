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
from bnn_vnnlib.vnnlib.read import read_text
from hostile.mutate_model import mangled_model
from hostile.mutate_text import mangled_text
from hostile.reader import Outcome, Reader

LARGEST = {".vnnlib": 120_000, ".onnx": 700_000}
"""Bytes of a seed: larger ones cost time and show nothing more."""


def seeds(folders: list[Path]) -> dict[str, list[bytes]]:
    """Properties and models under the folders, by suffix."""
    found: dict[str, list[bytes]] = {".vnnlib": [], ".onnx": []}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            suffix = next((s for s in found if path.name.removesuffix(".gz").endswith(s)), None)
            if suffix is None or not path.is_file() or path.stat().st_size > LARGEST[suffix]:
                continue
            try:
                data = read_text(path)[0].encode() if suffix == ".vnnlib" else read_proto(path)[0].SerializeToString()
            except InputError:
                continue
            if 0 < len(data) <= LARGEST[suffix]:
                found[suffix].append(data)
    if not all(found.values()):
        raise FileNotFoundError(f"no seed files under {', '.join(map(str, folders))}")
    return found


def case(seed: int, found: dict[str, list[bytes]]) -> tuple[str, bytes]:
    """Suffix and content of the file with this number."""
    rng = Random(seed)
    if rng.random() < 0.5:
        return ".vnnlib", mangled_text(rng, [data.decode() for data in found[".vnnlib"][:400]])
    return ".onnx", mangled_model(rng, found[".onnx"])


class Campaign:
    """Files by number, from where the last run stopped.

    Parameters
    ----------
    folder : of the progress file and of the files that break a reader
    first : number of the first file
    """

    def __init__(self, folder: Path, first: int, found: dict[str, list[bytes]]) -> None:
        self.folder, self.found = folder, found
        self.next, self.counts, self.failures = first, Counter[str](), list[str]()
        folder.mkdir(parents=True, exist_ok=True)
        self._record = folder / f"progress-{first}.json"
        if self._record.is_file():
            stored = json.loads(self._record.read_text(encoding="utf-8"))
            self.next, self.failures, self.counts = stored["next"], stored["failures"], Counter(stored["counts"])

    def run(self, reader: Reader, until: float, most: int | None = None) -> Iterator[int]:
        """Read files until a moment of time.monotonic(), `most` of them at most; yields the number of each."""
        last = None if most is None else self.next + most
        while time.monotonic() < until and (last is None or self.next < last):
            number = self.next
            suffix, data = case(number, self.found)
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
