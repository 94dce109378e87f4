"""Agents that come, go and act in turn: adapter, guard and seats write what the game's own books say, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.environments.adapters.random_games import InTurns, Together
from tests.workers.environments.worlds.table import Table
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.base import Environment

COPIES = 3


def check(table: Table, games: list[Any]) -> None:
    """Every closed row of the books is in the segments once and in order, but for those of the last block; the returns
    of all episodes are those of the books."""
    for k, name in enumerate(games[0].possible_agents):
        missing = 0
        for copy, (found, game) in enumerate(zip(table.found(k), games, strict=True)):
            books = list(game.books.rows[name])
            if game.books.open[name] is not None and copy in table.next.get(k, ()):
                books.append(game.books.open[name])
            assert found == books[: len(found)]
            missing += len(books) - len(found)
        assert table.seats[k].open_rows == missing
        episodes, returns = 0, 0.0
        for game in games:
            total = 0.0
            for row in game.books.rows[name]:
                total += row.reward
                if row.terminated or row.truncated:
                    episodes, returns, total = episodes + 1, returns + total, 0.0
        told, total, _ = table.seats[k].episodes.take()
        assert told == episodes
        assert total == pytest.approx(returns)


def played(adapter: Callable[..., Environment], game: Callable[[int], Any], seed: int, turns: int) -> int:
    games: list[Any] = []

    def make_one() -> Any:
        games.append(game(COPIES * seed + len(games)))
        return games[-1]

    table = Table(adapter("random", make_one, COPIES))
    steps = table.play(turns)
    check(table, games)
    return steps


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), turns=st.integers(1, 120))
def test_random_games_in_turns_count_every_reward_once_in_the_right_row(seed, turns):
    """K5 D2: random order, the same agent several times in a row, deaths at any moment, rewards between turns."""
    assert 0 <= played(PettingZooAEC, InTurns, seed, turns) <= COPIES * turns


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), turns=st.integers(1, 120), busy=st.sampled_from([0.5, 0.8, 1.0]))
def test_random_parallel_games_count_every_reward_once_in_the_right_row(seed, turns, busy):
    """K5 I5: agents die, come, come back and are absent for whole episodes."""
    assert played(PettingZooEnvironment, lambda one: Together(one, busy), seed, turns) == COPIES * turns


@pytest.mark.parametrize("agents", [1, 500])
def test_one_agent_or_a_crowd_comes_and_goes_within_an_episode(agents: int) -> None:
    """K5: a tenth to all of them are there, of whom a fifth leave and as many come in each step."""
    assert played(PettingZooEnvironment, lambda one: Together(one, 0.1, 0.1, agents), 5, 8) == COPIES * 8
