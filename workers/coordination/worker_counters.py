"""What the workers of a run have counted, as its coordinator knows it: their pages where it can see them, and the last
heartbeat of each where it cannot. In flows: the members, the books. Out flows: counters by worker, and sums of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping

from protocol.errors import SharedMemoryError
from protocol.messages.core import Role
from protocol.refusal_log import RefusalLog
from workers.coordination.membership import Membership
from workers.metrics.run_metrics import RunMetrics
from workers.metrics.segment_accounting import Page, rows_learned, sum_counters

Pages = dict[tuple[str, int], Page]
"""(worker, incarnation) -> its counters."""


class WorkerCounters:
    """One run's."""

    def __init__(self, members: Membership, books: RunMetrics, refusals: RefusalLog | None = None) -> None:
        self._members, self._books, self._refusals = members, books, refusals or RefusalLog()
        self._believed: dict[tuple[str, int], tuple[float, Page]] = {}
        """Pages, and when they were read, which last were as they can be."""
        self._unread: list[tuple[str, int]] | None = None
        """Whose pages `refresh` has still to read; None: it begins anew."""

    def actors(self) -> Pages:
        """Of all there ever were."""
        return self._all("actor")

    def learners(self) -> Pages:
        """Of all there ever were."""
        return self._all("learner")

    def refresh(self, seconds: float) -> bool:
        """Reads pages for so long at most, where it left off; whether all have been read by now. A look at a thousand
        at once would keep everybody waiting."""
        if self._unread is None:
            self._unread = [*self._books.paged("learner"), *self._books.paged("actor")]
        end = time.monotonic() + seconds
        while self._unread:
            if time.monotonic() >= end:
                return False
            self._page(self._unread.pop())
        self._unread = None
        return True

    def known(self, role: Role) -> Pages:
        """Of all there ever were, as of the last time that their pages were read."""
        paged = {worker: page for worker, (_, page) in self._believed.items() if worker[0].startswith(role)}
        return {**self._members.counters(role), **paged}

    def steps(self) -> dict[tuple[str, int], int]:
        """Agent steps that each actor made, in lock-step those before the cut from which it went on included."""
        return _steps(self.actors())

    def steps_of(self, actor: str) -> dict[int, int]:
        """The same of one actor, by incarnation: to read all pages for each of a thousand that join takes longer than
        their leases."""
        told, found = self._members.counted_by(actor), dict[tuple[str, int], Page]()
        for number in itertools.count(1):
            if (page := self._page((actor, number)) or told.get(number)) is None:
                break
            found[actor, number] = page
        return {number: made for (_, number), made in _steps(found).items()}

    def restarts(self, learned: Iterable[str]) -> dict[str, int]:
        """Of workers, and of what is `learned` and went on within its cohort."""
        pages = self.learners().values()
        again = {f"policy {name}": sum_counters(pages, f"member_restarts.{name}") for name in learned}
        return {**self._members.restarts, **{name: count for name, count in again.items() if count}}

    def _all(self, role: Role) -> Pages:
        paged = {worker: page for worker in self._books.paged(role) if (page := self._page(worker))}
        return {**self._members.counters(role), **paged}

    def _page(self, worker: tuple[str, int]) -> Page | None:
        """Of a worker (name, incarnation), as far as it can be believed; None if there is none."""
        now, (then, before) = time.monotonic(), self._believed.get(worker, (-math.inf, {}))
        try:
            told = self._books.page(*worker)
        except SharedMemoryError as fault:
            self._refusals.tell("claim_not_believed", fault.kind, str(fault), worker=worker[0], incarnation=worker[1])
            return before or None
        if told is None:
            return None
        page = self._members.claims.page(worker, self._members.quota(*worker), told, before, now, then)
        if page is not before:
            self._believed[worker] = now, page
        return page or None

    def trained(self, policies: Iterable[str]) -> int:
        """Rows that they were trained on."""
        pages = self.learners()
        return sum(int(rows_learned(pages, name)) for name in policies)

    def trained_on(self, parts: Mapping[str, float]) -> bool:
        """Whether every policy was trained on its part of the rows."""
        pages = self.learners()
        return all(rows_learned(pages, name) >= part for name, part in parts.items())


def _steps(pages: Pages) -> dict[tuple[str, int], int]:
    made = ("agent_steps", "resumed_steps")
    return {key: sum(int(page.get(name, 0)) for name in made) for key, page in pages.items()}
