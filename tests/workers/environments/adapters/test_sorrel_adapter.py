"""A gridworld in Sorrel's manner runs unchanged: order of a turn, what is seen, rewards, ends, and its segments."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.workers.environments.worlds import gridworld
from tests.workers.environments.worlds.table import Table
from workers.environments.adapters.sorrel_adapter import SorrelEnvironment
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.environments.registry import make


def worlds(copies: int = 2, mode: Any = "sequential", **settings: Any) -> tuple[SorrelEnvironment, list[Any]]:
    made: list[Any] = []

    def make_one() -> Any:
        made.append(gridworld.make(seed=len(made), **settings))
        return made[-1]

    return SorrelEnvironment("grid", make_one, copies, mode), made


def test_it_is_found_by_its_function() -> None:
    environment = make(EnvironmentConfig(id=f"{gridworld.__name__}:make", copies=3, settings={"max_turns": 9}))
    assert isinstance(environment, SorrelEnvironment)
    assert environment.turn_mode == "sequential"
    assert environment.world.episode_steps == 9
    assert [(one.name, one.action.n) for one in environment.world.agents] == [("agent_0", 5), ("agent_1", 5)]
    assert environment.world.agents[0].observation.shape == (10,), "B15: (1, F) is held as (F,)"
    together = make(EnvironmentConfig(id=f"{gridworld.__name__}:make", copies=1, turn_mode="simultaneous"))
    assert len(together.reset(0).present) == 2


def test_what_has_transitions_changes_first_then_each_agent_sees_what_the_one_before_did_D1_D2() -> None:
    """D1 D2"""
    environment, (one,) = worlds(1, growth=0.0)
    (first,) = environment.reset(0).present
    assert one.world.log == ["soil"] * 7
    assert first.observation[0].reshape(-1)[:9].tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 2]
    turn = environment.step([np.array([1])])
    (second,) = turn.present
    assert (second.agent, turn.env_steps) == (1, 0)
    assert second.observation[0, :9].tolist() == [0, 0, 0, 2, 0, 0, 0, 0, 2]
    turn = environment.step([np.array([4])])
    assert (turn.present[0].agent, turn.env_steps) == (0, 1)
    assert one.world.log == ["soil"] * 7 + ["act 1", "act 4"] + ["soil"] * 7


def test_in_simultaneous_turns_all_see_before_any_acts_D4() -> None:
    """D4"""
    environment, _ = worlds(1, "simultaneous", growth=0.0)
    first, second = environment.reset(0).present
    assert first.observation.tolist() == second.observation.tolist()
    turn = environment.step([np.array([1]), np.array([0])])
    assert turn.env_steps == 1
    assert turn.present[0].observation[0, :9].tolist() == [0, 0, 0, 2, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("mode", ["sequential", "simultaneous"])
def test_of_two_that_reach_for_one_gem_exactly_one_gets_it_D3_D9(mode: Any) -> None:
    """D3 D9: the world's total is the sum of all rewards."""
    environment, (one,) = worlds(1, mode, growth=0.0)
    turn = environment.reset(0)
    told: list[list[float]] = [[], []]
    chosen = {0: [3, 1, 4, 4], 1: [2, 0, 4, 4]}  # to either side of the middle, then into it
    for _ in range(4 if mode == "simultaneous" else 8):
        for present in turn.present:
            told[present.agent].append(present.reward.item())
        if len(told[1]) == 1 and len(told[0]) == 1 and turn.present[-1].agent == 1:
            one.world.map[1, 1] = gridworld.Gem()
        turn = environment.step([np.array([chosen[present.agent].pop(0)]) for present in turn.present])
    assert told == [[0, 0, 5, 0], [0, 0, -1, 0]]
    assert one.world.total_reward == 4


def plain(env: Any, choose: Callable[[], int], turns: int) -> list[list[Any]]:
    """[agents] of rows (seen, action, reward, ended): the loop of the specification, with limits of Sorrel's run."""
    rows: list[list[Any]] = [[], []]
    env.reset()
    for _ in range(turns):
        env.turn += 1
        for entity in env.world.map.flat:
            if entity.has_transitions and not isinstance(entity, gridworld.Mover):
                entity.transition(env.world)
        for k, agent in enumerate(env.agents):
            seen, action = agent.pov(env.world)[0].tolist(), choose()
            rows[k].append([seen, action, agent.act(env.world, action), env.turn >= 7])
        if env.turn >= 7:
            env.reset()
    return rows


