"""Who an agent is, what it did last and what that earned are parts of what it sees, where a run asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.environment import AddedInput, ObservedParts
from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Text,
    Tuple,
    World,
)
from tests.faults import raises
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.wrappers.added_inputs import AddedInputs

E = 3
ALL: tuple[AddedInput, ...] = ("agent", "last_action", "last_reward")


def both(id: str, mode: Any, **settings: Any) -> tuple[Environment, Environment]:
    """A world as it is, and with all inputs added."""
    plain = EnvironmentConfig(id=id, copies=E, turn_mode=mode, settings=settings)
    return make(plain), CheckedEnvironment(make(plain.model_copy(update={"observe": ObservedParts(add=ALL)})))


@pytest.mark.parametrize(
    ("id", "mode", "settings"),
    [
        ("treasure_hunt", "sequential", {"height": 7, "width": 7, "turns": 6}),
        ("tag", "simultaneous", {"turns": 5, "agents": 3, "width": 6, "height": 6}),
        ("rendezvous", "simultaneous", {"turns": 4, "desynchronize": True}),
        ("gymnasium:CartPole-v1", None, {}),
    ],
)
def test_each_sees_its_number_and_what_its_last_action_was_and_earned(id: str, mode: Any, settings: Any) -> None:
    """Against the same world without it, and a record of actions and rewards by agent and copy."""
    plain, wide = both(id, mode, **settings)
    players = [random_player(place, np.random.default_rng(i)) for i, place in enumerate(plain.world.places)]
    last: dict[tuple[int, int], tuple[Any, float]] = {}
    turn, widened = plain.reset(5), wide.reset(5)
    shown, ended = 0, 0
    for _ in range(60):
        late = plain.flush_ends()
        finals: dict[tuple[int, int], Any] = {}
        told: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *late, *turn.present)
        for one in told:
            copies = np.arange(E) if one.copies is None else one.copies
            for row, copy in enumerate(copies):
                if (one.agent, copy) in last:
                    action, earned = last[one.agent, copy]
                    last[one.agent, copy] = action, earned + float(one.reward[row])
            for at, row in enumerate(one.final_index):
                assert one.final_observation is not None
                finals[one.agent, copies[row]] = one.final_observation[at], *last[one.agent, copies[row]]
            for gone in copies[one.terminated | one.truncated]:
                last.pop((one.agent, gone), None)
                ended += 1
        assert [one.agent for one in widened.present] == [one.agent for one in turn.present]
        for before, after in zip(turn.present, widened.present, strict=True):
            np.testing.assert_array_equal(after.reward, before.reward)
            for row, copy in enumerate(range(E) if before.copies is None else before.copies):
                done, earned = last.get((before.agent, copy), (None, 0.0))
                _same(after.observation[row], before.observation[row], before.agent, done, earned)
                shown += (before.agent, copy) in last
        told = (*widened.outcomes, *widened.present)
        seen = {
            (one.agent, copy): one.final_observation[at]
            for one in told
            if one.final_observation is not None
            for at, copy in enumerate((np.arange(E) if one.copies is None else one.copies)[one.final_index])
        }
        assert seen.keys() == finals.keys()
        for (agent, copy), (own, done, earned) in finals.items():
            _same(seen[agent, copy], own, agent, done, earned)
        chosen = [players[p.agent](p) for p in turn.present]
        for before, action in zip(turn.present, chosen, strict=True):
            for row, copy in enumerate(range(E) if before.copies is None else before.copies):
                last[before.agent, copy] = np.array(action[row]), 0.0
        turn, widened = plain.step(chosen), wide.step(chosen)
    assert shown > 100
    assert ended > 0


def _same(row: NDArray, own: NDArray, agent: int, done: Any, earned: float) -> None:
    for field in own.dtype.names or ():
        np.testing.assert_array_equal(row[field], own[field])
    if own.dtype.names is None:
        np.testing.assert_array_equal(row["own"], own)
    assert row["agent"] == agent
    first = 1 if row.dtype["last_action"].kind == "i" else 0
    np.testing.assert_array_equal(row["last_action"], 0 * row["last_action"] if done is None else done + first)
    assert row["last_reward"] == pytest.approx(earned)


ACT = Dict(
    spaces={
        "gear": Discrete(n=3, start=-1),
        "pair": Tuple(spaces=(MultiDiscrete(nvec=(2, 4), start=(5, 0)), MultiBinary(shape=(2,)))),
        "wheel": Box(shape=(2,), low=(1.0, -3.0), high=(2.0, -1.0)),
    }
)


class Herd(Environment):
    """Up to three goats of one template; in each turn one of them is there, the second first."""

    def __init__(self, action: Any = ACT) -> None:
        self.copies = 2
        template = Agent(name="goat", observation=Box(shape=(1,)), action=action)
        self.world = World(id="herd", population=ArrayPopulation(template=template, capacity=3))

    def reset(self, seed: int) -> Turn:
        self._t = 0
        return self._turn()

    def step(self, actions: Any) -> Turn:
        self._t += 1
        return self._turn()

    def _turn(self) -> Turn:
        rows = np.array([1, 4]) if self._t % 2 == 0 else np.array([0, 1, 5])
        seen = np.full((len(rows), 1), self._t, np.float32)
        no = np.zeros(len(rows), np.bool_)
        outcomes: tuple[AgentOutcome, ...] = ()
        if self._t == 1:
            outcomes = (AgentOutcome(0, np.array([4]), np.ones(1, np.float32), np.ones(1, np.bool_), no[:1]),)
        earned = np.full(len(rows), self._t, np.float32)
        return Turn((AgentTimeStep(0, seen, earned, no, no, rows),), 1, outcomes)


def test_those_of_a_template_and_the_parts_of_an_action_are_told_apart() -> None:
    """Choices count from 1, whatever they begin with; what nobody did is 0, which numbers may be too."""
    herd = AddedInputs(Herd(), ALL)
    (place,) = herd.world.places
    spaces = {leaf.name.removeprefix("observation."): leaf.space for leaf in place.observed.leaves}
    assert spaces["agent"] == Discrete(n=3)
    assert spaces["last_action.gear"] == Discrete(n=4)
    assert spaces["last_action.pair.0"] == MultiDiscrete(nvec=(3, 5))
    assert spaces["last_action.wheel"] == Box(shape=(2,), low=(0.0, -3.0), high=(2.0, 0.0))
    (first,) = herd.reset(0).present
    assert first.observation["agent"].tolist() == [1, 1]
    assert not any(first.observation[name].any() for name in spaces if name.startswith("last"))
    action = place.acted.zeros(2)
    action["gear"], action["pair.0"], action["pair.1"], action["wheel"] = [-1, 1], [[5, 3], [6, 0]], 1, [1.5, -2.0]
    (second,) = herd.step([action]).present
    seen = second.observation
    assert seen["agent"].tolist() == [0, 1, 2]
    assert seen["last_action.gear"].tolist() == [0, 1, 0]
    assert seen["last_action.pair.0"].tolist() == [[0, 0], [1, 4], [0, 0]]
    assert seen["last_action.pair.1"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert seen["last_action.wheel"].tolist() == [[0, 0], [1.5, -2.0], [0, 0]]
    assert seen["last_reward"][:, 0].tolist() == [1.0, 1.0, 1.0]
    action = place.acted.zeros(3)
    (third,) = herd.step([action]).present
    assert third.observation["last_reward"][:, 0].tolist() == [2.0, 2.0]
    assert third.observation["last_action.gear"].tolist() == [2, 0], "the second goat of copy 1 began anew"


@pytest.mark.parametrize(
    ("kind", "world"),
    [
        ("last_action_is_text", Herd(Text(max_length=3))),
        ("observation_part_taken", AddedInputs(Herd(), ALL[:1])),
    ],
)
def test_what_cannot_be_added_is_said(kind: str, world: Environment) -> None:
    with raises(ConfigurationError, kind, key="environment.observe.add"):
        AddedInputs(world, ALL)


def test_a_simulator_says_itself_what_it_shows() -> None:
    config = EnvironmentConfig(id="external", settings={"world": "rendezvous"}, observe=ObservedParts(add=ALL))
    with raises(ConfigurationError, "observe_not_here", key="environment.observe", fields="add"):
        make(config)
