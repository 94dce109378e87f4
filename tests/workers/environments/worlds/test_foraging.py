"""Level-based foraging beside lbforaging itself: the same world, turn for turn."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.tools import skip_or_fail
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.worlds.foraging import LOAD, Foraging


def original(size: int) -> Any:
    """One copy of lbforaging's."""
    if importlib.util.find_spec("lbforaging") is None:
        skip_or_fail("lbforaging is not installed")
    env = gymnasium.make(f"lbforaging:Foraging-{size}x{size}-2p-2f-coop-v3", disable_env_checker=True)
    return env.unwrapped


def put(env: Foraging, field: Any) -> None:
    """The only copy of `env` as lbforaging's is."""
    env._food[0] = np.argwhere(field.field)
    env._place[0] = [player.position for player in field.players]
    env._level[0] = [player.level for player in field.players]
    env._there[0], env._turn[0] = True, 0


def legal(field: Any) -> Any:
    """[A, actions]"""
    allowed = np.zeros((2, LOAD + 1), np.bool_)
    for joint in field.get_valid_actions():
        allowed[range(2), [action.value for action in joint]] = True
    return allowed


@pytest.mark.parametrize(("size", "episodes"), [(8, 16), (6, 8)])
def test_every_turn_is_that_of_lbforaging(size: int, episodes: int) -> None:
    """From the same field, by the same actions, legal ones that mostly load where they can: what is seen, what it
    brings, what is legal, and when it ends."""
    env, field, chance, loads = Foraging(1, size=size), original(size), np.random.default_rng(0), 0
    for episode in range(episodes):
        env.reset(episode)
        field.reset(seed=episode)
        if episode % 2:  # both beside the first food
            (row, column), _ = np.argwhere(field.field)
            for player, place in zip(field.players, ((row - 1, column), (row, column + 1)), strict=True):
                player.position = place
            field._gen_valid_moves()
        put(env, field)
        over = False
        while not over:
            allowed = legal(field)
            np.testing.assert_array_equal(env._legal()[0], allowed)
            weighed = allowed * (1.0, 1.0, 1.0, 1.0, 1.0, 8.0)
            actions = [chance.choice(LOAD + 1, p=weights / weights.sum()) for weights in weighed]
            seen, reward, over, _, _ = field.step(tuple(actions))
            turn = env.step([np.array([action]) for action in actions])
            loads += reward[0] > 0
            for i, one in enumerate(turn.present):
                assert one.reward[0] == pytest.approx(reward[i])
                assert (one.terminated[0], one.truncated[0]) == (over, False)
                if not over:
                    np.testing.assert_array_equal(one.observation[0], seen[i])
                    np.testing.assert_array_equal(one.action_mask, legal(field)[i : i + 1])
    assert loads >= 3


def test_fields_are_drawn_as_lbforaging_draws_them() -> None:
    """Mean places and levels of many, each within four standard errors; foods in none of the wrong places."""
    env, field = Foraging(4_000), original(8)
    ours = np.concatenate([one.observation for one in env.reset(0).present])
    theirs = np.concatenate([np.stack(field.reset(seed=seed)[0]) for seed in range(1_000)])
    error = np.sqrt(ours.var(axis=0) / 4_000 + theirs.var(axis=0) / 1_000)
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 4 * error).all()
    np.testing.assert_array_equal(ours.min(axis=0), theirs.min(axis=0))
    np.testing.assert_array_equal(ours.max(axis=0), theirs.max(axis=0))
    foods = ours[:, [0, 1, 3, 4]].reshape(-1, 2, 2)
    away = np.abs(foods[:, 0] - foods[:, 1])
    assert (away.sum(axis=1) > 2).all()


def test_ends_that_come_at_any_turn_are_checked_and_begin_anew() -> None:
    """Random legal players of many copies, who load one now and then: each reward is half of a food, shared."""
    env = CheckedEnvironment(make(EnvironmentConfig(id="foraging", copies=64, settings={"size": 6, "turns": 20})))
    chance, turn, earned, ends = np.random.default_rng(0), env.reset(1), 0.0, 0
    for _ in range(100):
        actions = []
        for one in turn.present:
            assert one.action_mask is not None
            actions.append((chance.random(one.action_mask.shape) * one.action_mask).argmax(axis=1))
        turn = env.step(actions)
        together = turn.present[0].reward + turn.present[1].reward
        assert set(np.unique(together.round(6))) <= {0.0, 0.5}
        earned, ends = earned + float(together.sum()), ends + int(turn.present[0].terminated.sum())
    assert earned >= 2
    assert ends >= 64 * 5


def test_it_is_drawn_as_text() -> None:
    env = Foraging(1, size=6)
    env.reset(0)
    env._place[0], env._food[0], env._level[0] = [(0, 0), (5, 5)], [(1, 1), (3, 2)], [1, 2]
    assert env.render() == "a.....\n.3....\n......\n..3...\n......\n.....b"


def test_a_field_too_small_is_refused() -> None:
    with raises(
        ConfigurationError, "environment_setting_invalid", environment="foraging", key="environment.settings.size"
    ):
        Foraging(1, size=5)
