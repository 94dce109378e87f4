"""Rewards are held to what the world says of them, in every population and every copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import EnvironmentFault
from protocol.spaces import Agent, ArrayPopulation, DictPopulation, Discrete, Payoff, Payoffs, World
from tests.faults import raises


def _agent(name: str) -> Agent:
    return Agent(name=name, observation=Discrete(n=2), action=Discrete(n=2))


def _pair(payoff: Payoff, name: str = "all") -> DictPopulation:
    return DictPopulation(name=name, payoff=payoff, agents=(_agent("a"), _agent("b")))


def _checker(population: Any, **more: Any) -> Payoffs:
    return Payoffs(World(id="duel", population=population), **more)


def test_zero_sum_rewards_sum_to_zero_in_every_copy_I4() -> None:
    checker = _checker(_pair("zero_sum"))
    checker.check({"a": 1.0, "b": -1.0}, turn=0)
    checker.check({"a": [1.0, 0.0], "b": [-1.0, 0.0]}, turn=0)
    with raises(EnvironmentFault, "payoff_broken", value="a -1, b -1", total=" (sum -2)"):
        checker.check({"a": -1.0, "b": -1.0}, turn=0)
    facts = {"environment": "duel", "population": "all", "turn": 7, "copy": 1, "payoff": "zero_sum"}
    with raises(EnvironmentFault, "payoff_broken", value="a 2, b -1.5", total=" (sum 0.5)", **facts):
        checker.check({"a": [1.0, 2.0], "b": [-1.0, -1.5]}, turn=7)


def test_cooperative_rewards_are_equal_in_every_copy_I4() -> None:
    checker = _checker(_pair("cooperative"))
    checker.check({"a": [1.0, 5.0], "b": [1.0, 5.0]}, turn=0)
    with raises(EnvironmentFault, "payoff_broken", population="all", turn=3, copy=0, payoff="cooperative"):
        checker.check({"a": [1.0, 5.0], "b": [0.0, 5.0]}, turn=3)


def test_general_rewards_are_anything_I4() -> None:
    _checker(_pair("general")).check({"a": 1.0, "b": float("nan")}, turn=0)


@pytest.mark.parametrize("payoff", ["zero_sum", "cooperative"])
@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_reward_that_is_no_number_is_a_fault_I4(payoff: Any, reward: float) -> None:
    with raises(EnvironmentFault, "payoff_broken", payoff=payoff):
        _checker(_pair(payoff)).check({"a": reward, "b": -reward}, turn=0)


def test_teams_are_held_to_their_own_rule_inside_a_game_with_another_I4() -> None:
    teams = DictPopulation(payoff="zero_sum", agents=(_pair("cooperative", "red"), _pair("cooperative", "blue")))
    checker = _checker(teams)
    good = {"red.a": 1.0, "red.b": 1.0, "blue.a": -1.0, "blue.b": -1.0}
    checker.check(good, turn=0)
    with raises(EnvironmentFault, "payoff_broken", population="blue", turn=0, copy=0, payoff="cooperative"):
        checker.check(good | {"blue.a": -2.0, "blue.b": 0.0}, turn=0)
    with raises(EnvironmentFault, "payoff_broken", population="all", turn=0, copy=0, payoff="zero_sum"):
        checker.check(good | {"blue.a": 0.0, "blue.b": 0.0}, turn=0)


def test_those_who_took_no_part_are_not_looked_at_I4_I5() -> None:
    herd = ArrayPopulation(name="herd", template=_agent("sheep"), capacity=3, payoff="cooperative")
    checker = _checker(herd)
    rewards = {"sheep": [[1.0, 1.0, 9.0], [2.0, 9.0, 9.0]]}
    checker.check(rewards, turn=0, absent={"sheep": [[False, False, True], [False, True, True]]})
    checker.check(rewards, turn=0, absent={"sheep": np.ones((2, 3), bool)})
    checker.check({}, turn=0)
    with raises(EnvironmentFault, "payoff_broken", copy=1, payoff="cooperative", value="sheep.0 2, sheep.1 9"):
        checker.check(rewards, turn=0, absent={"sheep": [[False, False, True], [False, False, True]]})
    pair = _checker(_pair("zero_sum"))
    pair.check({"a": 1.0, "b": 0.5}, turn=0, absent={"a": True, "b": True})
    with raises(EnvironmentFault, "payoff_broken", value="b 0.5", total=" (sum 0.5)"):
        pair.check({"a": 1.0, "b": 0.5}, turn=0, absent={"a": True})


def test_many_agents_are_told_in_short_I4() -> None:
    herd = ArrayPopulation(name="herd", template=_agent("sheep"), capacity=3000, payoff="zero_sum")
    some = ", ".join(f"sheep.{number} 1" for number in range(8))
    with raises(EnvironmentFault, "payoff_broken", value=f"{some} and 2992 more", total=" (sum 3000)"):
        _checker(herd).check({"sheep": np.ones(3000)}, turn=0)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(0.5, 1e3))
def test_rounding_is_no_fault_and_a_real_difference_is_one_I4(rewards: list[float], wrong: float) -> None:
    a = np.array(rewards, np.float32)
    zero, same = _checker(_pair("zero_sum")), _checker(_pair("cooperative"))
    rounded = (-(a.astype(np.float64) / 3 * 3)).astype(np.float32)
    zero.check({"a": a, "b": rounded}, turn=0)
    same.check({"a": a, "b": -rounded}, turn=0)
    off = a + np.float32(np.abs(a).max() * 1e-3 + wrong)
    with raises(EnvironmentFault, "payoff_broken", payoff="zero_sum"):
        zero.check({"a": off, "b": -a}, turn=0)
    with raises(EnvironmentFault, "payoff_broken", payoff="cooperative"):
        same.check({"a": off, "b": a}, turn=0)
