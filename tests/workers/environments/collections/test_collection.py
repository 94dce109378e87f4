"""Copies that go from member to member: nothing earned is lost or told twice, whoever acts when."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.environment import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from tests.workers.environments.adapters.random_games import NAMES
from tests.workers.environments.collections.worlds import (
    APART,
    Crowd,
    Ledger,
    NumberedTogether,
    NumberedTurns,
    Paying,
    collection,
    numbered,
)
from tests.workers.environments.worlds.table import Table
from workers.environments.base import AgentOutcome, Environment, Turn
from workers.environments.collections import Collection

KINDS = [NumberedTogether, NumberedTurns]


def books_agree(ledger: Ledger, games: list[Any]) -> int:
    """Every row of every game's own books was told once, in order, in one stream at a time; how many there were."""
    found: dict[tuple[int, int], list[Any]] = {}
    for (agent, _), rows in ledger.rows.items():
        for seen, row in rows:
            found.setdefault((int(seen[0]), agent), []).append(row)
    acting = {(int(seen[0]), present.agent) for present in ledger.turn.present for seen in present.observation}
    total = 0
    for number, game in enumerate(games):
        for agent, name in enumerate(NAMES):
            books = list(game.books.rows[name])
            if game.books.open[name] is not None and (number, agent) in acting:
                books.append(game.books.open[name])  # told with the presence that waits
            assert sorted(found.pop((number, agent), []), key=lambda row: row.seen) == books
            total += len(books)
    assert not found
    return total


def ended_returns(game: Any, name: str) -> float:
    """Of the agent's episodes that have ended in a game, by its own books."""
    returns = total = 0.0
    for row in game.books.rows[name]:
        total += row.reward
        if row.terminated or row.truncated:
            returns, total = returns + total, 0.0
    return returns


