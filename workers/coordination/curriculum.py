"""What a run in several environments is to play next, as its coordinator decides: what is mastered, how well all go.

In flows: the collection's structure; episodes and returns by environment, which actors count. Out flow: what actors are
told with each heartbeat, by which they choose an environment for each episode. A prior and a split need no decision.

What was mastered stays so, also when the coordinator returns: it is kept in `curriculum.json` in the run's folder, as
soon as there is room for it. Means of the last episodes begin anew then.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from protocol.spaces import World
from workers.metrics.segment_accounting import Page, Pages
from workers.runtime.files import SafeWriter

log = logging.getLogger(__name__)

FILE = "curriculum.json"


class _Window:
    """Agents' episodes, the newest `most` or somewhat more, as they are told: several at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._told = most, deque[tuple[int, float]]()
        self.count, self._sum = 0, 0.0

    def add(self, count: int, earned: float) -> None:
        self._told.append((count, earned))
        self.count, self._sum = self.count + count, self._sum + earned
        while self.count - self._told[0][0] >= self._most:
            oldest, was = self._told.popleft()
            self.count, self._sum = self.count - oldest, self._sum - was

    @property
    def full(self) -> bool:
        return self.count >= self._most

    @property
    def mean(self) -> float:
        return self._sum / self.count


class CurriculumState:
    """Of `run`, whose `policies` play all of its environments as `agents` agents."""

    def __init__(self, run: Run, policies: Sequence[str], agents: int, folder: Path, disk: SafeWriter) -> None:
        environment = run.environment
        structure = environment.curriculum or environment.adversarial
        assert structure is not None
        assert environment.members is not None
        self._curriculum, self._adversarial = environment.curriculum, environment.adversarial
        self._policies, self._file, self._disk = list(policies), folder / FILE, disk
        self._windows = {member: _Window(structure.episodes * agents) for member in environment.members}
        self._tries = dict.fromkeys(environment.members, 0)
        self._enough = (self._adversarial.tries if self._adversarial is not None else 0) * agents
        self._counted: dict[str, tuple[float, float]] | None = None
        """member -> agents' episodes and returns that were taken in; None: one that returned has not looked yet."""
        self.mastered: list[str] = []
        if self._file.exists():
            self.mastered = json.loads(self._file.read_text())["mastered"]
        else:
            self._counted = dict.fromkeys(environment.members, (0.0, 0.0))
        self._kept = len(self.mastered)
        """How many of them the file holds."""

    def update(self, actors: Pages) -> None:
        """Takes in what the actors counted since."""
        pages = list(actors.values())
        now = {member: self._sums(pages, member) for member in self._windows}
        before, self._counted = self._counted or now, now
        for member, window in self._windows.items():
            count, earned = (new - old for new, old in zip(now[member], before[member], strict=True))
            if count > 0:
                window.add(int(count), earned)
                self._tries[member] += int(count)
        if self._curriculum is not None:
            self._promote(self._curriculum.threshold)
        if self._kept < len(self.mastered) and self._disk.replace(self._file, json.dumps({"mastered": self.mastered})):
            self._kept = len(self.mastered)

    @property
    def view(self) -> dict[str, Any]:
        """For actors and people."""
        scores = {
            member: round(window.mean, 6)
            for member, window in self._windows.items()
            if window.count and self._tries[member] >= self._enough
        }
        return {"scores": scores} if self._curriculum is None else {"scores": scores, "mastered": self.mastered}

    def _promote(self, threshold: dict[str, float]) -> None:
        fresh = [
            member
            for member, wanted in threshold.items()
            if member not in self.mastered and self._windows[member].full and self._windows[member].mean >= wanted
        ]
        for member in fresh:
            log.info("event=mastered member=%s mean_return=%.4g", member, self._windows[member].mean)
        self.mastered += fresh

    def _sums(self, pages: list[Page], member: str) -> tuple[float, float]:
        count, earned = (
            sum(page.get(f"{kind}.{policy}/{member}", 0.0) for page in pages for policy in self._policies)
            for kind in ("episodes", "returns")
        )
        return count, earned


def curriculum_of(
    run: Run, world: World, policies: Sequence[str], folder: Path, disk: SafeWriter
) -> CurriculumState | None:
    """That of `run`, if there is anything to decide; in lock-step each block of copies decides for itself, as what it
    plays must not depend on when others' episodes are heard of."""
    environment = run.environment
    if run.lockstep or (environment.curriculum is None and environment.adversarial is None):
        return None
    return CurriculumState(run, policies, sum(place.many for place in world.places), folder, disk)
