"""What the workers of a run have counted, as its coordinator knows it: their pages where it can see them, and the last
heartbeat of each where it cannot. In flows: the members, the books. Out flows: counters by worker, and sums of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workers.coordination.membership import Membership
from workers.metrics.run_metrics import RunMetrics
from workers.metrics.segment_accounting import Page, rows_learned, sum_counters

__all__ = ["WorkerCounters"]

Pages = dict[tuple[str, int], Page]
"""(worker, incarnation) -> its counters."""


class WorkerCounters:
    """One run's."""

    def __init__(self, members: Membership, books: RunMetrics) -> None:
        self._members, self._books = members, books

    def actors(self) -> Pages:
        """Of all there ever were."""
        return {**self._members.counters("actor"), **self._books.pages("actor*")}

    def learners(self) -> Pages:
        """Of all there ever were."""
        return {**self._members.counters("learner"), **self._books.pages("learner*")}

    def steps(self) -> dict[tuple[str, int], int]:
        """Agent steps that each actor made, in lock-step those before the cut from which it went on included."""
        return _steps(self.actors())

    def steps_of(self, actor: str) -> dict[int, int]:
        """The same of one actor, by incarnation: to read all pages for each of a thousand that join takes longer than
        their leases."""
        kept = {key: page for key, page in self._members.counters("actor").items() if key[0] == actor}
        return {number: made for (_, number), made in _steps({**kept, **self._books.pages(actor)}).items()}

    def restarts(self, learned: Iterable[str]) -> dict[str, int]:
        """Of workers, and of what is `learned` and went on within its cohort."""
        pages = self.learners().values()
        again = {f"policy {name}": sum_counters(pages, f"member_restarts.{name}") for name in learned}
        return {**self._members.restarts, **{name: count for name, count in again.items() if count}}

    def trained_on(self, parts: Mapping[str, float]) -> bool:
        """Whether every policy was trained on its part of the rows."""
        pages = self.learners()
        return all(rows_learned(pages, name) >= part for name, part in parts.items())


def _steps(pages: Pages) -> dict[tuple[str, int], int]:
    made = ("agent_steps", "resumed_steps")
    return {key: sum(int(page.get(name, 0)) for name in made) for key, page in pages.items()}
