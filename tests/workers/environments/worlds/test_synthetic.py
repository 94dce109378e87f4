"""A world that costs nothing: what it shows and pays is known in advance, and its copies' phases are as asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.playing import baselines
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.worlds.synthetic import PERIOD, SHOWN, Synthetic

SMALL: dict[str, Any] = {"observation": 8, "actions": 4, "episode_steps": 10}


def together(turn: Turn, name: str) -> NDArray[Any]:
    """A field of all that are present, one after the other."""
    return np.concatenate([getattr(present, name) for present in turn.present])


@pytest.mark.parametrize("settings", [{"agents": 3}, {"many": 3}])
def test_every_row_shows_the_next_row_of_the_table_and_is_paid_for_what_is_right(settings: dict[str, Any]) -> None:
    env = Synthetic(5, **settings, **SMALL)
    checked, generator = CheckedEnvironment(env), np.random.default_rng(0)
    turn = checked.reset(2)
    done: NDArray[Any] = np.zeros(15, np.int64)
    for t in range(PERIOD + 30):
        seen = together(turn, "observation")
        assert (seen[:, 0] == done).all()
        assert np.allclose(seen[:, 1], (t % 10) / 10)
        at = t % PERIOD
        assert np.array_equal(seen[:, SHOWN:], env.table[at : at + 15, SHOWN:])
        chosen = [generator.integers(4, size=len(p.observation)) for p in turn.present]
        right = seen[:, SHOWN : SHOWN + 4].argmax(axis=1)
        turn = checked.step(chosen)
        ended = (t + 1) % 10 == 0
        assert np.array_equal(together(turn, "reward"), (np.concatenate(chosen) == right).astype(np.float32))
        assert (together(turn, "truncated") == ended).all()
        done = np.concatenate(chosen) * (not ended)
        if ended:
            last = together(turn, "final_observation")
            assert (last[:, 0] == np.concatenate(chosen)).all()
            assert (last[:, 1] == 1).all()


def test_a_picture_shows_the_table_as_bytes_and_has_the_same_right_answers() -> None:
    env = Synthetic(4, agents=2, image=[6, 5, 3], actions=4, episode_steps=10)
    checked, player = CheckedEnvironment(env), env.scripted()
    turn = checked.reset(2)
    for t in range(1, 25):
        chosen = [player(present) for present in turn.present]
        turn = checked.step(chosen)
        seen = together(turn, "observation")
        assert seen.shape == (8, 6, 5, 3)
        assert seen.dtype == np.uint8
        assert np.array_equal(seen.reshape(8, -1)[:, SHOWN:], env.table[t : t + 8, SHOWN:])
        assert (seen[:, 0, 0, 1] == 255 * (t % 10) // 10).all()
        assert (together(turn, "reward") == 1).all()
        if t % 10 == 0:
            last = together(turn, "final_observation")
            assert (last[:, 0, 0, 1] == 255).all()
            assert (last[:, 0, 0, 0] == np.concatenate(chosen)).all()


def test_rows_of_a_template_are_copy_by_copy_and_all_of_a_copy_end_together_K3() -> None:
    env = Synthetic(50, many=3, desynchronize=True, **SMALL)
    turn = env.reset(0)
    assert env.world.places[0].many == 3
    unlike = 0
    for _ in range(12):
        turn = env.step([np.zeros(150, np.int64)])
        ends = turn.present[0].truncated.reshape(50, 3)
        assert (ends == ends[:, :1]).all()
        assert np.array_equal(turn.present[0].final_index, np.flatnonzero(ends))
        unlike += 0 < ends.sum() < 150
    assert unlike


def test_a_cooperative_payoff_is_the_mean_of_a_copy() -> None:
    alone, shared = (Synthetic(4, many=3, cooperative=both, **SMALL) for both in (False, True))
    for env in (alone, shared):
        env.reset(1)
    chosen = [np.random.default_rng(0).integers(4, size=12)]
    own = alone.step(chosen).present[0].reward.reshape(4, 3)
    assert 0 < own.mean() < 1
    assert np.allclose(shared.step(chosen).present[0].reward.reshape(4, 3), own.mean(axis=1, keepdims=True))
    assert shared.world.population.payoff == "cooperative"


def test_K8_all_copies_share_a_step_before_and_have_uniform_phases_after_desynchronising() -> None:
    """Kolmogorov-Smirnov against the uniform distribution at p = 0.01, and quarters of the episode."""
    copies, steps = 4_000, 1_000

    def phases(desynchronize: bool) -> NDArray[Any]:
        env = Synthetic(copies, agents=1, observation=4, actions=2, episode_steps=steps, desynchronize=desynchronize)
        turn = env.reset(7)
        for _ in range(steps + 37):  # every first episode is over
            turn = env.step([np.zeros(copies, np.int64)])
        return np.rint(turn.present[0].observation[:, 1] * steps)

    assert set(phases(False).tolist()) == {37}
    found = np.sort(phases(True))
    distance = np.abs((np.arange(copies) + 0.5) / copies - (found + 0.5) / steps).max()
    assert distance < 1.63 / np.sqrt(copies)
    quarters = np.histogram(found, bins=4, range=(0, steps))[0] / copies
    assert (np.abs(quarters - 0.25) < 0.03).all()


def test_random_and_scripted_players_earn_what_they_must() -> None:
    for settings in ({"agents": 2}, {"many": 2}):
        config = EnvironmentConfig(id="synthetic", copies=64, settings=settings | {"episode_steps": 100})
        for known in baselines(config, 64, seed=0).values():
            assert known["scripted"] == 100
            assert abs(known["random"] - 100 / 8) < 5 * known["random_stderr"]


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        ({"actions": 9, "observation": 10}, "observation_too_small_for_actions", {"count": 9, "expected": 11}),
        ({"actions": 3, "image": [2, 2, 1]}, "observation_too_small_for_actions", {"count": 3, "value": 4}),
        ({"speed": 1}, "unknown_environment_setting", {"key": "environment.settings.speed"}),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings: dict[str, Any], kind: str, facts: dict[str, Any]) -> None:
    with raises(ConfigurationError, kind, environment="synthetic", **facts):
        make(EnvironmentConfig(id="synthetic", copies=2, settings=settings))


def test_a_copy_is_told_as_text() -> None:
    env = Synthetic(2, **SMALL)
    turn = env.reset(0)
    player = env.scripted()
    env.step([player(present) for present in turn.present])
    assert env.render(1).startswith("step 1: right [")
    assert env.render(1).endswith("earned [1.0, 1.0, 1.0]")
