"""The library's files, who is at hand in an actor, and what becomes of counted games."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from protocol.errors import ConfigurationError
from protocol.memory.shared_file import Counters
from tests.faults import raises
from tests.workers.planning.test_league_plan import WORLD, run
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.league import policy_pool
from workers.league.league_state import LeagueState
from workers.league.matches import LEARNS, MatchInstructions, MatchScheduler
from workers.league.opponents import OpponentCache
from workers.planning.league_plan import ADDED, LeaguePlan, plan_league
from workers.rollout.players.frozen_player import FrozenPlayer, InferencePolicy


class Player:
    """Remembers which episodes it was told to be over."""

    def __init__(self) -> None:
        self.over: list[int] = []

    def add_outcome(self, outcome: AgentOutcome) -> None:
        self.over += outcome.copies.tolist()


def planned(**league: Any) -> LeaguePlan:
    plan = plan_league(run(league), WORLD)
    assert plan is not None
    return plan


def a_cast(
    most: int, counters: Counters, loads: list[str], monkeypatch: pytest.MonkeyPatch, away: set[str] | None = None
) -> OpponentCache:
    """`loads`: whose files were found, and with a minus who left memory; `away`: whose are on their way."""
    monkeypatch.setattr("workers.league.opponents.ExportedPolicy.load", lambda path, code: path)

    def find(name: str) -> Path | None:
        if away and name in away:
            return None
        loads.append(name)
        return Path(name)

    newest = {"main": cast(InferencePolicy, None)}
    return OpponentCache(
        newest, most, find, lambda name: loads.append(f"-{name}"), lambda *_: cast(FrozenPlayer, Player()), counters
    )


def turn(rewards: tuple[float, float], over: bool, copies: int = 16) -> Turn:
    """Both agents in all copies."""
    done = np.full(copies, over)
    return Turn(
        tuple(
            AgentTimeStep(agent, np.zeros((copies, 2)), np.full(copies, reward, np.float32), done, ~done & False)
            for agent, reward in enumerate(rewards)
        ),
        env_steps=copies,
    )


def test_members_are_files_that_never_change_and_are_checked(tmp_path: Path) -> None:
    """J7: addressed by what is in them."""
    first = policy_pool.add(tmp_path, "main", 0, b"weights")
    policy_pool.add(tmp_path, "main", 1, b"others")
    assert [entry.name for entry in policy_pool.entries(tmp_path, "main")] == ["main/0", "main/1"]
    assert policy_pool.entries(tmp_path, "main")[0] == first
    assert policy_pool.verify(first, first.path(tmp_path).read_bytes()) == b"weights"
    with raises(ConfigurationError, "library_checksum_differs", peer="main/0"):
        policy_pool.verify(first, b"weighty")
    assert policy_pool.entries(tmp_path, "nobody") == []


def test_an_actor_keeps_the_members_it_met_last_and_none_that_plays_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters(None, ["league_loads", "league_redrawn"])
    loads: list[str] = []
    away = {"main/4"}
    cast = a_cast(2, counters, loads, monkeypatch, away)
    assert cast.acquire("main/4") is None  # its file is on its way
    one, two = cast.acquire("main/1"), cast.acquire("main/2")
    assert cast.acquire("main/3") is None  # both are playing
    assert one is not None
    cast.release(one)
    assert cast.acquire("main/3") not in (None, one, two)
    assert cast.loaded == 2
    assert cast.acquire("main/2") == two
    assert loads == ["main/1", "main/2", "main/3", "-main/1"]
    assert counters["league_loads"] == 3
    assert two is not None
    cast.release(two)
    cast.release(two)
    assert cast.acquire("main/4") is None
    assert cast.loaded == 2  # nobody makes room for who is not there yet
    away.clear()
    assert cast.acquire("main/4") is not None
    assert loads[-2:] == ["main/4", "-main/2"]
    assert cast.acquire("main") == 0


def test_every_episode_is_counted_once_and_then_all_seats_change_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    """J7: a learner's with a member, and members' among themselves; nothing against a player's newest weights."""
    plan, told = planned(arena=0.25), MatchInstructions()
    counters = Counters(None, *plan.counters())
    cast = a_cast(4, counters, [], monkeypatch)
    told.hear(
        {
            "files": {"main/0": "", "main/1": ""},
            "whom": {"main": {"main/1": 1.0}},
            "pairs": [["main/0", "main/1", 1.0]],
        }
    )
    fixtures = MatchScheduler(plan, 2, 0, told, cast, counters, np.random.default_rng(0))
    fixtures.begin(turn((0, 0), False), tuple)
    assert (fixtures.who[0, :6] == LEARNS).all()
    assert (fixtures.who[1, :6] != LEARNS).all()
    assert (fixtures.who[1, 6:12] == LEARNS).all()
    assert (fixtures.who[:, 12:] != LEARNS).all()
    fixtures.begin(turn((1, -1), False), tuple)
    assert counters["league.games.main:main/1"] == 0
    fixtures.begin(turn((1, -1), True), tuple)
    assert counters["league.games.main:main/1"] == 12
    assert counters["league.points.main:main/1"] == 12  # won in the one seat, lost in the other
    assert counters["league.margin.main:main/1"] == 0
    assert counters["league.games.main/0:main/1"] == 4
    told.hear({"files": {}, "whom": {"main": {"main": 1.0}}, "pairs": [["main/0", "main/1", 1.0]]})
    fixtures.begin(turn((1, -1), True), tuple)
    fixtures.begin(turn((1, -1), True), tuple)
    assert counters["league.games.main:main/1"] == 24
    assert (fixtures.who[1, :6] == 0).all()


