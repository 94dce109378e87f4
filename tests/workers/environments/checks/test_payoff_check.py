"""Payoffs that a world declares are held to while it runs, however its agents take turns (I4, I11)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Agent, ArrayPopulation, Box, DictPopulation, Discrete, World
from tests.faults import raises
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.environments.checks.payoff_check import PayoffCheck, declares_payoffs

COPIES = 2


def agent(name: str) -> Agent:
    """Any."""
    return Agent(name=name, observation=Box(shape=(1,)), action=Discrete(n=2))


def world(payoff: Any, names: str = "ab") -> World:
    """Agents with one payoff."""
    return World(id="w", population=DictPopulation(agents=tuple(map(agent, names)), payoff=payoff))


def news(kind: Any, which: int, reward: list[float], ended: bool = False, copies: list[int] | None = None) -> Any:
    """Of agent `which`, in all copies or in `copies`."""
    n = len(reward)
    told: dict[str, Any] = {"agent": which, "reward": np.array(reward, np.float32), "terminated": np.full(n, ended)}
    told["truncated"] = np.zeros(n, np.bool_)
    where: NDArray[np.int64] | None = None if copies is None else np.array(copies)
    if kind is AgentTimeStep:
        return AgentTimeStep(observation=np.zeros((n, 1), np.float32), copies=where, **told)
    return AgentOutcome(copies=np.arange(n) if where is None else where, **told)


def present(which: int, reward: list[float], ended: bool = False, copies: list[int] | None = None) -> AgentTimeStep:
    """It acts now."""
    found: AgentTimeStep = news(AgentTimeStep, which, reward, ended, copies)
    return found


def outcome(which: int, reward: list[float], ended: bool = False, copies: list[int] | None = None) -> AgentOutcome:
    """It does not."""
    found: AgentOutcome = news(AgentOutcome, which, reward, ended, copies)
    return found


def test_a_general_world_is_bound_by_nothing():
    assert not declares_payoffs(world("general"))
    assert declares_payoffs(world("zero_sum"))


@pytest.mark.parametrize(
    ("payoff", "good", "bad"),
    [
        ("cooperative", ([1, 2], [1, 2]), ([1, 2], [1, 3])),
        ("zero_sum", ([1, 2], [-1, -2]), ([1, 2], [-1, 3])),
    ],
)
def test_where_all_act_at_once_every_turn_is_looked_at(payoff: Any, good: Any, bad: Any):
    guard = PayoffCheck(world(payoff), COPIES)
    guard.check(Turn((present(0, [0, 0]), present(1, [0, 0]))))
    guard.check(Turn((present(0, good[0]), present(1, good[1]))))
    where = {"environment": "w", "population": "all", "turn": 2, "copy": 1}
    with raises(EnvironmentFault, "payoff_broken", **where, payoff=payoff, value="a 2, b 3"):
        guard.check(Turn((present(0, bad[0]), present(1, bad[1]))))


def test_where_they_act_in_turn_sums_are_compared_when_all_are_told():
    """A game of two: each is told with its own turn what came since; the last move ends it for both."""
    guard = PayoffCheck(world("zero_sum"), COPIES)
    for first in (True, False):
        guard.check(
            Turn(
                (present(0, [0, 0] if first else [2, 0], not first),),
                outcomes=() if first else (outcome(1, [-2, 0], True),),
            )
        )
        guard.check(Turn((present(1, [0, 0]),)))
        guard.check(Turn((present(0, [1, 1]),)))
        guard.check(Turn((present(1, [-1, -1]),)))
    with raises(EnvironmentFault, "payoff_broken", turn=8, copy=0, payoff="zero_sum", value="a 6, b -5"):
        guard.check(Turn((present(0, [5, 0], True),), outcomes=(outcome(1, [-4, 0], True),)))


def test_who_died_is_not_looked_at_in_a_team_but_counts_in_a_game():
    for payoff, later in (("cooperative", [3.0, 3.0]), ("zero_sum", [0.0, 0.0])):
        guard = PayoffCheck(world(payoff, "abc"), COPIES)
        guard.check(Turn((present(0, [0, 0]), present(1, [0, 0]), present(2, [0, 0]))))
        same = [0.0, 0.0]
        guard.check(Turn((present(0, same), present(1, same)), outcomes=(outcome(2, same, True),)))
        guard.check(Turn((present(0, later), present(1, later))))
        guard.check(Turn((present(0, later), present(1, later), present(2, [0, 0]))))
        with raises(EnvironmentFault, "payoff_broken", turn=4):
            guard.check(Turn((present(0, [1, 1]), present(1, [1, 1]), present(2, [7, 7]))))


def test_copies_are_at_different_points_of_their_games():
    guard = PayoffCheck(world("cooperative"), COPIES)
    guard.check(Turn((present(0, [0, 0]), present(1, [0, 0]))))
    guard.check(Turn((present(0, [1], copies=[0]), present(1, [1, 5]))))
    guard.check(Turn((present(0, [2, 8]), present(1, [2, 3]))))
    with raises(EnvironmentFault, "payoff_broken", copy=1, payoff="cooperative", value="a 4, b 3"):
        guard.check(Turn((present(0, [2, 4]), present(1, [2, 3]))))


def test_many_of_a_template_are_a_team_as_well():
    herd = World(id="w", population=ArrayPopulation(template=agent("cow"), capacity=3, payoff="cooperative"))
    guard = PayoffCheck(herd, COPIES)
    guard.check(Turn((present(0, [0] * 6),)))
    guard.check(Turn((present(0, [1, 1, 1, 2, 2, 2]),)))
    guard.check(Turn((present(0, [1, 1], copies=[0, 1]),)))
    late = outcome(0, [2], copies=[2])
    earned = "cow.0 2, cow.1 3, cow.2 2"
    with raises(EnvironmentFault, "payoff_broken", copy=0, payoff="cooperative", value=earned):
        guard.check(Turn((present(0, [1, 2, 4, 4, 4], copies=[0, 1, 3, 4, 5]),), outcomes=(late,)))


def test_a_new_game_begins_from_nothing():
    guard = PayoffCheck(world("cooperative"), COPIES)
    guard.check(Turn((present(0, [0, 0]), present(1, [0, 0]))))
    guard.check(Turn((present(0, [1, 1]),)))
    guard.begin()
    guard.check(Turn((present(0, [0, 0]), present(1, [0, 0]))))
    guard.check(Turn((present(0, [2, 2]), present(1, [2, 2]))))
