"""Seats of one policy act in one forward pass, each with its own noise, each getting its own rows back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import IQN, PPO
from protocol.spaces import Agent, Box, Discrete, World
from tests.workers import scripted
from workers.environments.base import AgentTimeStep, Turn
from workers.policies.interface import Interface
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.inference import act_turn

WORLD = World(
    id="w", agents=tuple(Agent(name=name, observation=Box(shape=(2,)), action=Discrete(n=5)) for name in "abc")
)
COPIES = 4


class Counted(ActingPolicy):
    """A performer that counts its forward passes."""

    passes = 0

    def act(self, *given: Any, **more: Any) -> dict[str, NDArray]:
        """As its parent's."""
        self.passes += 1
        return super().act(*given, **more)


def table(policies: dict[str, Counted], algorithm: PPO | IQN) -> dict[tuple[int, int], AgentCollector]:
    """A seat for each agent of WORLD, at the policy that `policies` names."""
    config = scripted.config(algorithm, 8)
    seats = {}
    for agent, name in enumerate("abc"):
        sender = scripted.Sender(scripted.layout_of(config, WORLD), COPIES, 4)
        noise = np.random.default_rng(agent)
        seats[agent, 0] = AgentCollector(name, policies[name], sender, range(COPIES), noise)
    return seats


def present(agent: int, t: int, rows: list[int] | None = None) -> AgentTimeStep:
    """Random observations that are the same in every run."""
    seen = np.random.default_rng((agent, t)).standard_normal((COPIES, 2)).astype(np.float32)
    seen = seen if rows is None else seen[rows]
    n = len(seen)
    nothing = np.zeros(n, np.bool_)
    where = None if rows is None else np.array(rows)
    return AgentTimeStep(agent, seen, np.zeros(n, np.float32), nothing, nothing.copy(), where)


def policy(algorithm: PPO | IQN, seed: int = 1) -> Counted:
    """One with initial weights of `seed`."""
    return Counted(Interface.at(WORLD, WORLD.places[0]), scripted.config(algorithm, 8), seed)


@pytest.mark.parametrize("algorithm", [PPO(), IQN(frames=2, epsilon=0.5)], ids=["ppo", "iqn"])
def test_a_shared_policy_makes_one_pass_and_everybody_does_what_they_would_alone(algorithm: PPO | IQN) -> None:
    shared, other = policy(algorithm), policy(algorithm, 2)
    together = table({"a": shared, "b": other, "c": shared}, algorithm)
    apart = table({name: policy(algorithm, 2 if name == "b" else 1) for name in "abc"}, algorithm)
    for t in range(6):
        rows: list[int] | None = [0, 2] if t == 3 else None
        turn = Turn((present(0, t), present(1, t), present(2, t, rows)))
        found = act_turn(together, turn, scripted.never)
        alone = [apart[one.agent, 0].act(one, scripted.never) for one in turn.present]
        for mine, theirs in zip(found, alone, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert (shared.passes, other.passes) == (6, 6)


@pytest.mark.parametrize("names", ["abc", "aab"], ids=["each its own", "two share one"])
def test_whoever_waits_is_answered_before_rows_are_written_and_rows_stay_what_they_are(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seats() -> dict[tuple[int, int], AgentCollector]:
        policies = {name: policy(PPO(), ord(name)) for name in "abc"}
        return table({name: policies[played] for name, played in zip("abc", names, strict=True)}, PPO())

    told: list[Any] = []
    keep = AgentCollector.record

    def noted(self: AgentCollector, present: AgentTimeStep) -> None:
        told.append(self.name)
        keep(self, present)

    monkeypatch.setattr(AgentCollector, "record", noted)
    prompt, plain = seats(), seats()
    for t in range(11):  # more than a segment
        turn = Turn(tuple(present(agent, t) for agent in range(3)))
        told.clear()
        found = act_turn(prompt, turn, scripted.never, answer=told.append)
        assert told[0] is found
        assert sorted(told[1:]) == ["a", "b", "c"]
        for mine, theirs in zip(found, act_turn(plain, turn, scripted.never), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    for chair, other in zip(prompt.values(), plain.values(), strict=True):
        for name, column in chair._sender.ring.columns.items():
            np.testing.assert_array_equal(column, other._sender.ring.columns[name], err_msg=name)


def test_nobody_waits_for_who_is_not_there() -> None:
    shared = policy(PPO())
    seats = table(dict.fromkeys("abc", shared), PPO())
    assert act_turn(seats, Turn(()), scripted.never) == []
    (action,) = act_turn(seats, Turn((present(1, 0),)), scripted.never)
    assert len(action) == COPIES
    assert shared.passes == 1
