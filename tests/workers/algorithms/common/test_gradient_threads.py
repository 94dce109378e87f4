"""When a learner computes on two threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.workers.algorithms.test_ppo import updater
from workers.algorithms.common import second_thread
from workers.algorithms.common.gradient_threads import GradientThreads

ROWS = 1000


class Bench:
    """A learner whose updates take a second on one thread, on a clock of its own."""

    def __init__(self) -> None:
        self.now = self.waited = 0.0
        self.update = updater()
        self.threads = GradientThreads("p", self.update, lambda: self.waited, lambda: self.now)

    def learn(self, updates: int, gain: float = 1.0, waits: float = 0.0, slower: float = 1.0) -> list[int]:
        """So many updates, which two threads make `gain` times as fast and something else makes `slower`, each after so
        many seconds without data: the threads of each."""
        used = []
        for _ in range(updates):
            used.append(self.threads.count)
            seconds = slower if used[-1] == 1 else slower / gain
            self.now, self.waited = self.now + seconds + waits, self.waited + waits
            self.threads.updated(ROWS, seconds)
        return used


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.threads.close()


def test_two_threads_stay_where_updates_gain_by_them(bench: Bench) -> None:
    assert bench.learn(40, gain=1.6) == [1, 1, *[2] * 38]
    bench.threads.close()
    assert bench.update.halved is None


def test_a_learner_that_waits_for_data_stays_on_one(bench: Bench) -> None:
    assert bench.learn(40, gain=1.6, waits=0.2) == [1] * 40


def test_an_update_that_was_disturbed_is_not_taken_for_a_slow_one(bench: Bench) -> None:
    bench.learn(1)
    bench.learn(1, slower=4.0)  # beside something else
    used = bench.learn(10, gain=1.05)
    assert used.count(2) == 3, "no more than a try: two threads gain next to nothing"


def test_what_gains_nothing_is_tried_ever_less_often(bench: Bench) -> None:
    used = bench.learn(400, gain=0.8)
    tries = [at for at in range(1, len(used)) if used[at - 1 : at + 1] == [1, 2]]
    gaps = [after - before for before, after in pairwise(tries)]
    assert used.count(2) == 3 * len(tries)
    assert gaps == sorted(gaps)
    assert gaps[0] >= 10
    assert gaps[-1] > 100


def test_faster_updates_that_take_the_core_from_actors_do_not_stay(bench: Bench) -> None:
    """The rate of the whole decides: here the learner waits for what it no longer gets."""
    bench.learn(5, gain=1.6)
    assert bench.threads.count == 2
    used = bench.learn(20, gain=1.6, waits=0.6)
    assert 1 in used
    assert used.index(1) * (1 / 1.6 + 0.6) >= 10  # not at once
    assert used[used.index(1) :].count(2) == 0


def test_a_core_that_is_lost_is_missed(bench: Bench) -> None:
    bench.learn(40, gain=1.8)
    assert bench.threads.count == 2
    used = bench.learn(40, gain=1.1)
    assert used[20:].count(1) > used[20:].count(2), "but for a try now and then"


def test_a_break_is_no_reason_to_change_anything(bench: Bench) -> None:
    """As when a run pauses, or a policy is frozen: nobody waits for data then, and nothing is learned."""
    bench.learn(40, gain=1.6)
    bench.now += 3600
    assert bench.learn(100, gain=1.6) == [2] * 100
    bench.learn(1, waits=0.5)
    before = bench.threads._rate
    bench.now += 3600
    bench.learn(20, gain=1.6)
    assert bench.threads._rate == before


def test_what_one_thread_makes_is_measured_again_now_and_then(bench: Bench) -> None:
    used = bench.learn(2000, gain=1.6)
    assert used.count(1) > 20
    assert used.count(2) > 1900


def test_two_threads_that_pass_and_fail_in_turn_are_tried_ever_less_often(bench: Bench) -> None:
    used = []
    for _ in range(40):
        used += bench.learn(20, gain=1.6)
        used += bench.learn(12, gain=1.6, waits=0.6)
        used += bench.learn(20, gain=1.0)
    tries = [at for at in range(1, len(used)) if used[at - 1 : at + 1] == [1, 2]]
    assert len(tries) < 10


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), TypeError("cannot pickle")])
def test_a_learner_that_cannot_have_a_second_thread_learns_on_one_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    def none(*_: object) -> None:
        raise fault

    monkeypatch.setattr(second_thread.copy, "deepcopy", none)
    assert bench.learn(100, gain=1.6) == [1] * 100
    assert len([line for line in caplog.messages if line.startswith("event=no_second_thread policy=p")]) == 1
