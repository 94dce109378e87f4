"""Baselines: the known figures of the treasure hunt, and fair counting of episodes and rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import Agent, Box, Discrete, World
from tests.faults import raises
from tests.playing import baselines, play
from workers.environments.base import AgentTimeStep, Environment, Turn
from workers.evaluation import episodes as module
from workers.evaluation.episodes import EpisodePlay


class Lengths(Environment):
    """Copy i has episodes of i + 1 steps; every action earns itself, and the last of an episode 100 more.

    With `ragged`, even copies are present in even steps only, the others always.
    """

    def __init__(self, copies: int, ragged: bool = False, ends: bool = True) -> None:
        agent = Agent(name="a", observation=Box(shape=(1,)), action=Discrete(n=2))
        self.world = World(id="lengths", agents=(agent,))
        self.copies, self.ragged, self.ends = copies, ragged, ends

    def reset(self, seed: int) -> Turn:
        self.age = np.zeros(self.copies, int)
        self.reward = np.zeros(self.copies, np.float32)
        self.done = np.zeros(self.copies, np.bool_)
        self.at = 0
        return self._turn()

    def _turn(self) -> Turn:
        every = np.arange(self.copies)
        self.now = every[(every + 1) % 2 == 1] if self.ragged and self.at % 2 else every
        n = len(self.now)
        copies = self.now if n < self.copies else None
        none = np.zeros(n, np.bool_)
        odd = self.now % 2 == 1
        done = self.done[self.now]
        final = np.flatnonzero(done & odd)
        return Turn(
            (
                AgentTimeStep(
                    0,
                    np.zeros((n, 1), np.float32),
                    self.reward[self.now],
                    (none | done) & ~odd,
                    done & odd,
                    copies,
                    final,
                    np.zeros((len(final), 1), np.float32) if len(final) else None,
                ),
            )
        )

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        self.at += 1
        self.age[self.now] += 1
        self.done[self.now] = (self.age[self.now] == self.now + 1) & self.ends
        self.reward[self.now] = actions[0] + 100.0 * self.done[self.now]
        self.age[self.done] = 0
        return self._turn()


def ones(present: AgentTimeStep) -> NDArray[np.int64]:
    return np.ones(len(present.observation), np.int64)


@pytest.mark.parametrize("ragged", [False, True])
def test_every_copy_gives_equally_many_episodes_so_that_short_ones_do_not_crowd_in(ragged: bool) -> None:
    # Copy i returns i + 1 ones and the 100 of its last step; the mean over i = 0..9 is 105.5.
    mean, error = play(Lengths(10, ragged), {"a": ones}, episodes=30, seed=0)["a"]
    assert mean == 105.5
    returns = [100 + length for length in range(1, 11) for _ in range(3)]
    assert error == pytest.approx(np.std(returns, ddof=1) / np.sqrt(30))


def test_fewer_episodes_than_copies_still_count_one_of_each() -> None:
    assert play(Lengths(10), {"a": ones}, episodes=1, seed=0)["a"][0] == 105.5


def test_a_single_episode_has_no_standard_error() -> None:
    assert play(Lengths(1), {"a": ones}, episodes=1, seed=0)["a"] == (101.0, 0.0)


def test_episodes_that_never_end_are_a_fault_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIMIT", 50)
    with raises(EnvironmentFault, "episodes_not_finished", environment="lengths"):
        play(Lengths(2, ends=False), {"a": ones}, episodes=2, seed=0)


def test_what_is_ended_early_counts_the_episodes_that_every_copy_has_finished() -> None:
    """Those that end first are short: after 19 turns copy 0 has ended 19, and copy 9 its first."""
    game = EpisodePlay(Lengths(10), {"a": ones}, episodes=300, seed=0)
    for _ in range(9):
        game.step()
    assert game.returns["a"].shape == (10, 0)
    for _ in range(10):
        game.step()
    assert game.returns["a"].tolist() == [[101.0 + copy] for copy in range(10)]
    assert not game.over


def test_no_episodes_are_refused() -> None:
    with raises(ConfigurationError, "episodes_too_few"):
        play(Lengths(2), {"a": ones}, episodes=0, seed=0)


def test_random_and_scripted_players_of_the_treasure_hunt_earn_the_known_figures() -> None:
    result = baselines(EnvironmentConfig(), episodes=1024, seed=0)
    assert list(result) == ["agent_0", "agent_1"]
    random = np.mean([one["random"] for one in result.values()])
    scripted = np.mean([one["scripted"] for one in result.values()])
    # An independent sketch of the same rules measured 12 and, with another scripted player, 153.
    assert abs(random - 12) < 3
    assert abs(scripted - 161) < 5
    for one in result.values():
        assert 0 < one["random_stderr"] < 2
        assert 0 < one["scripted_stderr"] < 3


def test_the_same_seed_gives_the_same_baselines_whatever_the_training_settings() -> None:
    small = {"height": 7, "width": 7, "turns": 20}
    first = baselines(EnvironmentConfig(copies=8, settings=small), 16, 3)
    again = baselines(EnvironmentConfig(copies=8, settings={**small, "desynchronize": True}), 16, 3)
    assert first == again
    assert first != baselines(EnvironmentConfig(copies=8, settings=small), 16, 4)


def test_a_world_without_a_scripted_player_has_a_random_baseline_alone() -> None:
    result = baselines(EnvironmentConfig(id="gymnasium:CartPole-v1"), episodes=256, seed=0)
    assert set(result["agent"]) == {"random", "random_stderr", "random_episodes"}
    assert 19 < result["agent"]["random"] < 26


def test_a_world_that_kills_its_process_costs_its_baselines_and_no_worker() -> None:
    """K10: where it is stepped by processes."""
    config = EnvironmentConfig(
        id="tests.workers.environments.vectorized.process_worlds:Dying", copies=2, settings={"how": "kill"}, processes=2
    )
    with raises(
        EnvironmentFault,
        "environment_restarts_exhausted",
        environment="tests.workers.environments.vectorized.process_worlds:Dying",
        count=0,
        key="environment.restarts",
    ):
        baselines(config, 4, 0)
