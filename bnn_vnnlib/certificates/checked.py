"""What `bnn-vnnlib-check` said of the certificates of a run, from the records that it wrote beside them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bnn_vnnlib.errors import InputError
from bnn_vnnlib.files.sidecar import read_object, sidecar_path

CHECKER = "bnn-vnnlib-check"
OUTCOMES = ("accepted", "rejected", "error")
"""The checker's words, in the order of its exit codes."""

_UNCHECKED = "not checked"

SUFFIX = ".cert"


def outcome(record: Mapping[str, Any], results: Path) -> str | None:
    """One of `OUTCOMES`, or "not checked"; None where the answer has no certificate.

    A record of the checker about another certificate than the run wrote counts for nothing.

    Parameters
    ----------
    record : of an instance of a run
    results : its results file
    """
    run = record.get("run")
    written = run.get("certificate") if isinstance(run, Mapping) else None
    if not isinstance(written, Mapping):
        return None
    path = _record_of(results.with_suffix(SUFFIX))
    if not path.is_file():
        return _UNCHECKED
    said = read_object(path, "remove it, and check the certificate again")
    hashes = said.get("sha256")
    same = isinstance(hashes, Mapping) and hashes.get("certificate") == written.get("sha256") is not None
    return said["outcome"] if same and said.get("outcome") in OUTCOMES else _UNCHECKED


def check_all(folder: Path) -> Iterator[tuple[Path, str]]:
    """Have every certificate of a run, or of a comparison, checked by the checker, a program of its own.

    Yields
    ------
    the certificate, and the line that the checker said of it

    Raises
    ------
    InputError : there is no certificate, or no checker
    """
    found = sorted(folder.rglob(f"*{SUFFIX}"))
    if not found:
        raise InputError("no certificates here; `bnn-vnnlib run --certificates` writes them", path=folder)
    program = shutil.which(CHECKER)
    if program is None:
        raise InputError(f"{CHECKER} is not installed: it is a distribution of its own, in the folder checker/")
    for path in found:
        record = read_object(sidecar_path(path.with_suffix(".txt")), "run the instance again")
        files, query = record.get("files"), record.get("query")
        roles = (
            [str(files[role]) for role in ("model", "property") if role in files] if isinstance(files, Mapping) else []
        )
        if len(roles) < 2 or not isinstance(query, str):
            raise InputError("the record says neither files nor query; run the instance again", path=path)
        taus = {f"--{name.replace('_', '-')}": record.get(name) for name in ("tau_safe", "tau_unsafe")}
        asked = [f"--query={query}", *(f"{name}={tau}" for name, tau in taus.items() if tau is not None)]
        command = [program, *roles, str(path), *asked, f"--record={_record_of(path)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        yield path, (done.stdout + done.stderr).strip()


def _record_of(certificate: Path) -> Path:
    return certificate.with_name(f"{certificate.name}.checked.json")
