"""How the loop flows now: rates over the last seconds, how full queues are, who waits for whom, and how busy
the processors are that this process may use.

In flow: the counters of all workers, again and again, with the time. Out flow: one dictionary a policy, and a verdict.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import psutil

from protocol.control.processors import GROUP, affinity, quota
from workers.metrics.segment_accounting import Page, Pages, sum_counters

_WINDOW = 10.0
"""Seconds that a rate, or a share, of now is the mean of."""
_KINDS = ("produced", "received", "trained", "steps_made", "waits.credit")


class Throughput:
    """Of `policies`, all that learn. `credits`: segments that one actor may have announced and not settled."""

    def __init__(self, policies: Sequence[str], credits: dict[str, int]) -> None:
        self._policies, self.credits = policies, credits
        self._looks: deque[tuple[float, dict[str, float]]] = deque()

    def update(
        self,
        now: float,
        counted: Page,
        actors: Pages,
        learners: Pages,
        living: Collection[tuple[str, int]],
        adoption_lag: Mapping[str, float],
    ) -> dict[str, dict[str, float]]:
        """policy -> what flows. `counted`: sums over all workers; `living`: (worker, incarnation); `adoption_lag`: not
        adopted, by policy."""
        names = (f"{kind}.{policy}" for policy in self._policies for kind in _KINDS)
        totals = {name: counted.get(name, 0) for name in names}
        for policy in self._policies:
            totals[f"starved.{policy}"] = sum(seconds_starved(page, policy) for page in learners.values())
            name = f"version.{policy}"
            totals[name] = max((page[name] for page in learners.values() if name in page), default=0)
        self._looks.append((now, totals))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _WINDOW:
            self._looks.popleft()
        acting = {key: page for key, page in actors.items() if key in living}
        return {
            policy: {**self._of(policy, acting), "adoption_lag": adoption_lag.get(policy, 0.0)}
            for policy in self._policies
        }

    def _of(self, policy: str, acting: Pages) -> dict[str, float]:
        room = self.credits.get(policy, 0) * len(acting)
        flight = sum_counters(acting.values(), f"flight.{policy}")
        return {
            "segments_produced_per_second": self._rate(f"produced.{policy}"),
            "segments_received_per_second": self._rate(f"received.{policy}"),
            "segments_trained_per_second": self._rate(f"trained.{policy}"),
            "train_steps_per_second": self._rate(f"steps_made.{policy}"),
            "versions_per_second": self._rate(f"version.{policy}"),
            "starvation": min(1.0, self._rate(f"starved.{policy}")),
            "blocked": min(1.0, self._rate(f"waits.credit.{policy}") / max(1, len(acting))),
            "in_flight": float(flight),
            "queue_fill": flight / room if room else 0.0,
        }

    def _rate(self, name: str) -> float:
        (then, before), (now, after) = self._looks[0], self._looks[-1]
        return max(0.0, after[name] - before.get(name, 0.0)) / (now - then) if now > then else 0.0


def seconds_starved(page: Page, policy: str) -> float:
    """Seconds that the learner of `policy` waited for data. A process tells each of its policies an equal part of what
    it waited, so that the parts add up to its time; but all of them have waited for as long as it has."""
    own = page.get(f"waits.data.{policy}", 0.0)
    return own * sum(name.startswith("waits.data.") for name in page) if own else 0.0


_WAITS = 0.15
"""Share of the time from which on somebody is said to wait."""
_FULL = 0.9
"""Share of the processors from which on more processes gain nothing."""
_LATE = 2.0
"""Seconds of publications that actors have not adopted from which on weights are said to be late."""


def bottleneck(
    blocked: float,
    starved: float,
    apart: bool = False,
    late: float = 0.0,
    processors: float = 0.0,
    crowded: bool = False,
) -> str:
    """What a run waits for. `blocked`: share of the time that actors wait for credit; `starved`: that learners wait for
    data; `apart`: some are on other machines; `late`: seconds of publications that no actor has adopted; `processors`:
    share of the machine's that are busy; `crowded`: there are more learners than processors.

    Where both ends wait for each other across a network, it is what lies between them that is slow. Where all
    processors are busy, learners that wait for actors gain nothing by more of these; and where learners crowd them out,
    it is chance who seems to wait for whom.
    """
    full = processors >= _FULL
    if full and crowded:
        return "processor-bound"
    if max(blocked, starved) < _WAITS:
        return "weight-bound" if late > _LATE else "balanced"
    if apart and min(blocked, starved) >= _WAITS:
        return "network-bound"
    if blocked > starved:
        return "learner-bound"
    return "processor-bound" if full else "actor-bound"


class ProcessorUse:
    """How busy they were, from look to look."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float, float]] = deque()
        self._first: tuple[float, float, float] | None = None

    def look(self) -> None:
        """Reads how long they have been busy."""
        now = time.monotonic()
        self._looks.append((now, *_seconds(now)))
        self._first = self._first or self._looks[0]
        while len(self._looks) > 2 and now - self._looks[1][0] >= _WINDOW:
            self._looks.popleft()

    def share(self, whole: bool = False) -> float:
        """The part of them that was busy over the last seconds, or since the first look, in [0, 1]."""
        if self._first is None:
            return 0.0
        (_, before, then), (_, busy, there) = self._first if whole else self._looks[0], self._looks[-1]
        return min(1.0, (busy - before) / (there - then)) if there > then else 0.0


def _seconds(now: float) -> tuple[float, float]:
    """(busy, there were) of processors since some moment: of the control group where it has less than the affinity."""
    used, most = affinity(), quota()
    if most < len(used):
        told = dict(line.split() for line in (GROUP / "cpu.stat").read_text().splitlines())
        return int(told["usage_usec"]) / 1e6, most * now
    times = [one for number, one in enumerate(psutil.cpu_times(percpu=True)) if number in used]
    there = sum(map(sum, times))
    return there - sum(one.idle + getattr(one, "iowait", 0.0) for one in times), there
