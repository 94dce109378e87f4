"""Who sits where in a league, and what is refused before anybody starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete, World
from tests.faults import raises
from workers.planning.league_plan import plan_league
from workers.planning.policy_plan import plan_policies
from workers.sequential import Sequential

AGENTS = tuple(Agent(name=name, observation=Box(shape=(2,)), action=Discrete(n=3)) for name in "ab")
WORLD = World(id="pair", agents=AGENTS)
ONE = {"a": "main", "b": "main"}


def run(league: dict[str, Any], **keys: Any) -> Any:
    keys = {"agents": ONE, "steps": 16_000, "environment": {"copies": 16}, **keys}
    return parse_run({"league": {"snapshot_every": 2_000, **league}, **keys})


def test_each_player_learns_in_copies_of_its_own_and_the_rest_is_the_arena_J7() -> None:
    plan = plan_league(run({"arena": 0.25, "size": 5}), WORLD)
    assert plan is not None
    assert [(home.player, home.agent, home.first, home.last) for home in plan.homes] == [
        ("main", 0, 0, 6),
        ("main", 1, 6, 12),
    ]
    assert plan.members == (
        "main/0",
        "main/1",
        "main/2",
        "main/3",
        "main/64",
    )  # 6,000 rows in two seats of 16,000 steps
    learned = plan_policies(run({"arena": 0.25}), WORLD)["main"]
    assert (learned.copies, learned.streams, learned.fraction_of_steps(WORLD)) == (6, 12, 0.375)


def test_an_exploiter_sits_where_it_is_put_and_meets_whom_it_is_told_J7() -> None:
    players = {
        "main": {"opponents": ["main"]},
        "exploiter": {"agents": ["a", "b"], "opponents": ["main"], "fresh": True},
    }
    plan = plan_league(run({"players": players, "arena": 0}), WORLD)
    assert plan is not None
    assert [(one.name, one.agents, one.opponents, one.fresh) for one in plan.players.values()] == [
        ("main", (0, 1), ("main",), False),
        ("exploiter", (0, 1), ("main",), True),
    ]
    assert len(plan.homes) == 4
    assert ("exploiter", "main/0") in plan.pairs
    assert ("main", "exploiter/0") not in plan.pairs
    assert ("main/0", "exploiter/0") in plan.pairs


def test_players_of_one_seat_each_meet_those_of_the_other_J7() -> None:
    plan = plan_league(run({}, agents={}), WORLD)
    assert plan is not None
    assert {name: player.opponents for name, player in plan.players.items()} == {"a": ("b",), "b": ("a",)}
    assert plan.seats_for("a", "b") == (0,)
    assert ("a/0", "a/1") not in plan.pairs


@pytest.mark.parametrize(
    ("league", "keys", "kind", "facts"),
    [
        ({"size": 2}, {}, "league_library_too_small", {"count": 4, "limit": 2, "key": "league.size"}),
        ({"snapshot_every": 9_000}, {}, "league_snapshots_never_due", {"value": 9_000, "key": "league.snapshot_every"}),
        (
            {"players": {"main": {"opponents": ["ghost"]}}},
            {},
            "league_opponent_unknown",
            {"opponent": "ghost", "choices": ["main"], "key": "league.players.main.opponents"},
        ),
        (
            {"players": {"a": {"opponents": ["a"]}}},
            {"agents": {}},
            "league_opponent_not_opposite",
            {"opponent": "a", "key": "league.players.a.opponents"},
        ),
        ({"players": {"new": {}}}, {}, "league_player_without_seat", {"key": "league.players.new.agents"}),
        (
            {"players": {"new": {"agents": ["z"]}}},
            {},
            "league_player_of_unknown_agent",
            {"agent": "z", "choices": ["a", "b"], "key": "league.players.new.agents"},
        ),
        ({"matchmaking": "nash", "arena": 0}, {}, "league_nash_without_arena", {"key": "league.arena"}),
        ({"arena": 0.9}, {}, "league_copies_too_few", {"expected": 2, "count": 1, "key": "environment.copies"}),
        (
            {},
            {"policies": {"main": {"algorithm": {"name": "scripted"}}}},
            "league_needs_two_learners",
            {"environment": "pair", "count": 0},
        ),
        ({}, {"schedule": "lockstep", "policy": {"segment_length": 8}}, "league_in_lockstep", {}),
        ({}, {"actors": 0}, "league_without_actors", {}),
        ({}, {"multiprocessing": {"enabled": False}}, "league_without_coordinator", {}),
        ({}, {"environment": {"id": "external", "copies": 16}}, "league_with_simulators", {}),
    ],
)
def test_a_league_that_cannot_be_is_refused_in_one_sentence(
    league: Any, keys: Any, kind: str, facts: dict[str, Any]
) -> None:
    """J7: an opponent that does not exist, a population larger than the library, a league that goes nowhere."""
    with raises(ConfigurationError, kind, **facts):
        plan_league(run(league, **keys), WORLD)


def test_a_league_in_one_process_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with raises(ConfigurationError, "league_needs_coordinator", key="league"):
        Sequential(run({}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
