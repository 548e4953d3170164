"""The folder of a long job: what is finished lies in it, so that a job that was ended goes on where it was.

    run.json, settings.json   what decides the results: options, hashes of networks and of the table's arrays
    .lock                     who is at work in it

`run` and `compare` keep instances in it (`runs.records`), `sweep`, `radius` and `uncertainty` chunks (`jobs.parts`).
Every file is written in one step, so what is finished is there: what was being computed when the process was killed is
computed again, nothing is lost, and nothing is there twice. What is finished bears a hash of its contents and of what
it was made of, so that what is damaged, or belongs to another job, is known and done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bnn_vnnlib.errors import InputError, OptionError
from bnn_vnnlib.files.sidecar import as_json, read_object, to_text
from bnn_vnnlib.files.vnncomp import write_text
from bnn_vnnlib.system.durable import locked

_SEAL = "sha256"
"""Key under which the settings' file holds the hash of all its other entries."""


@dataclass(frozen=True)
class Folder:
    """The folder of one job; nothing is made before `opened`."""

    path: Path
    FILE: ClassVar[str] = "settings.json"

    @property
    def settings(self) -> dict[str, Any] | None:
        """Settings of the job in the folder; None where there are none, or where they are damaged. A file may lack the
        hash.
        """
        try:
            values = read_object(self.path / self.FILE, "")
        except InputError:
            return None
        return values if values.pop(_SEAL, None) in (None, _hash_of(values)) else None

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Make the folder, or make sure that what is in it may be gone on with, and keep other processes out.

        Raises
        ------
        OptionError : another job is in it: names what differs; another process is at work in it
        """
        now = as_json(settings)
        self._check(now)
        with locked(self.path):
            self._check(now)  # once more, now that nobody else changes it
            write_text(self.path / self.FILE, to_text({**now, _SEAL: _hash_of(now)}))
            yield

    def _check(self, now: Mapping[str, Any]) -> None:
        """Refuse the folder of another job."""
        earlier = self.settings
        if earlier is not None:
            if earlier.get("job", now.get("job")) != now.get("job"):
                kinds = f"{earlier['job']}, not {now.get('job')}"
                message = f"the folder holds a job of another kind ({kinds}); take another one"
                raise OptionError(message, path=self.path)
            differing = [key for key in {**earlier, **now} if earlier.get(key) != now.get(key)]
            if differing and (advice := self._advice(earlier, now, differing)) is not None:
                there, here = self._shown(earlier), self._shown(now)
                pairs = (_difference(key, there.get(key), here.get(key)) for key in dict.fromkeys((*there, *here)))
                told = ", ".join(filter(None, pairs))
                message = f"the folder holds a job with other settings ({told}); {advice}"
                raise OptionError(message, path=self.path)
        elif (self.path / self.FILE).exists():
            self._check_damaged(now)
        else:
            self._check_foreign()

    def _advice(self, earlier: Mapping[str, Any], now: Mapping[str, Any], differing: Collection[str]) -> str | None:
        """What to do about settings that differ; None: nothing, they may."""
        return "take another one"

    def _shown(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings under the names that people know."""
        return settings

    def _check_damaged(self, now: Mapping[str, Any]) -> None:
        """Refuse a folder whose damaged settings leave open what is in it."""

    def _check_foreign(self) -> None:
        """Refuse a folder without settings, for what else is in it."""


def _hash_of(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _difference(key: str, there: Any, now: Any) -> str:
    """How a setting differs, in words; "" where it does not. Hashes say nothing to people."""
    if there == now:
        return ""
    kind, _, name = key.partition(" ")
    if kind in ("array", "network"):
        return f"{kind} {name}: {'not there before' if there is None else 'gone' if now is None else 'changed'}"
    told = ("not given" if one is None else f"{one:.12g}" if isinstance(one, float) else one for one in (there, now))
    return "{}: {} there, {} now".format(key, *told)