def test_its_rows_are_those_of_the_plain_loop() -> None:
    """D2 D7: the same chance and the same actions give the same rows; episodes are cut after the most turns."""
    environment, made = worlds(2)
    chances = [np.random.default_rng(5 + i) for i in range(2)]
    found: list[list[list[Any]]] = [[[], []] for _ in made]
    turn = environment.reset(0)
    for _ in range(2 * 30):
        (present,) = turn.present
        assert present.copies is None
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        for told in news:
            for i in range(2):
                rows = found[i][told.agent]
                if rows and len(rows[-1]) == 2:
                    rows[-1] += [told.reward[i], bool(told.truncated[i])]
                assert not told.terminated[i]
        for i in range(2):
            found[i][present.agent].append([present.observation[i].tolist()])
        chosen = [int(chance.integers(5)) for chance in chances]
        for i, action in enumerate(chosen):
            found[i][present.agent][-1].append(action)
        turn = environment.step([np.array(chosen)])
    for i in range(2):
        chance = np.random.default_rng(5 + i)
        expected = plain(gridworld.make(seed=i), lambda chance=chance: int(chance.integers(5)), 30)  # type: ignore[misc]
        for rows, wanted in zip(found[i], expected, strict=True):
            assert len(rows) == 30
            assert rows[:-1] == wanted[:29]
    assert sum(row[3] for row in found[0][0][:-1]) == 4


@pytest.mark.parametrize("settings", [{}, {"leaves": True, "growth": 0.9}])
@pytest.mark.parametrize("mode", ["sequential", "simultaneous"])
def test_every_reward_lies_in_one_row_of_the_segments_K5(settings: dict[str, Any], mode: Any) -> None:
    """K5 D9: what the seats write adds up to what the worlds paid, also when agents leave in mid-episode."""
    environment, made = worlds(3, mode, **settings)
    paid = [[0.0, 0.0] for _ in made]
    acted = [[0, 0] for _ in made]
    for i, env in enumerate(made):
        for k, agent in enumerate(env.agents):

            def act(world: Any, action: int, i: int = i, k: int = k, inner: Any = agent.act) -> float:
                reward = inner(world, action)
                paid[i][k] += reward
                acted[i][k] += 1
                return float(reward)

            agent.act = act
    table = Table(environment)
    table.play(300)
    for k, seat in enumerate(table.seats):
        rows = table.found(k)
        ends = [row for copy in rows for row in copy if row.terminated or row.truncated]
        assert any(row.terminated for row in ends) == ("leaves" in settings)
        assert all(row.final is not None for row in ends if row.truncated)
        assert sum(map(len, rows)) + seat.open_rows >= sum(count[k] for count in acted) - 3
        in_segments = sum(row.reward for copy in rows for row in copy)
        block = seat._block
        assert block is not None
        written = block.columns["reward"]
        in_block = sum(
            float(written[i, : (block.at(slice(None)) if block.aligned else block.rows[i]) + 0].sum()) for i in range(3)
        )
        assert in_segments + in_block + environment._board.pending_reward[k].sum() == sum(pay[k] for pay in paid)


def test_a_world_that_stops_when_it_is_done_has_terminated_for_all() -> None:
    environment, (one,) = worlds(1, "simultaneous", stops=True)
    environment.reset(0)
    one.world.is_done = True
    turn = environment.step([np.array([4]), np.array([4])])
    assert [present.terminated.item() for present in turn.present] == [True, True]
    assert one.turn == 1, "the next episode's first turn has begun"


def test_the_run_can_be_repeated_where_chance_comes_from_numpy() -> None:
    def draws(env: Any) -> Any:
        env.world.chance = SimpleNamespace(random=np.random.random)
        return env

    environment = SorrelEnvironment("grid", lambda: draws(gridworld.make(growth=0.5)), 2)
    first = environment.reset(3).present[0].observation[:, :9].copy()
    assert (environment.reset(3).present[0].observation[:, :9] == first).all()
    assert (first[0] != first[1]).any()


def test_an_agent_that_does_not_say_how_many_actions_it_has_is_refused() -> None:
    def mute() -> Any:
        env = gridworld.make()
        for agent in env.agents:
            del agent.action_spec
        return env

    with raises(ConfigurationError, "sorrel_action_count_unknown", where="grid, agent agent_0,"):
        SorrelEnvironment("grid", mute, 1)
