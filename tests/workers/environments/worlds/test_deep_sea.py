"""Deep sea: one way to the treasure, which costs; everything else earns less."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from tests.playing import baselines
from workers.environments.worlds.deep_sea import DeepSea


def dive(env: DeepSea, actions: list[list[int]]) -> tuple[list[float], list[list[list[int]]]]:
    """Returns of one episode of all copies, and where each was, as (row, column), step after step."""
    turn = env.reset(0)
    earned, seen = np.zeros(env.copies), []
    for step in actions:
        places = np.argwhere(turn.present[0].observation == 1)
        assert places[:, 0].tolist() == list(range(env.copies)), "one place each"
        seen.append(places[:, 1:].tolist())
        turn = env.step([np.array(step)])
        earned += turn.present[0].reward
    assert turn.present[0].terminated.all()
    assert (turn.present[0].observation[:, 0, 0] == 1).all(), "the next episode begins at the top"
    return earned.tolist(), seen


def test_the_way_of_each_copy_and_what_it_earned_by_hand() -> None:
    env = DeepSea(4, size=3, cost=0.03)
    returns, seen = dive(env, [[1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 1, 0]])
    assert seen[1] == [[1, 1], [1, 0], [1, 1], [1, 1]]
    assert seen[2] == [[2, 2], [2, 0], [2, 0], [2, 2]]
    assert returns == pytest.approx([1 - 0.03, -0.01, -0.02, -0.02])


def test_right_all_the_way_is_best_and_random_players_earn_a_loss() -> None:
    found = baselines(EnvironmentConfig(id="deep_sea", settings={"size": 12}), 200, 0)["diver"]
    assert found["scripted"] == pytest.approx(0.99)
    assert found["random"] == pytest.approx(-0.005, abs=0.006)


def test_it_is_drawn_as_text() -> None:
    env = DeepSea(1, size=3)
    env.reset(0)
    env.step([np.array([1])])
    assert env.render() == "...\n.@.\n..$"
