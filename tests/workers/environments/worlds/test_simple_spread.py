"""Simple spread beside mpe2's own: the same world, turn for turn, to the bit."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.playing import baselines
from tests.tools import skip_or_fail
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.worlds.simple_spread import Spread


def original(agents: int, ratio: float, turns: int) -> Any:
    """One copy of mpe2's."""
    if importlib.util.find_spec("mpe2") is None:
        skip_or_fail("mpe2 is not installed")
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=agents, local_ratio=ratio, max_cycles=turns)


def put(env: Spread, plane: Any) -> None:
    """The only copy of `env` as mpe2's is."""
    world = plane.unwrapped.world
    env._position[:, 0] = [body.state.p_pos for body in world.agents]
    env._landmark[:, 0] = [mark.state.p_pos for mark in world.landmarks]
    env._velocity[:, 0] = [body.state.p_vel for body in world.agents]


@pytest.mark.parametrize(("agents", "ratio", "turns"), [(4, 0.25, 25), (2, 0.0, 7), (1, 1.0, 3)])
def test_every_turn_is_that_of_mpe2(agents: int, ratio: float, turns: int) -> None:
    """From the same plane, crowded in every other episode, by the same moves: what is seen, what it brings, and when it
    ends."""
    env = Spread(1, agents=agents, local_ratio=ratio, turns=turns)
    plane, chance, touches = original(agents, ratio, turns), np.random.default_rng(0), 0
    for episode in range(4):
        turn = env.reset(episode)
        told, _ = plane.reset(seed=episode)
        if episode % 2:
            for body in plane.unwrapped.world.agents:
                body.state.p_pos = chance.uniform(-0.2, 0.2, 2)
            told = {name: plane.unwrapped.observe(name) for name in told}
        put(env, plane)
        turn = type(turn)(env._present())
        for moment in range(1, turns + 1):
            for i, one in enumerate(turn.present):
                np.testing.assert_array_equal(one.observation[0], told[f"agent_{i}"])
            moves = chance.integers(5, size=agents)
            told, reward, ended, cut, _ = plane.step({f"agent_{i}": int(move) for i, move in enumerate(moves)})
            turn = env.step([np.array([move]) for move in moves])
            shared = max(reward.values())
            touches += sum(value < shared for value in reward.values())
            for i, one in enumerate(turn.present):
                name = f"agent_{i}"
                assert one.reward[0] == np.float32(reward[name])
                assert (one.terminated[0], one.truncated[0]) == (ended[name], cut[name]) == (False, moment == turns)
        for i, one in enumerate(turn.present):
            assert one.final_observation is not None
            np.testing.assert_array_equal(one.final_observation[0], told[f"agent_{i}"])
    assert touches > 5 or agents < 3


def test_what_is_asked_of_players_is_what_mpe2_asks() -> None:
    world, plane = Spread(1).world, original(3, 0.5, 25)
    assert [agent.name for agent in world.agents] == plane.possible_agents
    for agent in world.agents:
        assert agent.observation.shape == plane.observation_space(agent.name).shape
        assert agent.action.n == plane.action_space(agent.name).n
    assert world.episode_steps == 25


def test_planes_are_drawn_as_mpe2_draws_them() -> None:
    """Evenly from -1 to 1, means and variances within four standard errors, all independent."""
    seen = Spread(4_000).reset(0).present[1].observation
    own, marks = seen[:, 2:4], seen[:, 4:10] + np.tile(seen[:, 2:4], 3)
    drawn = np.concatenate([own, marks], 1)
    assert np.abs(drawn).max() < 1 + 1e-6
    assert (np.abs(drawn.mean(0)) < 4 * np.sqrt(1 / 3 / 4_000)).all()
    np.testing.assert_allclose(drawn.var(0), 1 / 3, atol=4 * np.sqrt(4 / 45 / 4_000))
    between = np.corrcoef(drawn.T) - np.eye(8)
    assert np.abs(between).max() < 5 / np.sqrt(4_000)


def test_episodes_begin_at_rest() -> None:
    env = Spread(3, turns=4, desynchronize=False)
    env.reset(0)
    for turn in range(1, 9):
        told = env.step([np.full(3, 2)] * 3).present[0]
        assert told.truncated.all() == (turn % 4 == 0)
        assert told.observation[:, :2].any() != told.truncated.all()


def test_who_goes_to_a_landmark_of_its_own_earns_more_than_chance() -> None:
    found = baselines(EnvironmentConfig(id="spread", copies=64), 256, seed=0)
    assert len(found) == 3
    for agent in found.values():
        assert -29 < agent["random"] < -24
        assert agent["scripted"] > -18
    (alone,) = baselines(EnvironmentConfig(id="spread", copies=64, settings={"agents": 1}), 256, seed=0).values()
    assert alone["scripted"] > alone["random"] + 5


def test_all_share_a_payoff_without_touches_of_ones_own() -> None:
    """It is declared and held to, while the world runs."""
    world = Spread(8, local_ratio=0.0)
    assert world.world.population.payoff == "cooperative"
    env, chance = CheckedEnvironment(world), np.random.default_rng(0)
    env.reset(0)
    for _ in range(60):
        turn = env.step(list(chance.integers(5, size=(3, 8))))
        assert len({one.reward.tobytes() for one in turn.present}) == 1


def test_it_is_drawn_where_bodies_are() -> None:
    env = make(EnvironmentConfig(id="spread", copies=2, settings={"agents": 2}))
    assert isinstance(env, Spread)
    env.reset(0)
    env._position[:, 1], env._landmark[:, 1] = [(0, 0), (9, -9)], [(-1.5, 1.5), (0, 1.5)]
    lines = env.render(1).splitlines()
    env._position[0, 1] = 0.75, 0
    assert env.render(1).splitlines()[16].index("A") == 23, "half way to the edge"
    assert lines[1] == "#a" + " " * 14 + "b" + " " * 15 + "#"
    assert (lines[16][16], lines[31][31]) == ("A", "B")
    assert env.agent_cells(1).sum() == 2


def test_a_setting_that_cannot_be_is_refused() -> None:
    with raises(
        ConfigurationError, "environment_setting_invalid", environment="spread", key="environment.settings.local_ratio"
    ):
        Spread(1, local_ratio=1.5)