@settings(max_examples=30, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    copies=st.integers(1, 4),
    turns=st.integers(1, 120),
    seed=st.integers(0, 2**20),
    adversarial=st.booleans(),
)
def test_random_games_in_a_collection_count_every_reward_once_I9_K5(kinds, copies, turns, seed, adversarial):
    """Agents die, come, act in turn or together; whichever member a copy is in, and whoever had it before."""
    games: list[Any] = []
    structure = {"adversarial": {"tries": 1}} if adversarial else {"prior": {f"m{i}": 1 for i in range(len(kinds))}}
    environment, _ = collection(numbered(kinds, games), copies, **structure)
    ledger = Ledger(environment, actions=5).play(turns, seed)
    books_agree(ledger, games)
    tally: dict[tuple[str, int], tuple[int, float]] = {}
    for agent, first, total, _ in ledger.returns():
        kind = type(games[int(first[0])])
        key = ("|".join(f"m{i}" for i, one in enumerate(kinds) if one is kind), agent)
        count, returns = tally.get(key, (0, 0.0))
        tally[key] = (count + 1, returns + total)
    told = ledger.environment.take_episodes()
    grouped: dict[tuple[str, int], tuple[int, float]] = {}
    for (member, agent), (count, returns) in told.items():
        kind = kinds[int(member[1:])]
        key = ("|".join(f"m{i}" for i, one in enumerate(kinds) if one is kind), agent)
        before = grouped.get(key, (0, 0.0))
        grouped[key] = (before[0] + count, before[1] + returns)
    assert grouped.keys() == tally.keys()
    for key, (count, returns) in tally.items():
        assert grouped[key][0] == count
        assert grouped[key][1] == pytest.approx(returns)
    environment.close()


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=3),
    copies=st.integers(1, 3),
    turns=st.integers(1, 150),
)
def test_seats_write_every_row_of_a_collection_once_I9_K5(kinds, copies, turns):
    """What a learner is given: of each stream the rows of one game after another, each with what it led to."""
    games: list[Any] = []
    environment, _ = collection(numbered(kinds, games), copies, prior={f"m{i}": 1 for i in range(len(kinds))})
    table = Table(environment)
    table.play(turns)
    acting = {(int(seen[0]), present.agent) for present in table.turn.present for seen in present.observation.tolist()}
    for agent, name in enumerate(NAMES):
        rows = [row for game in games for row in game.books.rows[name]]
        waiting = [g.books.open[name] for n, g in enumerate(games) if g.books.open[name] and (n, agent) in acting]
        expected = {row.seen: row for row in (*rows, *waiting)}
        found = [row for stream in table.found(agent) for row in stream]
        for row in found:
            assert row == expected.pop(row.seen), "once, and with what it led to"
        assert table.seats[agent].open_rows == len(expected)
        episodes, returns, _ = table.seats[agent].episodes.take()
        assert episodes == sum(row.terminated or row.truncated for row in rows)
        assert returns == pytest.approx(sum(ended_returns(game, name) for game in games))
        streams = [[row.seen for row in stream] for stream in table.found(agent)]
        for stream in streams:
            for number in range(len(games)):
                times = [seen for seen in stream if seen // APART == number]
                assert times == sorted(times)


def test_the_random_collections_change_members_and_wait_in_between() -> None:
    """The property above means something: games are left and come back, to other copies too."""
    games: list[Any] = []
    environment, made = collection(numbered(KINDS, games), 3, prior={"m0": 1, "m1": 1})
    ledger = Ledger(environment, actions=5).play(400)
    assert books_agree(ledger, games) > 1_000
    assert sum(made.values()) <= 6
    streams = Counter(int(seen[0]) for rows in ledger.rows.values() for seen, _ in rows)
    assert len(streams) >= 4
    copies_of: dict[int, set[int]] = {number: set() for number in streams}
    for (_, copy), rows in ledger.rows.items():
        for seen, _ in rows:
            copies_of[int(seen[0])].add(copy)
    assert max(map(len, copies_of.values())) > 1
    environment.close()


def test_an_episode_is_over_when_all_have_ended_who_came() -> None:
    """Agents that never act are not waited for."""

    class Lonely(NumberedTogether):
        def __init__(self, seed: int) -> None:
            super().__init__(seed, busy=0.0, joins=0.0)

    games: list[Any] = []
    environment, _ = collection(numbered([Lonely, Lonely], games), 1, prior={"m0": 1, "m1": 1})
    ledger = Ledger(environment, actions=5).play(200)
    assert {agent for agent, _ in ledger.rows} == {0}
    assert {first[0] for _, first, *_ in ledger.returns()} == {0.0, 1.0}
    environment.close()


@pytest.mark.parametrize("mode", ["sequential", "simultaneous"])
@pytest.mark.parametrize("terminates", [False, True])
def test_agents_in_turn_are_told_all_ends_before_a_copy_changes_I9(mode: Any, terminates: bool) -> None:
    """Returns, ends and final observations of worlds that tell each agent's end with its next presence."""
    members = {
        "penny": partial(Paying, 1.0, 3, mode, terminates=terminates),
        "pound": partial(Paying, 100.0, 5, mode, terminates=terminates),
    }
    environment, _ = collection(members, 4, prior={"penny": 2, "pound": 1})
    ledger = Ledger(environment).play(3 * 134 if mode == "sequential" else 134)
    assert ledger.env_steps == 4 * 134
    turns = {1.0: 3, 100.0: 5}
    episodes = ledger.returns()
    for agent, first, total, terminated in episodes:
        pay, _, left, who = first.tolist()
        assert total == pay * (agent + 1) * turns[pay]
        assert (left, who, terminated) == (turns[pay], agent, terminates)
    assert Counter(first[0] for _, first, *_ in episodes).keys() == {1.0, 100.0}
    assert len(ledger.finals) == (0 if terminates else len(episodes))
    for seen, final in ledger.finals:
        assert (final[0], final[1], final[3]) == (seen[0], seen[1], seen[3]), "of the same episode and agent"
        assert final[2] == 0
    told = ledger.environment.take_episodes()
    assert sum(count for count, _ in told.values()) == len(episodes)
    assert {total / count for (member, _), (count, total) in told.items() if member == "pound"} == {500, 1000, 1500}
    assert ledger.environment.take_episodes() == {}
    environment.close()


def test_an_episode_that_began_before_a_copy_left_is_played_when_it_comes_back_I9() -> None:
    """No episode is skipped, and none is played twice: those of each environment are numbered through."""
    members = {"penny": partial(Paying, 1.0, 3, "sequential"), "pound": partial(Paying, 100.0, 5, "sequential")}
    environment, made = collection(members, 1, prior={"penny": 1, "pound": 1})
    ledger = Ledger(environment).play(500)
    for pay in (1.0, 100.0):
        for agent in range(3):
            begun = [int(first[1]) for who, first, *_ in ledger.returns() if who == agent and first[0] == pay]
            assert begun == list(range(1, len(begun) + 1))
    assert made == {"penny": 1, "pound": 1}
    environment.close()


def test_a_varying_crowd_with_common_observations_changes_too_I5_I9() -> None:
    """Templates stand for several agents: rows are numbered copy * capacity + place."""
    environment, _ = collection(
        {"one": partial(Crowd, 1.0), "ten": partial(Crowd, 10.0)}, 3, prior={"one": 1, "ten": 1}
    )
    ledger = Ledger(environment)
    ledger.play(300)
    assert ledger.turn.common is not None
    assert ledger.turn.common.shape == (3, 2)
    for present in ledger.turn.present:
        where = np.arange(9) if present.copies is None else present.copies
        assert (present.observation[:, 0] == ledger.turn.common[where // 3, 0]).all(), "own and common of one member"
    rows = [pair for rows in ledger.rows.values() for pair in rows]
    assert len(rows) > 500
    assert {seen[0] for seen, _ in rows} == {1.0, 10.0}
    assert all(row.reward == seen[0] for seen, row in rows)
    assert all((final[0], final[1]) == (seen[0], seen[1] + 1) for seen, final in ledger.finals)
    assert len(ledger.finals) == sum(row.truncated for _, row in rows) > 20
    environment.close()


def test_the_same_seed_gives_the_same_turns_also_after_another_reset() -> None:
    def told(ledger: Ledger) -> list[Any]:
        return [(key, [(seen.tolist(), row) for seen, row in rows]) for key, rows in sorted(ledger.rows.items())]

    members = {"one": partial(Crowd, 1.0), "ten": partial(Crowd, 10.0), "six": partial(Crowd, 6.0)}
    environment, _ = collection(members, 3, adversarial={"exploration": 0.5, "tries": 1})
    first = told(Ledger(environment).play(80, seed=5))
    other = told(Ledger(environment).play(80, seed=6))
    again = told(Ledger(environment).play(80, seed=5))
    fresh, _ = collection(members, 3, adversarial={"exploration": 0.5, "tries": 1})
    assert first == again == told(Ledger(fresh).play(80, seed=5))
    assert first != other
    environment.close()
    fresh.close()


def test_a_prior_is_drawn_for_each_episode_I9() -> None:
    """Chi-square over episodes that began, 1 degree of freedom, p > 0.001."""
    members = {"penny": partial(Paying, 1.0, 1, "simultaneous"), "pound": partial(Paying, 100.0, 1, "simultaneous")}
    environment, _ = collection(members, 4, prior={"penny": 3, "pound": 1})
    ledger = Ledger(environment).play(200)
    counts = Counter(first[0] for agent, first, *_ in ledger.returns() if agent == 0)
    total = sum(counts.values())
    assert total == 800
    assert sum((counts[p] - s * total) ** 2 / (s * total) for p, s in ((1.0, 0.75), (100.0, 0.25))) < 10.8
    environment.close()


def test_scores_decide_what_is_played_I9() -> None:
    """A curriculum opens by what was earned (the mean over agents, 6, of a penny's 3 turns), an adversary goes there
    where it is least."""
    members = {"penny": partial(Paying, 1.0, 3, "sequential"), "pound": partial(Paying, 100.0, 5, "sequential")}
    after = {"after": {"pound": ["penny"]}, "episodes": 4, "rehearsal": 0.0}
    for threshold, opened in ((6.0, True), (6.1, False)):
        environment, _ = collection(members, 1, curriculum={**after, "threshold": {"penny": threshold}})
        ledger = Ledger(environment).play(200)
        played = [first[0] for agent, first, *_ in ledger.returns() if agent == 0]
        assert played[:4] == [1.0] * 4
        assert set(played[4:]) == ({100.0} if opened else {1.0})
        environment.close()
    environment, _ = collection(members, 1, adversarial={"tries": 2, "exploration": 0.0})
    ledger = Ledger(environment).play(300)
    played = [first[0] for agent, first, *_ in ledger.returns() if agent == 0]
    assert sorted(played[:4]) == [1.0, 1.0, 100.0, 100.0]
    assert set(played[4:]) == {1.0}
    environment.close()


class Late(Paying):
    """Tells each agent's end with its next presence, and nothing when it is asked to conclude."""

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        return ()


def test_a_world_that_tells_ends_too_late_is_named() -> None:
    members: dict[str, Any] = {
        "late": partial(Late, 1.0, 3, "sequential"),
        "pound": partial(Paying, 100.0, 5, "sequential"),
    }
    environment, _ = collection(members, 1, prior={"late": 1000, "pound": 1})
    with raises(EnvironmentFault, "episode_steps_exceeded", environment="paying 1", limit=3, member="late"):
        Ledger(environment).play(40)
    environment.close()


class Broken(Paying):
    def step(self, actions: Any) -> Turn:
        raise ValueError("the floor gave way")


class Early(Paying):
    def reset(self, seed: int) -> Turn:
        turn = super().reset(seed)
        yes, no = np.ones(1, np.bool_), np.zeros(1, np.bool_)
        turn.outcomes = (AgentOutcome(1, np.zeros(1, np.int64), np.ones(1, np.float32), yes, no),)
        return turn


@pytest.mark.parametrize(
    ("member", "kind", "facts"),
    [
        (Broken, "environment_raised", {"method": "step", "reason": "ValueError: the floor gave way"}),
        (Early, "outcomes_before_first_step", {}),
    ],
)
def test_faults_name_the_member(member: type[Paying], kind: str, facts: dict[str, str]) -> None:
    environment, _ = collection({"odd": partial(member, 1.0, 3, "sequential")})
    with raises(EnvironmentFault, kind, member="odd", environment="paying 1", **facts) as caught:
        Ledger(environment).play(4)
    assert "odd" in str(caught.value)
    environment.close()


def test_a_member_that_cannot_be_made_is_named_and_the_others_are_closed() -> None:
    closed = []

    class Closing(Paying):
        def close(self) -> None:
            closed.append(self.pay)

    def refused() -> Environment:
        raise ConfigurationError("value_invalid", key="size", reason="too small", value="1")

    with raises(ConfigurationError, "value_invalid", key="environment.members.odd", member="odd", value="1"):
        collection({"good": lambda: Closing(1.0, 3, "sequential"), "odd": refused}, prior={"good": 1, "odd": 1})
    assert closed == [1.0]


def test_all_are_closed_also_where_one_fails_to(caplog: pytest.LogCaptureFixture) -> None:
    closed = []

    class Closing(Paying):
        def close(self) -> None:
            closed.append(self.pay)
            if self.pay == 2.0:
                raise ValueError("it sticks")

    members = {f"m{pay}": partial(Closing, float(pay), 3, "sequential") for pay in (1, 2, 3)}
    environment, _ = collection(members, 1, adversarial={})
    environment.close()
    assert sorted(closed) == [1.0, 2.0, 3.0]
    (said,) = [record.getMessage() for record in caplog.records if "event=close_raised" in record.getMessage()]
    assert "environment=paying 2 " in said
    assert "ValueError: it sticks" in said


def test_other_settings_hold_from_the_next_episode_on_and_what_was_made_before_is_closed_once() -> None:
    closed: list[tuple[float, int]] = []

    class Closing(Paying):
        def close(self) -> None:
            closed.append((self.pay, id(self)))

    def make(config: EnvironmentConfig) -> Environment:
        return Closing(config.settings.get("pay", 1.0), 3, "simultaneous")

    config = EnvironmentConfig.model_validate({"copies": 2, "members": {"m": {"id": "m"}}})
    collection = Collection(config, make)
    ledger = Ledger(collection).play(4)  # in the second episode
    ledger.environment.set_curriculum({"settings": {"m": {"pay": 2.0}, "other": {}}})
    ledger.environment.set_curriculum({"settings": {"m": {"pay": 2.0}, "other": {}}})
    chosen = [np.zeros(2, np.int64)] * 3
    paid = [float(ledger.environment.step(chosen).present[0].reward[0]) for _ in range(5)]
    assert paid == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert [pay for pay, _ in closed] == [1.0, 1.0]
    ledger.environment.set_curriculum({"settings": {"m": {"pay": 3.0}}})
    assert ledger.environment.reset(0).present[0].observation[:, 0].tolist() == [3.0, 3.0]
    assert min(stage.number for stage in collection._stages["m"]) == 4, "who is new draws other episodes"
    ledger.environment.set_curriculum({"settings": {"m": {"pay": 4.0}}})
    ledger.environment.close()
    assert sorted(pay for pay, _ in closed) == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert len({*closed}) == 6
