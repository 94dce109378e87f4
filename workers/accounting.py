"""The books of a run: what became of every finished segment, from the pages that survive any worker. Pure.

produced = (received - duplicates) + in_flight + sum(dropped)
received = trained + duplicates + rejected + held + lost_in_learner
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Page", "Pages", "segment_books", "total"]

Page = Mapping[str, float]
Pages = Mapping[tuple[str, int], Page]
"""(worker, incarnation) -> its counters."""


def total(pages: Iterable[Page], *names: str) -> int:
    """Sum of the named counters over pages; a page may lack some."""
    return int(sum(page.get(name, 0) for page in pages for name in names))


def segment_books(
    policies: Iterable[str],
    actors: Pages,
    learners: Pages,
    ledgers: Mapping[str, Mapping[tuple[str, int], tuple[int, int]]],
    clean: set[tuple[str, int]],
) -> dict[str, Any]:
    """The `segments` part of a run's summary.

    `ledgers`: policy -> (actor, incarnation) -> (highest settled number, segments settled); `clean`: worker incarnations
    that left in order. What a lost actor had finished and no ledger knows is `dropped.actor_lost`; what a lost learner had
    received and not trained is `lost_in_learner`.
    """
    books: dict[str, Any] = dict.fromkeys(
        ("produced", "received", "duplicates", "trained", "rejected", "in_flight", "held", "lost_in_learner", "torn"), 0
    )
    dropped = {"overwritten": 0, "no_credit": 0, "recycled": 0, "actor_lost": 0}
    for policy in policies:
        settled = ledgers.get(policy, {})
        for key, page in actors.items():
            made = int(page.get(f"produced.{policy}", 0))
            books["produced"] += made
            gone = 0
            for cause in ("overwritten", "no_credit"):
                count = int(page.get(f"dropped.{cause}.{policy}", 0))
                dropped[cause] += count
                gone += count
            number, count = settled.get(key, (0, 0))
            if key in clean:
                books["in_flight"] += _in_flight(page, policy, number)
            else:
                dropped["actor_lost"] += made - gone - count
        for key, page in learners.items():
            parts = {
                k: int(page.get(f"{k}.{policy}", 0))
                for k in ("received", "duplicates", "trained", "rejected", "held", "torn")
            }
            dropped["recycled"] += int(page.get(f"dropped.recycled.{policy}", 0))
            if key not in clean:
                parts["held"] = 0
                books["lost_in_learner"] += (
                    parts["received"] - parts["duplicates"] - parts["trained"] - parts["rejected"]
                )
            for name, value in parts.items():
                books[name] += value
    books["dropped"] = dropped
    return books


def _in_flight(page: Page, policy: str, settled: int) -> int:
    first, last = int(page.get(f"flight_first.{policy}", 0)), int(page.get(f"flight_last.{policy}", 0))
    flight = int(page.get(f"flight.{policy}", 0))
    backlog = int(page.get(f"backlog.{policy}", 0))
    if settled >= last:
        return backlog
    return backlog + (flight if settled < first else last - settled)
