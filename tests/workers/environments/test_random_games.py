"""Agents that come, go and act in turn: adapter, guard and seats write what the game's own books say, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import PPO
from protocol.layout import segment_layout
from tests.workers import scripted
from tests.workers.environments.random_games import NAMES, InTurns, Row, Together
from workers.acting.seat import Seat
from workers.environments.base import Environment
from workers.environments.checked import Checked
from workers.environments.pettingzoo_adapter import PettingZooEnvironment
from workers.environments.pettingzoo_aec import PettingZooTurns

COPIES, LENGTH = 3, 4


class Table:
    """A seat for each agent, with segments of 4 rows."""

    def __init__(self, environment: Environment) -> None:
        self.environment = Checked(environment)
        policy, world = scripted.config(PPO(), LENGTH), environment.world
        self.senders = [
            scripted.Sender(segment_layout(world, agent, policy), environment.copies, 400) for agent in world.agents
        ]
        self.seats = [
            Seat(agent.name, scripted.Performer(), sender, environment.copies, 0, np.random.default_rng(0))  # type: ignore[arg-type]
            for agent, sender in zip(world.agents, self.senders, strict=True)
        ]

        self.next: dict[int, set[int]] = {}
        """agent -> copies in which it was to act when the play stopped."""

    def play(self, turns: int) -> int:
        """Returns the environment steps."""
        turn, steps = self.environment.reset(0), 0
        for _ in range(turns):
            for outcome in turn.outcomes:
                self.seats[outcome.agent].receive(outcome)
            actions = [self.seats[one.agent].act(one, scripted.never) for one in turn.present]
            turn = self.environment.step(actions)
            steps += turn.env_steps
        for outcome in turn.outcomes:  # what the last actions brought
            self.seats[outcome.agent].receive(outcome)
        for one in turn.present:
            self.seats[one.agent].observe(one, scripted.never)
            self.next[one.agent] = set(range(COPIES) if one.copies is None else one.copies.tolist())
        self.environment.close()
        return steps

    def found(self, agent: int) -> list[list[Row]]:
        """[E]: the rows in segments, in the order in which they were written."""
        rows: list[list[Row]] = [[] for _ in range(COPIES)]
        sender = self.senders[agent]
        for record in (record for records in sender.finished for record in records):
            columns = {name: column[record["slot"]] for name, column in sender.ring.columns.items()}
            finals = {
                int(row): float(columns["final_observation"][k, 1])
                for k, row in enumerate(columns["final_row"])
                if row >= 0
            }
            for row in range(int(record["valid"])):
                assert columns["action"][row] == columns["observation"][row, 1] % 5
                rows[int(record["stream"])].append(
                    Row(
                        float(columns["observation"][row, 1]),
                        float(columns["reward"][row]),
                        bool(columns["terminated"][row]),
                        bool(columns["truncated"][row]),
                        finals.pop(row, None),
                    )
                )
            assert not finals
        return rows


def check(table: Table, games: list[Any]) -> None:
    """Every closed row of the books is in the segments once and in order, but for those of the last block; the returns
    of all episodes are those of the books."""
    for k, name in enumerate(NAMES):
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
        assert table.seats[k].take_episodes() == (episodes, pytest.approx(returns))


def played(adapter: Callable[..., Environment], game: Callable[[int], Any], seed: int, turns: int) -> tuple[int, Any]:
    games: list[Any] = []

    def make_one() -> Any:
        games.append(game(COPIES * seed + len(games)))
        return games[-1]

    table = Table(adapter("random", make_one, COPIES))
    steps = table.play(turns)
    check(table, games)
    return steps, games


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**20), turns=st.integers(1, 120))
def test_random_games_in_turns_count_every_reward_once_in_the_right_row(seed, turns):
    """K5 D2: random order, the same agent several times in a row, deaths at any moment, rewards between turns."""
    steps, _ = played(PettingZooTurns, InTurns, seed, turns)
    assert 0 <= steps <= COPIES * turns


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**20), turns=st.integers(1, 120), busy=st.sampled_from([0.5, 0.8, 1.0]))
def test_random_parallel_games_count_every_reward_once_in_the_right_row(seed, turns, busy):
    """K5 I5: agents die, come, come back and are absent for whole episodes."""
    steps, _ = played(PettingZooEnvironment, lambda one: Together(one, busy), seed, turns)
    assert steps == COPIES * turns


def test_the_random_games_have_all_that_they_promise():
    _, games = played(PettingZooTurns, InTurns, 1, 400)
    rows = [row for game in games for name in NAMES for row in game.books.rows[name]]
    assert {(row.terminated, row.truncated) for row in rows} == {(False, False), (True, False), (False, True)}
    assert len(rows) == COPIES * 400 - sum(game.books.open[name] is not None for game in games for name in NAMES)
