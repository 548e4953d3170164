"""Verifiers beside us: how each is called, and what it says. Any tool with the competition's scripts will do."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bnn_vnnlib import __version__
from bnn_vnnlib.errors import InputError, OptionError, did_you_mean
from bnn_vnnlib.files.vnncomp import read_result
from bnn_vnnlib.jobs.worker import Died, Overdue, WorkerKind, discard, own_worker, run_program
from bnn_vnnlib.readers import read_bytes
from bnn_vnnlib.result import Query, Verdict
from bnn_vnnlib.runs.task import Outcome, tail, unanswered
from bnn_vnnlib.system.isolation import usual_threads

KILL_AFTER = 60.0
"""Seconds beyond the limit after which a tool is killed, as in the competition."""

_PREPARE_LIMIT = 600.0
"""Seconds for the preparation of an instance, as in the competition."""

_MAX_BYTES = 2**31  # bytes of a file that is unpacked for a tool, or that a tool leaves
_WORDS = {"holds": "unsat", "violated": "sat", "timed-out": "timeout", "timedout": "timeout", "to": "timeout"}
_LINE = re.compile(r"^\s*(sat|unsat|unknown|timeout|timed-out|error)\b", re.IGNORECASE | re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]")
_ASSIGNED = re.compile(r"^\s*x(\d+)\s*=\s*(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """A verifier of deterministic networks.

    Attributes
    ----------
    name : in the tables
    command : with {onnx}, {vnnlib}, {results}, {timeout} and {category} where these belong; whole words of the shell's
    prepare : the same, run before and not timed; None: nothing
    note : where it comes from, and whether it was run by the authors
    """

    name: str
    command: str
    prepare: str | None = None
    note: str = ""

    def words(self, command: str, places: Mapping[str, str]) -> list[str]:
        """The command's words, filled in; OptionError for a place that is none."""
        try:
            words = [os.path.expandvars(word.format(**places)) for word in shlex.split(command)]
        except (KeyError, IndexError, ValueError) as error:
            known = ", ".join(f"{{{place}}}" for place in places)
            raise OptionError(f"tool {self.name}: the command {command!r} cannot be filled in ({error}); known are "
                              f"{known}") from None  # fmt: skip
        unset = [word for word in words if _VARIABLE.search(word)]
        if unset:
            raise OptionError(f"tool {self.name}: a variable of the environment is not set: {unset[0]}. {self.note}")
        return words

    def check(self) -> None:
        """OptionError if the command cannot be filled in or its program is not there; said before anything runs."""
        nowhere = dict.fromkeys(("onnx", "vnnlib", "results", "timeout", "seconds", "threads", "category"), "x")
        for command in filter(None, (self.prepare, self.command)):
            program = self.words(command, nowhere)[0]
            if shutil.which(program) is None:
                raise OptionError(f"tool {self.name}: there is no program {program}. {self.note}".rstrip())


RECIPES = (
    Tool(
        "maraboupy",
        "Marabou {onnx} {vnnlib} --timeout {seconds} --verbosity 0 --num-workers {threads}",
        note="pip install maraboupy (2.0.0, for Python 3.8 to 3.11). The authors have run it. Its verdict "
        "is read from standard output, where a witness has six digits",
    ),
    Tool(
        "neuralsat",
        "$NEURALSAT/bin/python $NEURALSAT_MAIN --net {onnx} --spec {vnnlib} --device cpu --timeout {timeout} "
        "--result_file {results} --export_cex --verbosity 0",
        note="pip install neuralsat (0.2.17) into the virtual environment $NEURALSAT; $NEURALSAT_MAIN is the main.py "
        "that this puts into site-packages/src. The authors have run it. Without a full licence of Gurobi large "
        "networks need a --setting_file that sets use_mip_verify and use_mip_tightening to false",
    ),
    Tool(
        "nnenum",
        "env PYTHONSAFEPATH=1 python3 -m nnenum.nnenum {onnx} {vnnlib} {timeout} {results}",
        note="github.com/stanleybak/nnenum (b18238f), with its folder src on PYTHONPATH. The authors have run "
        "it. It starts only with OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1; a last argument of 1 keeps it to one "
        "process",
    ),
    Tool(
        "alpha-beta-CROWN",
        "python3 $ABCROWN/complete_verifier/abcrown.py --device cpu --onnx_path {onnx} --vnnlib_path {vnnlib} "
        "--results_file {results} --timeout {timeout}",
        note="github.com/Verified-Intelligence/alpha-beta-CROWN in the folder $ABCROWN. The authors have not run it",
    ),
)
"""How some tools are called. A variable ($NAME) is taken from the environment; recipes that the authors have not run
are written from the tools' documentation, and nothing more."""


def tool(text: str) -> Tool:
    """A tool as the command line names it: RECIPE, NAME=FOLDER with the competition's scripts, or NAME=COMMAND.

    Raises
    ------
    OptionError : no such recipe; a folder without scripts; a command without {onnx} or {vnnlib}
    """
    name, given, rest = text.partition("=")
    if not given:
        found = [recipe for recipe in RECIPES if recipe.name == name]
        if not found:
            known = ", ".join(recipe.name for recipe in RECIPES)
            hint = did_you_mean(name, known.split(", "))
            raise OptionError(f"unknown tool {name!r}; known are {known}, NAME=FOLDER and NAME=COMMAND{hint}")
        return found[0]
    folder = Path(rest)
    if folder.is_dir():
        run, prepare = (folder.resolve() / f"{what}_instance.sh" for what in ("run", "prepare"))
        if not run.is_file():
            raise OptionError(f"tool {name}: there is no run_instance.sh in this folder", path=folder)
        first = f"bash {shlex.quote(str(prepare))} v1 {{category}} {{onnx}} {{vnnlib}}" if prepare.is_file() else None
        command = f"bash {shlex.quote(str(run))} v1 {{category}} {{onnx}} {{vnnlib}} {{results}} {{timeout}}"
        return Tool(name, command, first)
    if "{onnx}" not in rest or "{vnnlib}" not in rest:
        raise OptionError(f"tool {name}: expected a folder, or a command with {{onnx}} and {{vnnlib}}; found {rest!r}")
    return Tool(name, rest)


