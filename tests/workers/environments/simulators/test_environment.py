"""Simulators as the copies of a world: what a learner is told is what they did, step by step."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from numpy.typing import NDArray

from protocol.clients.python import cartpole, noise
from protocol.config.run import EnvironmentConfig, parse_run
from protocol.errors import ConfigurationError, EnvironmentFault, Timeout
from protocol.simulator.async_client import AsyncSimulator
from protocol.simulator.client import RunOver, Simulator
from protocol.simulator.connection import addresses_of
from protocol.simulator.serve import serve
from tests.faults import raises
from tests.waiting import until
from tests.workers.environments.simulators.serving import serving
from workers.environments.base import Turn
from workers.environments.registry import make
from workers.environments.simulators.simulator_settings import environment_for_actor
from workers.planning.policy_plan import plan_policies


def act_for_ever(sim: Simulator) -> None:
    """Until it is told that there will be no more."""
    while True:
        sim.act([3.0, 0.0])


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
    assert served.figures() == {}
    rows = served.rows()
    assert [(float(row.seen[0]), int(row.action), row.reward, row.end) for row in rows] == [
        (0.0, 0, 10.0, ""),
        (1.0, 1, 20.0, ""),
        (2.0, 2, 5.0, "terminated"),
        (4.0, 4, 7.0, "truncated"),
        (7.0, 7, 0.0, "truncated"),
    ]
    assert [row.final.tolist() for row in rows[3:]] == [[6.0, 0.5], [7.0, 0.0]]


def test_the_end_of_a_run_reaches_every_simulator() -> None:
    ended = []

    def drive(name: str, address: str) -> None:
        with Simulator(address, name) as sim:
            try:
                while True:
                    sim.act([1.0, 0.0])
            except RunOver as over:
                ended.append(str(over))

    with serving() as served:
        threads = [threading.Thread(target=drive, args=(f"sim-{k}", served.address)) for k in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: min(len(served.rows(copy=copy)) for copy in range(2)) > 50)  # both are let in
    for thread in threads:
        thread.join(60)
    assert len(ended) == 2


def test_simulators_of_asyncio_are_served_side_by_side() -> None:
    async def drive(address: str, name: str, first: int) -> list[int]:
        async with AsyncSimulator(address, name) as sim:
            done = [int(await sim.act([float(first + k), 0.0], 1.0 if k else 0.0)) for k in range(4)]
            await sim.end_episode(1.0)
            return done

    async def both(address: str) -> list[list[int]]:
        return [*await asyncio.gather(drive(address, "one", 0), drive(address, "two", 4))]

    with serving() as served:
        assert asyncio.run(both(served.address)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        served.settle()
    assert sorted(row.reward for copy in range(2) for row in served.rows(copy=copy)) == [1.0] * 8


def test_whoever_gives_up_connecting_in_asyncio_holds_up_nobody_and_hangs_up() -> None:
    """Its thread goes on until it is let in, or nobody answered; then it says farewell."""

    async def enter(address: str) -> None:
        async with AsyncSimulator(address, "robot", patience=600.0):
            pass

    async def give_up(address: str) -> float:
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(enter(address), 0.3)
        return time.monotonic() - begin

    with serving(copies=1) as served:
        with Simulator(served.address, "other") as other:
            assert other.act([1.0, 0.0]) == 1
            assert asyncio.run(give_up(served.address)) < 60.0
        until(lambda: served.figures()["simulators_left"] == 2, what="both hung up")


def test_what_is_not_in_the_space_is_told_before_it_is_sent() -> None:
    with serving() as served, Simulator(served.address, "one") as sim:
        for wrong, kind, facts in (
            ([1.0], "array_shape_wrong", {"field": "walker: observation", "expected": [2], "value": [1]}),
            (["a", "b"], "array_type_wrong", {"field": "walker: observation", "expected": "float32"}),
            ([float("nan"), 1.0], "simulator_value_not_finite", {"agent": "walker", "field": "observation"}),
        ):
            with raises(EnvironmentFault, kind, **facts):
                sim.act(wrong)
        assert sim.act([3.0, 0.0]) == 3
        with raises(EnvironmentFault, "world_lacks_agent", agent="runner", choices="walker"):
            sim.act([3.0, 0.0], agent="runner")


def test_an_action_is_there_before_the_step_that_it_belongs_to_and_is_sent_once() -> None:
    with serving(copies=1) as served:
        had, step = threading.Event(), served.environment.step

        def slowly(actions: Sequence[NDArray[Any]]) -> Turn:
            served.environment.preview_actions(actions)
            assert not actions or had.wait(60)
            return step(actions)

        served.environment.step = slowly  # type: ignore[method-assign]
        with Simulator(served.address, "one") as sim:
            assert sim.act([3.0, 0.0]) == 3
            had.set()
            assert sim.act([5.0, 0.0], 1.0) == 5
            sim.end_episode(2.0)
            served.settle()
        assert [(row.action, row.reward) for row in served.rows()] == [(3, 1.0), (5, 2.0)]
        assert served.figures()["simulators_acts"] == 2


def test_nobody_answers_is_told_in_time() -> None:
    reason = "no actor answered at tcp://127.0.0.1:9"
    with raises(Timeout, "simulator_not_admitted", seconds=0.2, reason=reason):
        Simulator("tcp://127.0.0.1:9", "one", patience=0.2).__enter__()


@pytest.mark.parametrize("served_once", [False, True])
def test_who_comes_when_the_run_has_ended_is_told_so_at_once(tmp_path: Path, served_once: bool) -> None:
    (tmp_path / "summary.json").write_text("{}")
    if served_once:
        (tmp_path / "simulators").mkdir()
        (tmp_path / "simulators" / "actor-0.json").write_text('{"address": "tcp://127.0.0.1:9", "pid": 1}')
    with pytest.raises(RunOver, match="the run has ended"):
        Simulator(tmp_path, "one", patience=600.0).__enter__()
    assert cartpole.main(tmp_path, "one") == noise.main(tmp_path, "one") == 0
    assert serve(gymnasium.make("CartPole-v1"), tmp_path, "one") == 0


def test_a_summary_from_before_the_coordinator_that_is_there_now_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "coordinator.json").write_text("{}")
    os.utime(tmp_path / "summary.json", (1_000, 1_000))
    with raises(Timeout, "simulator_not_admitted", reason="no actor serves yet"):
        Simulator(tmp_path, "one", patience=0.2).__enter__()
    os.utime(tmp_path / "coordinator.json", (999, 999))
    with pytest.raises(RunOver):
        Simulator(tmp_path, "one").__enter__()


def test_who_waits_for_an_actor_that_is_silent_when_the_run_has_ended_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "simulators").mkdir()
    with serving() as served:
        (tmp_path / "simulators" / "actor-0.json").write_text(json.dumps({"address": served.address, "pid": 1}))
        silent, step = threading.Event(), served.environment.step

        def never(actions: Sequence[NDArray[Any]]) -> Turn:
            assert silent.wait(60)
            return step(actions)

        with Simulator(tmp_path, "one", patience=600.0) as sim:
            served.environment.step = never  # type: ignore[method-assign]
            (tmp_path / "summary.json").write_text("{}")
            try:
                with pytest.raises(RunOver, match="the run has ended"):
                    act_for_ever(sim)
            finally:
                silent.set()


def test_an_address_that_is_still_being_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "simulators").mkdir()
    (tmp_path / "simulators" / ".actor-0.json").write_text('{"addr')
    assert addresses_of(tmp_path) == []


def test_a_turn_without_anybody_lets_the_actor_go_on() -> None:
    """Weights, routes and the order to stop are looked at in between."""
    with serving() as served:
        until(lambda: served.empty > 3, what="empty turns")


@pytest.mark.parametrize(
    ("keys", "kind", "key"),
    [
        ({"processes": 2}, "simulators_with_processes", "processes"),
        ({"turn_mode": "sequential"}, "simulators_with_turn_mode", "turn_mode"),
        ({"settings": {}}, "environment_setting_invalid", "settings.world"),
        ({"settings": {"world": "missing.json"}}, "simulator_world_unreadable", "settings.world"),
        ({"settings": {"world": "matrix_game"}}, "simulators_with_payoffs", "settings.world"),
        ({"settings": {"world": {}, "internal": 1}}, "simulator_world_not_playable", "settings.world"),
        ({"settings": {"world": "treasure_hunt", "prot": 1}}, "unknown_environment_setting", "settings.prot"),
        ({"id": "collection", "members": {"a": {"id": "external"}}}, "external_environment_as_member", "members"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(keys: dict[str, Any], kind: str, key: str) -> None:
    base: dict[str, Any] = {"id": "external", "copies": 2, "settings": {"world": "memory"}}
    if "members" in keys:
        del base["settings"]
    with raises(ConfigurationError, kind, key=f"environment.{key}"):
        make(EnvironmentConfig.model_validate(base | keys))


def test_the_first_actors_play_the_world_of_simulators_themselves_where_that_is_wanted() -> None:
    data: dict[str, Any] = {"id": "external", "copies": 3, "settings": {"world": "memory", "internal": 2}}
    data["settings"]["world_settings"] = {"delay": 4}
    run = parse_run({"environment": data, "actors": 3})
    assert [environment_for_actor(run, index).id for index in range(3)] == ["memory", "memory", "external"]
    own = environment_for_actor(run, 0)
    assert (own.copies, own.settings) == (3, {"delay": 4})
    assert make(own).world == make(run.environment).world
    with raises(ConfigurationError, "no_actor_left_for_simulators", key="environment.settings.internal"):
        plan_policies(parse_run({"environment": data, "actors": 2}), make(own).world)


def test_simulators_are_never_played_in_one_process() -> None:
    world = make(EnvironmentConfig(id="external", copies=2, settings={"world": "memory"}))
    with raises(EnvironmentFault, "simulators_need_actor_process", key="environment.id"):
        world.reset(0)
