"""Simulators that vanish: what they finished is kept, what they had begun is cut, and nothing is mixed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import Timeout
from protocol.messages.simulator import Admit, Fault, Hello, Observe, Ping, Pong
from protocol.simulator.client import EpisodeCut, RunOver, Simulator
from tests.faults import kinds_in, raises
from tests.waiting import until
from tests.workers.environments.simulators.raw import raw, seen
from tests.workers.environments.simulators.serving import Serving, serving


def vanish(sim: Simulator) -> None:
    """As kill -9 does: the connection ends, nothing is said."""
    sim._line.drop()
    sim.close()


def test_a_lease_that_ends_cuts_the_episode_where_it_was_I12() -> None:
    """I12: the last thing seen is the last observation; who comes back begins another episode in its copy."""
    with serving() as served, raw(served.address) as one:
        one.begin("robot", lease=60.0)
        one.say(Observe(number=2, episode=1, agents=["walker"], rewards=[2.0]), seen(3, 1))
        until(lambda: len(served.rows()) == 2, what="it is heard")
        served.leap(100.0)
        until(lambda: served.rows() and served.rows()[-1].closed, what="it is cut")
        first, last = served.rows()
        assert (first.reward, first.end) == (2.0, "")
        assert (last.reward, last.end, last.final.tolist()) == (0.0, "truncated", [3.0, 1.0])
        faults = [message for _ in range(2) if isinstance(message := one.hear(), Fault)]
        assert [fault.code for fault in faults] == ["unknown"]
        admit = one.enter("robot")
        assert (admit.copy_number, admit.incarnation) == (0, 2)
        assert one.ask(Observe(number=1, episode=1, agents=["walker"]), seen(4, 0)).type == "act"
        assert served.rows()[2].seen.tolist() == [4.0, 0.0]


def test_who_says_anything_keeps_its_lease() -> None:
    with serving() as served, raw(served.address) as one:
        one.begin(lease=60.0)
        for _ in range(6):
            served.leap(30.0)
            assert isinstance(one.ask(Ping()), Pong)
        assert not served.rows()[0].end


def test_a_namesake_is_let_in_as_soon_as_the_first_one_is_gone() -> None:
    """A program that crashed and was started again need not wait for a lease."""
    with serving() as served:
        with raw(served.address) as one, raw(served.address) as other:
            one.begin("robot", lease=1_000.0)
            fault = other.ask(Hello(name="robot", token="another"))
            assert isinstance(fault, Fault)
            assert fault.code == "identity"
            one.socket.close()

            def let_in() -> Any:
                said = other.ask(Hello(name="robot", token="another"))
                return said if isinstance(said, Admit) else None

            admit = until(let_in, what="it is let in")
            assert (admit.incarnation, admit.copy_number) == (2, 0)
        until(lambda: served.rows()[0].end == "truncated", what="the first one's episode is cut")


def wander(served: Serving, number: int, kills: int, finished: list[tuple[float, ...]]) -> None:
    """Drives a simulator that vanishes `kills` times; each observation says who it is, the episode and the step, and
    each step earns the number of the step. What was answered is finished once more is said of it."""
    chance, life, episode = random.Random(number), 0, 0
    while life <= kills:
        life += 1
        sim = Simulator(served.address, f"sim-{number}")
        sim.connect()
        left = chance.randrange(1, 40) if life <= kills else 60
        while left > 0:
            episode += 1
            steps = chance.randrange(1, 9)
            for step in range(steps):
                sim.act([number, 100 * episode + step], float(step - 1) if step else 0.0)
                if step:
                    finished.append((number, 100 * episode + step - 1, step - 1))
                left -= 1
                if left == 0 and life <= kills:
                    break
            else:
                sim.end_episode(float(steps - 1))
                sim.ping()
        if life <= kills:
            vanish(sim)
        else:
            sim.close()


@pytest.mark.parametrize("copies", [5, 7])
def test_simulators_that_vanish_at_any_moment_lose_no_finished_step_and_mix_nothing(copies: int) -> None:
    """Fifty lives end at random; each stream is whole episodes, or their beginnings, one behind the other."""
    finished: list[list[tuple[float, ...]]] = [[] for _ in range(5)]
    with serving(copies=copies) as served:
        threads = [threading.Thread(target=wander, args=(served, n, 10, finished[n])) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        served.settle()
        figures = served.figures()
    assert served.fault is None
    kept: set[tuple[float, ...]] = set()
    for rows in served.streams.values():
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            who, when = row.seen.tolist()
            episode, step = divmod(when, 100)
            if not row.end and following is not None:
                assert following.seen.tolist() == [who, when + 1], "an episode goes on with its own next step"
            if row.end == "truncated":
                assert row.final.tolist() == [who, when], "it was cut where it was"
                assert row.reward == 0.0
            else:
                assert row.reward == step
                kept.add((who, when, row.reward))
            assert following is not None or row.end
            assert episode >= 1
    assert {step for steps in finished for step in steps} <= kept
    assert figures["simulators_admitted"] == 55
    assert figures["simulators_rows_cut"] <= 50


def forget(served: Serving) -> None:
    """As an actor that was started again: it knows nobody."""
    server = served.external._server
    assert server is not None
    assert len(server.guests) == 1
    served.orders.append(lambda: server.disconnect(next(iter(server.guests.values())), "lost", "a test"))
    until(lambda: not served.orders and not server.guests, what="it is forgotten")


def test_a_simulator_finds_an_actor_that_was_started_again(tmp_path: Any) -> None:
    """At the same port, by itself; what it shows next begins another episode."""
    with serving(folder=tmp_path) as served, Simulator(tmp_path, "robot") as sim:
        assert sim.act([1.0, 0.0]) == 1
        forget(served)
        assert sim.act([2.0, 0.0], 5.0) == 2
        assert sim.reconnects == 1
        assert [(row.seen.tolist(), row.reward, row.end) for row in served.rows()] == [
            ([1.0, 0.0], 0.0, "truncated"),
            ([2.0, 0.0], 0.0, ""),
        ]


def test_a_simulator_that_paused_for_longer_than_its_lease_goes_on() -> None:
    """It is told so twice: when the lease ended, and for what it said before it read that."""
    with serving() as served, Simulator(served.address, "robot", lease=60.0) as sim:
        assert sim.act([1.0, 0.0]) == 1
        served.leap(100.0)
        until(lambda: served.figures()["simulators_lost"] == 1, what="its lease ended")
        assert sim.act([2.0, 0.0]) == 2
        assert sim.reconnects == 1


def test_a_simulator_with_a_deadline_finds_an_actor_that_was_started_again() -> None:
    """Though it never waits for long, and what it asked for last was lost with the actor."""
    known: list[Serving] = []

    def forgetful(present: Any) -> Any:
        server = known.pop().external._server if known else None
        if server is not None:
            server.disconnect(next(iter(server.guests.values())), "lost", "a test")
        return np.clip(present.observation[:, 0], 0, 7).astype(np.int64)

    with serving(policy=forgetful) as served, Simulator(served.address, "robot", deadline=0.05) as sim:
        known.append(served)
        assert sim.act([1.0, 0.0]) is None
        assert until(lambda: sim.act([2.0, 0.0])) == 1
        assert sim.reconnects == 1


def test_a_simulator_goes_to_an_actor_that_lives_and_has_a_copy_left(tmp_path: Path) -> None:
    folder = tmp_path / "simulators"
    folder.mkdir()
    (folder / "actor-0.json").write_text('{"address": "tcp://127.0.0.1:1", "pid": 1}\n')
    with serving(copies=1) as full, serving() as served, Simulator(full.address, "other"):
        for number, address in enumerate((full.address, served.address), 1):
            (folder / f"actor-{number}.json").write_text(f'{{"address": "{address}", "pid": 1}}\n')
        with Simulator(tmp_path, "robot") as sim:
            assert sim.act([1.0, 0.0]) == 1
    assert [row.seen.tolist() for row in served.rows()] == [[1.0, 0.0]]


def test_a_simulator_follows_its_actor_to_another_port(tmp_path: Path) -> None:
    """Though it waits for an answer that will never come."""
    with serving(folder=tmp_path), Simulator(tmp_path, "robot") as sim, serving() as served:
        sim._line.drop()
        (tmp_path / "simulators" / "actor-0.json").write_text(f'{{"address": "{served.address}", "pid": 1}}\n')
        assert sim.act([1.0, 0.0]) == 1
        assert sim.reconnects == 1


def test_a_deadline_does_not_hide_that_nobody_is_there_any_more() -> None:
    with serving() as served, Simulator(served.address, "robot", deadline=0.02) as sim:
        assert until(lambda: sim.act([1.0, 0.0])) == 1
        sim._patience = 0.3
        sim._line.drop()  # as a network that carries nothing any more
        with raises(Timeout, "actor_silent", peer=served.address):
            until(lambda: sim.act([2.0, 0.0]))


def test_a_ping_loses_no_action() -> None:
    with serving() as served, Simulator(served.address, "robot") as sim:
        sim.ask({"walker": [3.0, 0.0]})
        until(lambda: served.rows(), what="it was given its action")
        time.sleep(0.1)
        assert sim.ping() == "going"
        assert sim.answer() == {"walker": 3}


def test_a_driven_one_is_told_to_begin_again() -> None:
    with serving() as served, Simulator(served.address, "robot", drives=False) as sim:
        sim.begin()
        assert sim.act([1.0, 0.0]) == 1
        forget(served)
        with pytest.raises(EpisodeCut):
            sim.act([2.0, 0.0], 1.0)
        sim.begin()
        assert sim.act([3.0, 0.0]) == 3


def test_who_is_refused_for_good_is_told_at_once() -> None:
    with serving(copies=1) as served, Simulator(served.address, "one"):
        ended: list[BaseException] = []

        def knock() -> None:
            try:
                with Simulator(served.address, "other", patience=2.0):
                    pass
            except Exception as fault:
                ended.append(fault)

        thread = threading.Thread(target=knock)
        thread.start()
        thread.join(60)
        assert not isinstance(ended[0], RunOver)
        assert kinds_in(str(ended[0])) == ["simulator_copies_taken"]
