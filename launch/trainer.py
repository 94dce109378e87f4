"""Trainers: programmes that train by iterations, have a name, and may consist of other trainers.

What a trainer has done lies in folders, so that the same trainer made again goes on where it was. None of these knows
an algorithm: a run is a configuration and a command.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from launch.grid import Trial
from protocol.errors import ConfigurationError

__all__ = ["Play", "Runs", "Together", "Trainer", "train"]

Play = Callable[[list[Trial]], list[Trial]]
"""Plays runs side by side to their ends; those that failed."""


class Trainer(ABC):
    """One programme."""

    name: str

    @abstractmethod
    def train(self) -> bool:
        """One iteration; False if there was nothing left to do. ConfigurationError if it cannot be done."""


class Runs(Trainer):
    """The default: one iteration plays all `trials` that are not done to their ends."""

    def __init__(self, name: str, trials: Sequence[Trial], play: Play) -> None:
        self.name, self._trials, self._play = name, list(trials), play
        self._over = False

    def train(self) -> bool:
        """All of them, once."""
        if self._over:
            return False
        played(self._play, self._trials)
        self._over = True
        return True


class Together(Trainer):
    """Trainers side by side: one iteration is one of each that has not ended; all wait for the slowest."""

    def __init__(self, name: str, trainers: Sequence[Trainer]) -> None:
        self.name, self._going = name, list(trainers)
        if len({one.name for one in trainers}) < len(trainers):
            raise ConfigurationError("trainer_names_collide", name=name)

    def train(self) -> bool:
        """One iteration of each."""
        self._going = [one for one in self._going if one.train()]
        return bool(self._going)


def train(trainer: Trainer, most: int) -> int:
    """Iterates until nothing is left to do; how often. ConfigurationError after `most` iterations: a programme that
    can never end."""
    for count in range(most + 1):
        if not trainer.train():
            return count
    raise ConfigurationError("trainer_not_finished", name=trainer.name, limit=most, key="generations")


def played(play: Play, trials: list[Trial]) -> None:
    """Plays `trials`; ConfigurationError in one sentence if any failed."""
    failed = play(trials)
    if failed:
        names = ", ".join(trial.name for trial in failed)
        raise ConfigurationError("trainer_runs_failed", count=len(failed), total=len(trials), runs=names)
