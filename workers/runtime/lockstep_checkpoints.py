"""Coordinated checkpoints of a run in lock-step: what each worker remembers after one and the same round, to go back to
together.

`lockstep_checkpoints/<configuration>/<round>/<part>.safetensors` in the run's folder; parts are the actors and the
policies. Nobody decides when: rounds are counted. In flow: a part's arrays. Out flow: the newest round of which all
parts are there, and the arrays again. As no round ends before everybody has begun, all that begin anew find the same
one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from protocol.config.run import Run
from protocol.config.yaml_file import fixed_part
from protocol.errors import ConfigurationError, disk_full
from workers.runtime.files import SafeWriter
from workers.runtime.state_capture import State

log = logging.getLogger(__name__)


class LockstepCheckpoints:
    """Of a run with these `parts`, under `folder`; every so many rounds."""

    def __init__(self, folder: Path, every: int, parts: list[str]) -> None:
        self._folder, self._every, self._parts = folder, every, parts
        self._disk = SafeWriter()
        self.newest = max((number for number in self._numbers() if self._whole(number)), default=None)
        """The round to go back to, as of now: None is the beginning."""

    def due(self, number: int) -> bool:
        """Whether a cut is made after round `number`, counted from 0."""
        return (number + 1) % self._every == 0 and number != self.newest

    def write(self, part: str, number: int, state: State) -> None:
        """Keeps the `state` of `part` after round `number`. Where the disk has no room for it, the cut before stays the
        newest, which is told."""
        self._forget(part, number)
        file = self._folder / str(number) / f"{part}.safetensors"
        aside = file.with_suffix(".new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: np.ascontiguousarray(array) for name, array in state.items()}, aside)
            aside.rename(file)
        except (OSError, SafetensorError) as fault:
            aside.unlink(missing_ok=True)
            if isinstance(fault, OSError) and not disk_full(fault):
                raise
            self._disk.record_disk_full(fault if isinstance(fault, OSError) else OSError(28, str(fault)))
            return
        log.info("event=lockstep_checkpoint part=%s round=%d", part, number)

    def read(self, part: str) -> State:
        """What `part` remembered at the `newest`; ConfigurationError if it cannot be read."""
        file = self._folder / str(self.newest) / f"{part}.safetensors"
        try:
            return load_file(file)
        except (OSError, SafetensorError) as fault:
            said = " ".join(str(fault).split())
            raise ConfigurationError(
                "lockstep_checkpoint_unreadable", file=file, reason=said, folder=self._folder.parent
            ) from None

    def _forget(self, part: str, number: int) -> None:
        """Removes what `part` keeps of rounds before the newest whole one but `number`."""
        whole = max((one for one in self._numbers() if one < number and self._whole(one)), default=0)
        for other in self._numbers():
            if other < whole:
                (self._folder / str(other) / f"{part}.safetensors").unlink(missing_ok=True)
                _remove_if_empty(self._folder / str(other))

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()]

    def _whole(self, number: int) -> bool:
        return all((self._folder / str(number) / f"{part}.safetensors").is_file() for part in self._parts)


def checkpoints_of(run: Run, policies: list[str], folder: Path | None) -> LockstepCheckpoints | None:
    """Those of a run in lock-step whose `policies` learn, as far as a worker sees its `folder`; None without any. What
    a run that cannot go on as this one left in the same folder is removed."""
    if folder is None or not run.lockstep_checkpoints:
        return None
    fixed = {key: value for key, value in fixed_part(run).items() if key != "commands" and not key.endswith(".path")}
    # one name for all workers, wherever they work
    name = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]
    place = folder / "lockstep_checkpoints"
    for other in place.iterdir() if place.is_dir() else ():
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    parts = [*(f"actor-{number}" for number in range(run.actors)), *(f"policy-{policy}" for policy in policies)]
    return LockstepCheckpoints(place / name, run.lockstep_checkpoint_rounds, parts)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        try:
            folder.rmdir()
        except OSError:  # another part's worker was quicker, or begins to write there
            log.debug("event=lockstep_checkpoint_kept folder=%s", folder)