def test_who_is_told_its_end_later_is_waited_for_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that did not act when the episode ended is told by `conclude`."""
    plan, told = planned(arena=0), MatchInstructions()
    counters = Counters(None, *plan.counters())
    cast = a_cast(4, counters, [], monkeypatch)
    told.hear({"files": {"main/0": ""}, "whom": {"main": {"main/0": 1.0}}, "pairs": []})
    fixtures = MatchScheduler(plan, 2, 0, told, cast, counters, np.random.default_rng(0))
    fixtures.begin(turn((0, 0), False), tuple)
    ended = turn((1, 0), True)
    first, _ = ended.present
    copies = np.arange(16)
    late = AgentOutcome(1, copies, np.full(16, -1, np.float32), np.ones(16, bool), np.zeros(16, bool))
    found = fixtures.begin(Turn((first,)), lambda: (late,))
    assert found.outcomes == (late,)
    assert counters["league.games.main:main/0"] == 16
    assert counters["league.margin.main:main/0"] == 0


def test_the_standing_is_found_again_from_files_and_counters_alone(tmp_path: Path) -> None:
    """J7: the coordinator keeps nothing of a league that could be lost."""
    plan = planned(matchmaking="nash")
    for number in range(3):
        policy_pool.add(tmp_path, "main", number, bytes([number]))
    page = {name: 0.0 for names in plan.counters() for name in names}
    for one, other, won in (("main/0", "main/1", 0), ("main/0", "main/2", 0), ("main/1", "main/2", 20)):
        page |= {f"league.games.{one}:{other}": 100.0, f"league.points.{one}:{other}": 2.0 * won}
        page[f"league.margin.{one}:{other}"] = won - 50.0
    seen = []
    for _ in range(2):
        standing = LeagueState(plan, tmp_path)
        standing.update({("actor-0", 1): page, ("actor-0", 2): {}}, math.inf)
        seen.append((standing.view, standing.instructions))
    assert seen[0] == seen[1]
    view, told = seen[0]
    ratings = [member["elo"] for member in view["members"]]
    assert ratings == sorted(ratings)
    assert view["members"][2]["chance"] > 0.99
    assert view["win_rates"][2][0] == 1.0
    assert view["games"][1] == [100, 0, 100]
    assert told["whom"]["main"]["main/2"] > 0.99
    assert [pair[:2] for pair in told["pairs"]] == [["main/0", "main/1"], ["main/0", "main/2"], ["main/1", "main/2"]]


def test_who_is_added_by_people_is_met_and_the_games_of_the_player_since_it_joined_count_on(tmp_path: Path) -> None:
    plan = planned(matchmaking="prioritised")
    standing = LeagueState(plan, tmp_path)
    page = {name: 0.0 for names in plan.counters() for name in names}
    for number in range(2):
        policy_pool.add(tmp_path, "main", number, bytes([number]))
    standing.update({("actor-0", 1): page}, 0.0)
    page |= {"league.games.main:main/0": 10.0, "league.points.main:main/0": 20.0}
    policy_pool.add(tmp_path, "main", ADDED, b"weights")
    standing.update({("actor-0", 1): page}, 10.0)
    whom = standing.instructions["whom"]["main"]
    assert whom["main/0"] < whom["main/1"] == whom[f"main/{ADDED}"]
