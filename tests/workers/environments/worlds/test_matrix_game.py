"""Matrix games pay what their tables say; the published returns of their solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.worlds.matrix_game import MatrixGame


def returns(actions: tuple[int, ...], **settings: Any) -> list[float]:
    """What each player earns in an episode of one joint action."""
    env = MatrixGame(3, **settings)
    env.reset(0)
    total = np.zeros(len(actions))
    for turn_number in range(1, env.settings.turns + 1):
        turn = env.step([np.full(3, action) for action in actions])
        total += [float(p.reward[1]) for p in turn.present]
        assert turn.present[0].truncated.all() == (turn_number == env.settings.turns)
    return total.tolist()


@pytest.mark.parametrize(
    ("settings", "actions", "earned"),
    [
        ({"game": "climbing"}, (0, 0), [275, 275]),  # optimal: 25 turns of 11
        ({"game": "penalty"}, (2, 2), [250, 250]),  # optimal: 25 turns of 10
        ({"game": "penalty", "k": -100.0}, (0, 2), [-2500, -2500]),
        ({"game": "penalty", "k": -100.0}, (1, 1), [50, 50]),
        ({"game": "penalty", "k": -100.0}, (1, 0), [0, 0]),
        ({"game": "prisoners_dilemma"}, (0, 0), [75, 75]),
        ({"game": "prisoners_dilemma"}, (1, 0), [125, 0]),
        ({"game": "prisoners_dilemma"}, (1, 1), [25, 25]),
        ({"game": "chicken"}, (0, 1), [-25, 25]),
        ({"game": "stag_hunt"}, (1, 0), [75, 25]),
        ({"game": "stag_hunt", "turns": 3}, (0, 0), [12, 12]),
    ],
)
def test_a_joint_action_pays_what_the_table_says(settings: Any, actions: Any, earned: list[float]) -> None:
    assert returns(actions, **settings) == earned


def test_copies_are_paid_for_their_own_joint_action() -> None:
    env = MatrixGame(9, game="climbing")
    env.reset(0)
    turn = env.step([np.repeat([0, 1, 2], 3), np.tile([0, 1, 2], 3)])
    for p in turn.present:
        assert p.reward.tolist() == [11, -30, 0, -30, 7, 6, 0, 0, 5]


def test_a_table_of_ones_own_has_any_number_of_players_and_actions() -> None:
    table = np.arange(2 * 1 * 3 * 3, dtype=float).reshape(2, 1, 3, 3)
    env = MatrixGame(1, game="own", payoffs=table.tolist(), turns=2)
    assert [a.action.n for a in env.world.agents] == [2, 1, 3]
    assert returns((1, 0, 2), game="own", payoffs=table.tolist(), turns=2) == (2 * table[1, 0, 2]).tolist()


def test_nothing_is_seen_unless_the_last_joint_action_is_asked_for() -> None:
    env = MatrixGame(2)
    turn = env.reset(0)
    for _ in range(60):
        assert all(p.observation.tolist() == [[1], [1]] for p in turn.present)
        turn = env.step([np.array([0, 2]), np.array([1, 1])])


def test_the_last_joint_action_is_seen_one_hot_by_both_and_forgotten_by_the_next_episode() -> None:
    env = MatrixGame(2, observe="last", turns=2)
    turn = env.reset(0)
    assert not turn.present[0].observation.any()
    turn = env.step([np.array([0, 2]), np.array([1, 1])])
    for p in turn.present:
        assert p.observation.tolist() == [[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 1, 0]]
    turn = env.step([np.array([1, 1]), np.array([2, 0])])
    for p in turn.present:
        assert not p.observation.any()
        assert p.final_observation is not None
        assert p.final_observation.tolist() == [[0, 1, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("settings", "kind", "key"),
    [
        ({"game": "own"}, "payoffs_without_own_game", "payoffs"),
        ({"payoffs": [[1]]}, "payoffs_without_own_game", "payoffs"),
        ({"game": "own", "payoffs": [[1, 2], [3]]}, "payoffs_not_nested_lists", "payoffs"),
        ({"game": "own", "payoffs": [[1, 2], [3, 4]]}, "payoffs_shape_invalid", "payoffs"),
        ({"game": "own", "payoffs": [[1], [float("nan")]]}, "payoffs_not_finite", "payoffs"),
        ({"game": "penalty", "k": 3.0}, "environment_setting_invalid", "k"),
        ({"game": "poker"}, "environment_setting_invalid", "game"),
    ],
)
def test_a_table_that_is_no_game_is_refused_in_one_sentence(settings: Any, kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, environment="matrix_game", key=f"environment.settings.{key}"):
        MatrixGame(1, **settings)
