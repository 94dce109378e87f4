"""The books of a run: what became of every finished segment, from the pages that survive any worker. Pure.

produced = (received - duplicates) + in_flight + sum(dropped)        (produced by actors, or read from datasets)

A run that has ended has nothing of its actors in flight any more: it arrived, or it is dropped, and named.
received = trained + duplicates + rejected + held + lost_in_learner
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from protocol.experience.receipt_log import FORGOTTEN

Page = Mapping[str, float]
Pages = Mapping[tuple[str, int], Page]
"""(worker, incarnation) -> its counters."""

RELEASED = "released"
"""What an actor measures of a policy that was retired, and to which it sends nothing any more."""


def sum_counters(pages: Iterable[Page], *names: str) -> int:
    """Sum of the named counters over pages; a page may lack some."""
    return int(sum(page.get(name, 0) for page in pages for name in names))


def summed(pages: Iterable[Page]) -> dict[str, float]:
    """Sums of all counters over pages."""
    total: dict[str, float] = {}
    for page in pages:
        for name, value in page.items():
            total[name] = total.get(name, 0) + value
    return total


def unacknowledged(page: Page) -> int:
    """Segments that an actor had finished and no learner had acknowledged, by its own levels."""
    return int(sum(level for name, level in page.items() if name.startswith(("backlog.", "flight."))))


def rows_learned(learners: Pages, policy: str) -> int:
    """Rows of a dataset in the weights of `policy`, as the newest incarnation of its learner says."""
    name = f"rows_learned.{policy}"
    having = {key[1]: page for key, page in learners.items() if name in page}
    return int(having[max(having)][name]) if having else 0


def environment_books(
    policies: Iterable[str], members: Collection[str], actors: Pages
) -> dict[str, dict[str, dict[str, float | None]]]:
    """policy -> member of a collection -> `episodes` that ended there and `return_mean`; empty without members."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for policy in policies if members else ():
        found[policy] = {}
        for member in members:
            episodes, returns = (
                sum(page.get(f"{kind}.{policy}/{member}", 0) for page in actors.values())
                for kind in ("episodes", "returns")
            )
            found[policy][member] = {"episodes": int(episodes), "return_mean": returns / episodes if episodes else None}
    return found


def segment_balance(
    policies: Iterable[str],
    actors: Pages,
    learners: Pages,
    ledgers: Mapping[str, Mapping[tuple[str, int], tuple[int, int]]],
    clean: set[tuple[str, int]],
    gave_up: Collection[tuple[str, int]] = (),
) -> dict[str, Any]:
    """The `segments` part of a run's summary.

    Both identities are checks where every worker left in order: what the actors' own levels, the ledgers and the
    learners' counters do not agree on is `unexplained`, which is 0 in a sound run and breaks the first identity if not.

    `ledgers`: policy -> (actor, incarnation) -> (highest settled number, segments settled); `clean`: worker
    incarnations that left in order; `gave_up`: those that said farewell with an error. What a lost actor had
    finished and no ledger knows is `dropped.actor_lost`, and `dropped.undelivered` what one that said farewell
    still had; what a lost learner had received and not trained is `lost_in_learner`. What one that left in order
    sent and never counted is `uncounted`, and in `produced` all the same: it was made, only not by its own count. What
    actors that a ledger put together (`FORGOTTEN`) had finished and nobody settled is `actor_lost`.
    """
    books: dict[str, Any] = dict.fromkeys(
        (
            "produced",
            "received",
            "duplicates",
            "trained",
            "rejected",
            "in_flight",
            "held",
            "lost_in_learner",
            "torn",
            "uncounted",
            "unexplained",
        ),
        0,
    )
    dropped = dict.fromkeys(("overwritten", "no_credit", *_UNREAD, "actor_lost", "undelivered"), 0)
    for policy in policies:
        settled = ledgers.get(policy)
        forgotten = None if settled is None else settled.get(FORGOTTEN)
        together: list[Page] = []
        for key, page in actors.items():
            if forgotten is not None and settled is not None and key not in settled:
                together.append(page)  # whether it is one of them, or had nothing settled, is not known any more
                continue
            known = None if settled is None else settled.get(key, (0, 0))
            _enter_actor(books, dropped, page, policy, known, key in clean, key in gave_up)
        if forgotten is not None:
            _enter_actor(books, dropped, summed(together), policy, forgotten, False, False)
        arrived = 0
        for key, page in learners.items():
            arrived += _enter_learner(books, dropped, page, policy, key in clean)
        again = 0 if settled is None else arrived - sum(count for _, count in settled.values())
        if again > 0 and not clean.issuperset(learners):  # killed between counting what it had copied and settling it
            books["duplicates"] += again
            books["lost_in_learner"] -= again
        else:
            books["unexplained"] -= again
    books["dropped"] = dropped
    return books


def _enter_actor(
    books: dict[str, int],
    dropped: dict[str, int],
    page: Page,
    policy: str,
    settled: tuple[int, int] | None,
    left: bool,
    gave_up: bool,
) -> None:
    made = int(page.get(f"produced.{policy}", 0))
    gone = 0
    for cause in ("overwritten", "no_credit"):
        count = int(page.get(f"dropped.{cause}.{policy}", 0))
        dropped[cause] += count
        gone += count
    level = int(page.get(f"backlog.{policy}", 0)) + int(page.get(f"flight.{policy}", 0))
    books["produced"] += made
    if settled is None:  # no ledger to be seen from here: the actor's own levels
        dropped["undelivered" if left or gave_up else "actor_lost"] += level
        return
    open_ = made - gone - settled[1]
    if left and open_ < 0:
        books["produced"] -= open_
        books["uncounted"] -= open_
    elif left:  # its last acknowledgement may have been lost: no more than its own level can be open
        undelivered = min(open_, level)
        dropped["undelivered"] += undelivered
        books["unexplained"] += open_ - undelivered
    else:
        # Killed between finishing segments and counting them, while the learner took them from its ring.
        books["produced"] -= min(0, open_)
        undelivered = min(max(0, open_), level) if gave_up else 0
        dropped["undelivered"] += undelivered
        dropped["actor_lost"] += max(0, open_) - undelivered


def _enter_learner(books: dict[str, int], dropped: dict[str, int], page: Page, policy: str, left: bool) -> int:
    """Returns how many segments were settled, as far as this page knows."""
    parts = {k: int(page.get(f"{k}.{policy}", 0)) for k in _PARTS}
    read = int(page.get(f"read.{policy}", 0))
    books["produced"] += read
    books["in_flight"] += max(0, read - parts["received"])  # killed before it had taken all of it
    gone = 0
    for cause in _UNREAD:
        count = int(page.get(f"dropped.{cause}.{policy}", 0))
        dropped[cause] += count
        gone += count
    if not left:
        parts["held"] = 0
        books["lost_in_learner"] += parts["received"] - parts["duplicates"] - parts["trained"] - parts["rejected"]
    for name, value in parts.items():
        books[name] += value
    return parts["received"] - parts["duplicates"] + gone


_UNREAD = ("recycled", "stale", "frozen")
"""What learners count of those that they settle and do not receive."""
_PARTS = ("received", "duplicates", "trained", "rejected", "held", "torn")