@dataclass(frozen=True)
class ToolTask:
    """One instance for one tool; names as in `Task`."""

    category: str
    onnx: str
    vnnlib: str
    tool: Tool
    model: str
    prop: str
    timeout: float
    threads: int | None = None
    seed: int = 0
    own_timeout: float | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The paths by the roles that the JSON record names: property and model."""
        return {"property": Path(self.prop), "model": Path(self.model)}

    @property
    def query(self) -> Query:
        """The query, always `deterministic`: tools know no posterior."""
        return Query.DETERMINISTIC

    @property
    def asked(self) -> dict[str, Any]:
        """What decides the outcome beside the files, as JSON values."""
        return {"version": __version__, "command": self.tool.command, "prepare": self.tool.prepare,
                "timeout": self.timeout}  # fmt: skip


def run_tool(task: ToolTask) -> Outcome:
    """Have a tool decide an instance, in a process group of its own that is killed as in the competition."""
    with tempfile.TemporaryDirectory(prefix="bnn-vnnlib-") as folder:
        places, log, prepare_time = _places(task, Path(folder)), Path(folder) / "log.txt", 0.0
        if task.tool.prepare is not None:
            words = task.tool.words(task.tool.prepare, places)
            code, prepare_time = _call(words, log, _PREPARE_LIMIT, task.threads)
            if code != 0:
                reason = f"prepare_instance.sh ended with {code}: the instance is skipped"
                return unanswered(task, Verdict.ERROR, reason, prepare_time, log=tail(log))
        words = task.tool.words(task.tool.command, places)
        code, taken = _call(words, log, task.timeout + KILL_AFTER, task.threads)
        results, printed = Path(places["results"]), tail(log)
        text = read_bytes(results, _MAX_BYTES).decode(errors="replace") if results.is_file() else printed
        word, witness = _said(text)
        if word is None:
            verdict = Verdict.TIMEOUT if code is None else Verdict.ERROR
            died = f"the process died: {code}" if isinstance(code, str) else f"no verdict; exit code {code}"
            reason = "killed beyond the time limit" if code is None else died
            return unanswered(task, verdict, reason, prepare_time, taken, printed)
        verdict = Verdict(word)
        outcome = unanswered(task, verdict, f"said by {task.tool.name}", prepare_time, taken)
        if verdict is Verdict.SAT and witness.strip():
            outcome = replace(outcome, results=f"{verdict}\n{witness.strip()}\n")
        decided = verdict in (Verdict.SAT, Verdict.UNSAT)
        return replace(outcome, record={**outcome.record, "method": task.tool.name}) if decided else outcome


def _places(task: ToolTask, folder: Path) -> dict[str, str]:
    """What the command's places stand for. Few tools read packed files, so they are unpacked."""
    unpacked = {}
    for role, path in (("onnx", Path(task.model)), ("vnnlib", Path(task.prop))):
        unpacked[role] = str(path)
        if path.suffix == ".gz":
            target = folder / path.stem
            target.write_bytes(read_bytes(path, _MAX_BYTES))
            unpacked[role] = str(target)
    return {
        **unpacked, "results": str(folder / "results.txt"), "category": task.category, "timeout": str(task.timeout),
        "seconds": str(max(1, round(task.timeout))), "threads": str(task.threads or usual_threads()),
    }  # fmt: skip


def _call(words: list[str], log: Path, limit: float, threads: int | None) -> tuple[int | str | None, float]:
    """(exit code; None if it had to be killed; how its process died), and seconds.

    A worker starts the tool and belongs to its process group, so that none of what the tool starts outlives either.
    """
    log.touch()
    worker, _ = own_worker(WorkerKind(threads))
    begun = time.monotonic()
    try:
        code: int | str | None = worker.call(run_program, words, str(log), limit=limit)
    except Overdue:
        code = None
    except Died as error:
        code = str(error)
    taken = time.monotonic() - begun
    discard()  # the whole group: tools start helpers that outlive them
    return code, taken


def _said(text: str) -> tuple[str | None, str]:
    """(verdict, witness in the format of VNN-LIB 1.0 or 2.x) from a results file or from standard output."""
    lines = text.strip().splitlines()
    first = lines[0].split(maxsplit=1)[0].lower() if lines else ""
    first = _WORDS.get(first, first)
    if first in set(Verdict):
        return first, text.strip().removeprefix(text.split(maxsplit=1)[0])
    found = _LINE.search(text)
    if found is None:
        return None, ""
    pairs = [f"(X_{index} {value})" for index, value in _ASSIGNED.findall(text[found.end() :])]
    return _WORDS.get(found[1].lower(), found[1].lower()), f"({' '.join(pairs)})" if pairs else ""


def checked_sat(results: Path, model: Path, prop: Path) -> str:
    """What the replay of a witness in onnxruntime gives: a judgement of `check_witness`, or why there is none."""
    from bnn_vnnlib import read_model, read_property
    from bnn_vnnlib.check_witness import check_witness
    from bnn_vnnlib.question.options import Options

    try:
        found = read_result(results)
        if not found.values:
            return "no witness"
        loaded = read_model(model)
        property_ = read_property(prop, loaded.network.signature)
        return check_witness(loaded, property_, found, Options("deterministic").question()).judgement.value
    except InputError as error:
        return f"unreadable: {error}"
