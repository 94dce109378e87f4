"""What episodes earn tells whether a run learns: no better than random, sure too early, forgotten; without alarm where
policies play against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from protocol.config.run import parse_run
from workers.environments.registry import describe
from workers.metrics.run_findings import RunFindings
from workers.planning.policy_plan import plan_policies

CHANCE = {"a": {"random": 20.0, "random_stderr": 1.0, "random_episodes": 100}}
"""Of the one agent of a world."""


def found(
    means: list[float], progress: float = 0.6, chance: Mapping[str, Mapping[str, float]] = CHANCE, entropy: float = 0.5
) -> set[str]:
    """What is found of policy `p`, which plays agent `a`, after it earned `means` in order."""
    judge = RunFindings({"p": "a"}, {"p": math.log(2)})
    told: dict[str, dict[str, tuple[float, float]]] = {}
    for mean in means:
        told = judge.look(progress, {"p": mean}, chance, {"p": entropy}, {})
    return set(told["p"])


def agents(*earned: float) -> dict[str, dict[str, float]]:
    """What random players of agents `a`, `b`... earn."""
    return {
        name: {"random": mean, "random_stderr": float(mean != 0), "random_episodes": 100}
        for name, mean in zip("abc", earned, strict=False)
    }


@pytest.mark.parametrize(
    ("means", "progress", "expected"),
    [
        ([21.0], 0.6, {"no_better_than_random"}),
        ([21.0], 0.4, set()),
        ([30.0], 0.6, set()),
        ([500.0, 150.0], 0.3, {"forgotten"}),
        ([500.0, 300.0], 0.3, set()),
        ([26.0, 22.5], 0.3, set()),
    ],
    ids=["half", "not-yet", "better", "forgotten", "kept", "nothing-learned"],
)
def test_returns_tell_of_learning(means: list[float], progress: float, expected: set[str]) -> None:
    assert found(means, progress) == expected


@pytest.mark.parametrize(
    ("means", "expected"),
    [([0.05, 0.01], set()), ([0.09, 0.01], set()), ([0.9, 0.01], {"forgotten"})],
    ids=["lucky", "luckier", "learned"],
)
def test_a_best_that_was_luck_is_not_forgotten(means: list[float], expected: set[str]) -> None:
    """Who chooses by chance finds the one reward of 1 in one of 100 episodes."""
    rare = {"a": {"random": 0.01, "random_stderr": 0.0032, "random_episodes": 1_000}}
    assert found(means, 0.3, rare) == expected


def test_what_is_forgotten_is_not_known_where_chance_earns_nothing() -> None:
    nothing = {"a": {"random": 0.0, "random_stderr": 0.0, "random_episodes": 1_000}}
    assert found([0.05, 0.01], 0.3, nothing) == set()


@pytest.mark.parametrize(
    ("entropy", "mean", "expected"), [(0.001, 21.0, True), (0.1, 21.0, False), (0.001, 90.0, False)]
)
def test_who_is_sure_and_no_better_than_random_is_sure_too_early(entropy: float, mean: float, expected: bool) -> None:
    assert found([mean], 0.2, entropy=entropy) == ({"entropy_collapsed"} if expected else set())


def test_how_sure_a_policy_was_is_still_known_when_its_learner_has_ended() -> None:
    judge = RunFindings({"p": "a"}, {"p": math.log(2)})
    judge.look(0.2, {"p": 21.0}, CHANCE, {"p": 0.001}, {})
    assert set(judge.look(0.2, {"p": 21.0}, CHANCE, {}, {})["p"]) == {"entropy_collapsed"}


@pytest.mark.parametrize(
    ("shares", "mean", "progress", "expected"),
    [
        ([-3.0, 0.0], 21.0, 0.3, True),
        ([-3.0, 0.0], 21.0, 0.2, False),
        ([-3.0, 0.0], 90.0, 0.3, False),
        ([0.3, 0.0], 21.0, 0.3, False),
        ([0.3, *[0.0] * 10], 21.0, 0.3, True),
        ([], 21.0, 0.3, False),
    ],
    ids=["nothing", "early", "learns", "something", "nothing-for-long", "no-critic"],
)
def test_a_critic_that_explains_nothing_for_long_is_told_where_nobody_learns(
    shares: list[float], mean: float, progress: float, expected: bool
) -> None:
    judge = RunFindings({"p": "a"}, {})
    told: dict[str, dict[str, tuple[float, float]]] = {}
    for share in shares or [math.nan]:
        told = judge.look(progress, {"p": mean}, CHANCE, {}, {"p": share} if shares else {})
    assert ("critic_explains_nothing" in told["p"]) == expected


@pytest.mark.parametrize(
    "chance", [{}, {"a": {"random": 20.0, "random_stderr": 1.0, "random_episodes": 5}}], ids=["none", "few"]
)
def test_without_random_episodes_nothing_is_compared(chance: Mapping[str, Mapping[str, float]]) -> None:
    assert found([1.0], chance=chance) == set()


def test_a_world_in_which_nobody_finds_a_reward_is_told_and_one_of_opponents_is_not() -> None:
    """Nothing by chance is no sum of gains and losses."""
    for earned, expected in (((0.0, 0.0), {"no_better_than_random"}), ((0.3, -0.3), set())):
        judge = RunFindings({"p": "a", "q": "b"}, {})
        told = judge.look(0.9, {"p": earned[0] / 2, "q": earned[1] / 2}, agents(*earned), {}, {})
        assert {*told["p"], *told["q"]} == expected


def test_what_luck_of_both_signs_hides_is_not_told() -> None:
    """A random player earns 0.5, give or take 13; one who finds one reward in 200 episodes 0.005, give or take that."""
    lucky = {"a": {"random": 0.5, "random_stderr": 13.0, "random_episodes": 200}}
    assert found([2.0], chance=lucky) == set()
    rare = {"a": {"random": 0.005, "random_stderr": 0.005, "random_episodes": 200}}
    assert found([0.0], chance=rare) == {"no_better_than_random"}


def test_a_policy_that_earns_less_because_another_learns_is_well() -> None:
    judge = RunFindings({"p": "a", "q": "b"}, {})
    chance = agents(20.0, 5.0)
    judge.look(0.1, {"p": 90.0, "q": 5.0}, chance, {}, {})
    assert judge.look(0.9, {"p": 12.0, "q": 80.0}, chance, {}, {}) == {"p": {}, "q": {}}


def test_a_player_of_a_league_that_no_agent_names_is_judged_by_an_agent_that_it_plays() -> None:
    players = {"main": {"opponents": ["main"]}, "exploiter": {"agents": ["agent_1"], "opponents": ["main"]}}
    run = parse_run(
        {
            "agents": {"agent_0": "main", "agent_1": "main"},
            "steps": 24_000,
            "league": {"snapshot_every": 2_000, "players": players},
        }
    )
    world = describe(run.environment)
    judge = RunFindings.of(plan_policies(run, world), run, world)
    assert judge.agents == {"main": "agent_0", "exploiter": "agent_1"}
