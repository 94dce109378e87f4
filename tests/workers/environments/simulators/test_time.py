"""Actions that must come in time, clocks of simulators, and what these are told while training cannot take in more."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from protocol.config.run import PPO
from protocol.errors import ConfigurationError
from protocol.experience.layout import segment_layout
from protocol.messages.simulator import Admit
from protocol.simulator.client import Simulator
from protocol.simulator.encoding import SpaceCodec
from protocol.simulator.fallback import Lateness
from protocol.simulator.session import ObservedStep
from protocol.spaces import Action, Agent, Box, Dict, Discrete, MultiDiscrete, World
from tests.faults import raises
from tests.waiting import until
from tests.workers import scripted
from tests.workers.environments.simulators.serving import Serving, counted, serving
from workers.environments.base import AgentTimeStep
from workers.environments.simulators.latency import WITHIN, LatencyHistogram

DRIVER = Agent(
    name="driver",
    observation=Box(shape=(1,)),
    action=Action(
        space=Dict(
            spaces={
                "gear": Discrete(n=4, start=1),
                "lamps": MultiDiscrete(nvec=(2, 3), start=5),
                "wheel": Box(shape=(2,), low=(0.5, None), high=(1.0, -2.0)),
            }
        ),
        atomic=False,
    ),
    action_mask=True,
)
WORLD = World(id="road", agents=(DRIVER,))
ALL = {"gear": [1] * 4, "lamps": [1] * 5}
ADMIT: dict[str, Any] = {"run": "0", "name": "a", "incarnation": 1, "copy_number": 0, "hash": "0", "world": "{}"}


def agreed(own: tuple[Any, ...], deadline: float = 0.0, fallback: Any = "last") -> Lateness:
    """Of a driver whose run wishes that."""
    admit = Admit(**ADMIT, places=[], lease=1.0, largest=1, rate=1, deadline=deadline, fallback=fallback)
    lateness = Lateness(*own)
    lateness.agree(admit, SpaceCodec(WORLD))
    return lateness


def shown(elements: tuple[str, ...] = (), **masks: list[int]) -> ObservedStep:
    """What the driver sees."""
    return ObservedStep({"driver": [3.0]}, {"driver": {**ALL, **masks}}, elements)


def plain(action: Any) -> Any:
    """As lists."""
    return {name: np.asarray(value).tolist() for name, value in action["driver"].items()}


def test_a_fallback_is_the_default_of_the_space_the_last_action_or_a_script() -> None:
    """What is not legal gives way to the first that is; an action in parts to its part."""
    nothing = {"gear": 1, "lamps": [5, 5], "wheel": [0.5, -2.0]}
    default = agreed((0.1, "default", None))
    assert plain(default.fill(None, shown())) == nothing
    assert plain(default.fill(None, shown(gear=[0, 0, 1, 1], lamps=[0, 1, 0, 0, 1]))) == {
        **nothing,
        "gear": 3,
        "lamps": [6, 7],
    }
    assert plain(default.fill(None, shown(("gear",)))) == {"gear": 1}
    last = agreed((None, None, None), deadline=0.1)
    assert plain(last.fill(None, shown())) == nothing
    done = {"driver": {"gear": 4, "lamps": np.array([6, 6]), "wheel": np.array([0.7, -9.0], np.float32)}}
    assert last.fill(done, shown()) is done
    repeated = plain(last.fill(None, shown(lamps=[1, 1, 1, 0, 0])))
    assert (repeated["gear"], repeated["lamps"], repeated["wheel"][1]) == (4, [6, 5], -9.0)
    script = agreed((None, None, lambda name, seen: (name, seen)), deadline=0.1, fallback="scripted")
    assert script.fill(None, shown()) == {"driver": ("driver", [3.0])}


def test_the_runs_deadline_holds_where_a_simulator_has_none_of_its_own() -> None:
    assert agreed((None, None, None)).deadline is None
    assert agreed((None, "default", None), deadline=0.2).deadline == 0.2
    own = agreed((0.3, None, None), deadline=0.2)
    assert (own.deadline, own.fill(None, shown())) == (0.3, None)
    with raises(ConfigurationError, "fallback_without_script", field="script"):
        agreed((None, None, None), deadline=0.2, fallback="scripted")


def test_a_late_action_is_replaced_as_the_run_says_and_done_late() -> None:
    """Whoever asks is never held up for longer than that."""
    gate = threading.Event()

    def slow(present: AgentTimeStep) -> Any:
        gate.wait(60)
        return counted(present)

    with serving(policy=slow, deadline=0.02, fallback="default") as served, Simulator(served.address, "robot") as sim:
        assert [sim.act([float(seen), 0.0], 1.0 if seen > 3 else 0.0) for seen in (3, 4, 5)] == [0, 0, 0]
        gate.set()
        assert until(lambda: sim.act([6.0, 0.0], 1.0)) == 3
        assert until(lambda: sim.act([7.0, 0.0], 1.0)) == 7
        sim.end_episode(1.0)
        served.settle()
        until(lambda: served.figures()["simulators_late"] >= 3)
    first = served.rows()[0]
    assert (first.seen.tolist(), int(first.action)) == ([3.0, 0.0], 3)
    assert first.reward >= 3.0


def test_the_clock_of_a_simulator_is_kept_with_each_step() -> None:
    clocks: list[float] = []

    def noted(present: AgentTimeStep) -> Any:
        assert present.clock is not None
        clocks.extend(present.clock.tolist())
        return counted(present)

    with serving(policy=noted) as served, Simulator(served.address, "robot") as sim:
        for clock in (5.5, 7.25):
            sim.act([1.0, 0.0], clock=clock)
        sim.act([1.0, 0.0])
    assert clocks == [5.5, 7.25, 0.0]


def test_a_segment_has_a_column_of_clocks() -> None:
    policy = scripted.config(PPO(), 4)
    layout = segment_layout(scripted.WORLD, scripted.WORLD.places[0], policy, clocked=True)
    sender = scripted.Sender(layout, 2, 2)
    seat = scripted.seat(sender, scripted.Performer(), 2)
    for t in range(5):
        present = scripted.present(t, 2)
        present.clock = np.array([0.5, 100.0]) + t
        seat.act(present, scripted.never)
    (records,) = sender.finished
    columns = sender.ring.columns["clock"][records["slot"], :4]
    assert columns.tolist() == [[0.5 + t for t in range(4)], [100.0 + t for t in range(4)]]


def test_whoever_waits_is_told_that_training_cannot_take_in_more_and_when_it_can() -> None:
    """Back-pressure, without having to ask for it; once a wait."""
    blocked, free = threading.Event(), threading.Event()

    def hold(served: Serving, present: AgentTimeStep) -> Any:
        blocked.set()
        while not free.is_set():
            served.environment.poll()
            time.sleep(0.005)
        return counted(present)

    known: list[Serving] = []
    with serving(policy=lambda present: hold(known[0], present)) as served:
        known.append(served)
        with Simulator(served.address, "robot", deadline=0.02, fallback="last") as sim:
            until(lambda: (sim.act([1.0, 0.0]), sim.session.pace)[1] == "waiting")
            assert blocked.is_set()
            assert served.external._server is not None
            assert served.external._server.counts["held"] == 1
            free.set()
            until(lambda: (sim.act([1.0, 0.0]), sim.session.pace)[1] == "going")


def test_a_histogram_of_waits_is_never_reset() -> None:
    latency = LatencyHistogram()
    for seconds in (0.0005, 0.001, 0.02, 0.5, 30.0):
        latency.add(seconds)
    assert latency.take(0.5)[0] == pytest.approx(20_000, rel=0.07)
    assert latency.take(0.5) == []
    assert latency.counts == dict(zip(WITHIN, [2, 2, 3, 4, 5], strict=True))
