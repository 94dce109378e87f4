"""Whether a run moves, and if not, who waits for what. Time is passed in.

In flows: steps made and trained, members, counters of waiting. Out flow: a sentence, empty as long as anything moves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from workers.metrics.segment_accounting import Page, Pages

log = logging.getLogger(__name__)


class StallDetector:
    """Of one run; nothing may move for `seconds`. `stalls`: how often that was too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moved_at = 0.0
        self._progress = -1
        self._before: Pages = {}
        """What everybody had counted when something moved last."""
        self.stalls = 0
        self.message = ""

    def look(self, now: float, paused: bool, view: Mapping[str, Any], absent: Sequence[str], pages: Pages) -> None:
        """The same by the books' `view`; who is `paused` moves in time alone. What begins to stand still is logged."""
        steps, before = sum(policy["train_steps"] or 0 for policy in view["policies"].values()), self.message
        said = self.update(now, int(now * 1000) if paused else view["made"] + steps, view["workers"], absent, pages)
        if said and not before:
            log.error('event=stalled reason="%s"', said)

    def update(
        self, now: float, progress: int, workers: Sequence[Mapping[str, Any]], absent: Sequence[str], pages: Pages
    ) -> str:
        """`progress`: anything that grows while the run moves; `workers`: the table of members; `absent`: names of
        those that are wanted and not there."""
        if progress != self._progress or not workers:
            self._progress, self._moved_at, self.message = progress, now, ""
            self._before = pages
        elif not self.message and now - self._moved_at >= self._seconds:
            self.stalls += 1
            told = [self._told(worker, pages) for worker in workers if worker["role"] in ("actor", "learner", "relay")]
            told += [f"{name} is not there" for name in absent]
            self.message = f"nothing moved for {now - self._moved_at:.0f} s: {', '.join(told)}"
        return self.message

    def _told(self, worker: Mapping[str, Any], pages: Pages) -> str:
        key = worker["name"], worker["incarnation"]
        before = _waits(self._before.get(key, {}))
        grown = {cause: value - before.get(cause, 0.0) for cause, value in _waits(pages.get(key, {})).items()}
        most = max(grown, key=lambda cause: grown[cause], default="")
        if worker["silent"] > self._seconds / 2:
            return f"{worker['name']} is silent"
        if most and grown[most] > self._seconds / 10:
            kind, _, of = most.removeprefix("waits.").partition(".")
            return f"{worker['name']} waits for {kind}{f' of {of}' if of else ''}"
        return f"{worker['name']} is {worker['state']} and waits for nothing"


def _waits(page: Page) -> dict[str, float]:
    return {name: value for name, value in page.items() if name.startswith("waits.")}
