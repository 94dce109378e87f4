"""Who sits where in a league, and what is refused before anybody starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.config import parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete, World
from workers.league_plan import plan_league
from workers.plan import plan_policies
from workers.sequential import Sequential

AGENTS = tuple(Agent(name=name, observation=Box(shape=(2,)), action=Discrete(n=3)) for name in "ab")
WORLD = World(id="pair", agents=AGENTS)
ONE = {"a": "main", "b": "main"}


def run(league: dict[str, Any], **keys: Any) -> Any:
    keys = {"agents": ONE, "steps": 16_000, "environment": {"copies": 16}, **keys}
    return parse_run({"league": {"snapshot_every": 2_000, **league}, **keys})


def test_each_player_learns_in_copies_of_its_own_and_the_rest_is_the_arena_J7() -> None:
    plan = plan_league(run({"arena": 0.25}), WORLD)
    assert plan is not None
    assert [(home.player, home.agent, home.first, home.last) for home in plan.homes] == [
        ("main", 0, 0, 6),
        ("main", 1, 6, 12),
    ]
    assert plan.arena == range(12, 16)
    assert plan.members == ("main/0", "main/1", "main/2", "main/3")  # 6,000 rows in two seats of 16,000 steps
    learned = plan_policies(run({"arena": 0.25}), WORLD)["main"]
    assert (learned.copies, learned.streams, learned.share(WORLD)) == (6, 12, 0.375)


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
    ("league", "keys", "why"),
    [
        ({"size": 2}, {}, "would grow to 4 members and its library holds 2; raise league.size"),
        ({"snapshot_every": 9_000}, {}, "no member would ever join"),
        (
            {"players": {"main": {"opponents": ["ghost"]}}},
            {},
            "names 'ghost', which is no player; the players are main",
        ),
        ({"players": {"a": {"opponents": ["a"]}}}, {"agents": {}}, "does not sit in all seats opposite"),
        ({"players": {"new": {}}}, {}, "sits nowhere"),
        ({"players": {"new": {"agents": ["z"]}}}, {}, "no agent of pair; its agents are a, b"),
        ({"matchmaking": "nash", "arena": 0}, {}, "would never be measured; raise league.arena"),
        ({"arena": 0.9}, {}, "needs 2 copies beside its arena, and there are 1"),
        ({}, {"policies": {"main": {"algorithm": {"name": "scripted"}}}}, "two agents or more whose policies learn"),
        ({}, {"schedule": "lockstep", "policy": {"segment_length": 8}}, "schedule is lockstep"),
        ({}, {"actors": 0}, "no actors"),
        ({}, {"multiprocessing": {"enabled": False}}, "is of one process without one; remove league"),
        ({}, {"environment": {"id": "external", "copies": 16}}, "simulators play with whom they want"),
        ({"opponents": 3}, {}, "unknown configuration key 'league.opponents'"),
    ],
)
def test_a_league_that_cannot_be_is_refused_in_one_sentence(league: Any, keys: Any, why: str) -> None:
    """J7: an opponent that does not exist, a population larger than the library, a programme that goes nowhere."""
    with pytest.raises(ConfigurationError, match=why):
        plan_league(run(league, **keys), WORLD)


def test_a_league_in_one_process_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="leave --sequential out, or remove league"):
        Sequential(run({}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
