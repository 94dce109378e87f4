"""Simulators as the copies of a world: what a learner is told is what they did, step by step."""

from __future__ import annotations

import threading

import pytest

from protocol.simulator import RunOver, Simulator
from tests.flows.runs import until
from tests.workers.environments.simulators.serving import serving


def play_three(sim: Simulator) -> None:
    """An episode that ends by itself, one that is cut, and one that goes on."""
    assert [sim.act([float(k), 0.0], reward=10.0 * k if k else 0.0) for k in range(3)] == [0, 1, 2]
    sim.end_episode(5.0)
    assert sim.act([4.0, 0.0]) == 4
    sim.end_episode(7.0, truncated=True, observation=[6.0, 0.5])
    assert sim.act([7.0, 0.0]) == 7


def test_a_simulator_that_drives_is_a_stream_of_whole_episodes_I8() -> None:
    """I8: rewards go to the action that earned them, ends to the last one, a cut one with what was seen last."""
    with serving() as served:
        with Simulator(served.address, "one") as sim:
            play_three(sim)
        served.settle()
    rows = served.rows()
    assert [(float(row.seen[0]), int(row.action), row.reward, row.end) for row in rows] == [
        (0.0, 0, 10.0, ""),
        (1.0, 1, 20.0, ""),
        (2.0, 2, 5.0, "terminated"),
        (4.0, 4, 7.0, "truncated"),
        (7.0, 7, 0.0, "truncated"),
    ]
    assert [row.final.tolist() for row in rows[3:]] == [[6.0, 0.5], [7.0, 0.0]]


@pytest.mark.parametrize("_", range(3))
def test_the_end_of_a_run_reaches_every_simulator(_: int) -> None:
    ended = []

    def drive(name: str, address: str) -> None:
        with Simulator(address, name, patience=5.0) as sim:
            try:
                while True:
                    sim.act([1.0, 0.0])
            except RunOver as over:
                ended.append(str(over))

    with serving() as served:
        threads = [threading.Thread(target=drive, args=(f"sim-{k}", served.address)) for k in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: sum(len(served.rows(copy=copy)) for copy in range(2)) > 100)
    for thread in threads:
        thread.join(10)
    assert len(ended) == 2
