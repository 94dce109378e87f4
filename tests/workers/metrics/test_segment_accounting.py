"""The books balance whatever died when: each case plays a run in numbers and then reads only what it left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.experience.receipt_log import FORGOTTEN
from workers.metrics.segment_accounting import segment_balance, sum_counters, unacknowledged

Key = tuple[str, int]


@dataclass
class History:
    """Pages, ledger and farewells of a run of one policy, as the workers would have left them."""

    actors: dict[Key, dict[str, float]] = field(default_factory=dict)
    learners: dict[Key, dict[str, float]] = field(default_factory=dict)
    ledger: dict[Key, tuple[int, int]] = field(default_factory=dict)
    clean: set[Key] = field(default_factory=set)
    gave_up: set[Key] = field(default_factory=set)

    def books(self, ledgers: bool = True) -> dict[str, Any]:
        """The summary's part."""
        known = {"p": self.ledger} if ledgers else {}
        return segment_balance(["p"], self.actors, self.learners, known, self.clean, self.gave_up)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Actors produce, drop and ship; learner incarnations take a part each, and may die in the middle of any of it."""
    history = History()
    learners = [("learner-p", i + 1) for i in range(draw(st.integers(1, 3)))]
    history.learners = {key: dict.fromkeys(("received.p", "trained.p", "held.p", "rejected.p"), 0) for key in learners}
    for i in range(draw(st.integers(1, 3))):
        key = ("actor-0", i + 1)
        made, gone = draw(st.integers(0, 50)), 0
        settled = 0
        for learner in learners:
            took = draw(st.integers(0, made - settled))
            torn = draw(st.integers(0, min(took, 2)))
            page = history.learners[learner]
            stale = draw(st.integers(0, min(took - torn, 3)))
            page["received.p"] += took - torn - stale
            page["dropped.recycled.p"] = page.get("dropped.recycled.p", 0) + torn
            page["dropped.stale.p"] = page.get("dropped.stale.p", 0) + stale
            settled += took
        gone = draw(st.integers(0, made - settled))
        history.actors[key] = {
            "produced.p": made,
            "dropped.overwritten.p": gone // 2,
            "dropped.no_credit.p": gone - gone // 2,
            "flight.p": made - settled - gone,
        }
        history.ledger[key] = (settled, settled)
        if draw(st.booleans()):
            history.clean.add(key)
    for learner in learners:
        page = history.learners[learner]
        page["trained.p"] = draw(st.integers(0, int(page["received.p"])))
        page["rejected.p"] = draw(st.integers(0, int(page["received.p"] - page["trained.p"])))
        page["held.p"] = page["received.p"] - page["trained.p"] - page["rejected.p"]
        if draw(st.booleans()):
            history.clean.add(learner)
    return history


def balanced(books: dict[str, Any]) -> bool:
    """Both identities."""
    dropped = sum(books["dropped"].values())
    return bool(
        books["produced"] == books["received"] - books["duplicates"] + books["in_flight"] + dropped
        and books["received"]
        == books["trained"] + books["duplicates"] + books["rejected"] + books["held"] + books["lost_in_learner"]
    )


@settings(max_examples=150, deadline=None)
@given(histories())
def test_both_identities_hold_exactly_and_no_number_is_negative(history: History) -> None:
    books = history.books()
    assert balanced(books), books
    assert books["unexplained"] == 0
    assert min(v for v in (*books["dropped"].values(), *(b for b in books.values() if isinstance(b, int)))) >= 0


@settings(max_examples=50, deadline=None)
@given(histories(), st.data())
def test_what_a_ledger_put_together_is_in_the_books_as_much_as_before(history: History, data: st.DataObject) -> None:
    before, lost = history.books(), ("actor_lost", "undelivered")
    forgotten = data.draw(st.lists(st.sampled_from(sorted(history.ledger)), min_size=1, unique=True))
    history.ledger[FORGOTTEN] = 0, sum(history.ledger.pop(key)[1] for key in forgotten)
    after = history.books()
    assert balanced(after), after
    assert {**after, "dropped": ...} == {**before, "dropped": ...}
    assert sum(after["dropped"][cause] for cause in lost) == sum(before["dropped"][cause] for cause in lost)


@settings(max_examples=50, deadline=None)
@given(histories(), st.integers(1, 9))
def test_a_learner_killed_between_counting_and_settling_received_that_twice(history: History, twice: int) -> None:
    """Its successor receives the same segments again: they are duplicates."""
    dead = ("learner-p", 0)
    history.learners[dead] = {"received.p": twice, "trained.p": 0, "held.p": twice}
    books = history.books()
    assert balanced(books), books
    assert books["duplicates"] == twice


@settings(max_examples=50, deadline=None)
@given(histories(), st.integers(1, 9))
def test_an_actor_killed_between_finishing_and_counting_still_made_what_the_learner_has(
    history: History, uncounted: int
) -> None:
    history.actors["actor-0", 9] = {"produced.p": 0}
    history.ledger["actor-0", 9] = (uncounted, uncounted)
    history.learners["learner-p", 1]["received.p"] += uncounted
    history.learners["learner-p", 1]["trained.p"] += uncounted
    books = history.books()
    assert balanced(books), books
    assert books["dropped"]["actor_lost"] >= 0


def test_what_a_lost_actor_finished_and_nobody_knows_is_lost_with_it() -> None:
    history = History(actors={("actor-0", 1): {"produced.p": 10, "flight.p": 4}}, ledger={("actor-0", 1): (6, 6)})
    history.learners = {("learner-p", 1): {"received.p": 6, "trained.p": 4, "held.p": 2}}
    history.clean = {("learner-p", 1)}
    books = history.books()
    assert books["dropped"]["actor_lost"] == 4
    assert (books["in_flight"], books["held"]) == (0, 2)
    history.clean.add(("actor-0", 1))
    books = history.books()
    assert (books["dropped"]["undelivered"], books["dropped"]["actor_lost"], books["in_flight"]) == (4, 0, 0)
    history.clean.remove(("actor-0", 1))
    history.gave_up.add(("actor-0", 1))
    books = history.books()
    assert (books["dropped"]["undelivered"], books["dropped"]["actor_lost"], books["unexplained"]) == (4, 0, 0)
    history.actors["actor-0", 1]["flight.p"] = 1  # an error came between finishing and counting
    books = history.books()
    assert (books["dropped"]["undelivered"], books["dropped"]["actor_lost"], books["unexplained"]) == (1, 3, 0)
    history.clean.remove(("learner-p", 1))
    assert (history.books()["held"], history.books()["lost_in_learner"]) == (0, 2)


def test_without_a_ledger_the_actors_own_levels_count() -> None:
    history = History(actors={("actor-0", 1): {"produced.p": 10, "backlog.p": 2, "flight.p": 3}})
    history.learners = {("learner-p", 1): {"received.p": 5, "trained.p": 5}}
    history.clean = {("actor-0", 1), ("learner-p", 1)}
    books = history.books(ledgers=False)
    assert (books["dropped"]["undelivered"], books["in_flight"]) == (5, 0)
    assert balanced(books)


def test_what_an_actor_owes_is_in_its_backlog_or_on_its_way_whatever_the_policy() -> None:
    assert unacknowledged({"backlog.p": 2, "flight.p": 3, "flight.q": 4, "produced.p": 9, "waits.credit.p": 1.5}) == 9
    assert unacknowledged({"produced.p": 9}) == 0


def test_totals_skip_what_a_page_lacks() -> None:
    assert sum_counters([{"a": 1, "b": 2.0}, {"b": 3}, {}], "a", "b") == 6


def test_what_an_actor_sent_and_never_counted_is_named_and_the_books_hold() -> None:
    """A client with a bug, or one that lies: valid segments, and a farewell that says that there were fewer."""
    history = History(actors={("actor-0", 1): {"produced.p": 2, "flight.p": 1}}, ledger={("actor-0", 1): (9, 9)})
    history.learners = {("learner-p", 1): {"received.p": 9, "trained.p": 9}}
    history.clean = {("actor-0", 1), ("learner-p", 1)}
    books = history.books()
    assert balanced(books), books
    assert (books["produced"], books["uncounted"], books["unexplained"]) == (9, 7, 0)


def test_a_segment_that_vanishes_between_workers_that_left_in_order_is_unexplained_and_breaks_the_identity() -> None:
    """The actor says that nothing is under way, the ledger knows nine of ten: one was lost on the way."""
    history = History(actors={("actor-0", 1): {"produced.p": 10, "flight.p": 0}}, ledger={("actor-0", 1): (10, 9)})
    history.learners = {("learner-p", 1): {"received.p": 9, "trained.p": 9}}
    history.clean = {("actor-0", 1), ("learner-p", 1)}
    books = history.books()
    assert books["unexplained"] == 1
    assert not balanced(books)


def test_a_segment_counted_twice_by_a_learner_that_left_in_order_is_unexplained() -> None:
    history = History(actors={("actor-0", 1): {"produced.p": 10}}, ledger={("actor-0", 1): (10, 10)})
    history.learners = {("learner-p", 1): {"received.p": 11, "trained.p": 11}}
    history.clean = {("actor-0", 1), ("learner-p", 1)}
    assert history.books()["unexplained"] == -1
