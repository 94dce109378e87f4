"""Agents of PettingZoo may be called by anything that can be a key; their text is their name."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.base import AgentOutcome, AgentTimeStep


class Side(enum.Enum):
    LEFT = 0
    RIGHT = 1


class Seat(NamedTuple):
    team: str
    number: int


class Ship:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Anonymous:
    pass


class Counting:
    """All act at once: each earns its action, and the last one leaves after two steps."""

    def __init__(self, agents: list[Hashable]) -> None:
        self.possible_agents = agents
        self.given: list[Mapping[Hashable, Any]] = []

    def observation_space(self, agent: Hashable) -> Any:
        return gymnasium.spaces.Box(0, 9, (1,), np.uint8)

    def action_space(self, agent: Hashable) -> Any:
        return gymnasium.spaces.Discrete(5)

    def reset(self, seed: int | None = None) -> Any:
        self.agents, self.at = list(self.possible_agents), 0
        return self._look(), {}

    def _look(self) -> dict[Hashable, Any]:
        return {agent: np.array([at + self.at], np.uint8) for at, agent in enumerate(self.possible_agents)}

    def step(self, actions: Mapping[Hashable, Any]) -> Any:
        self.given.append(actions)
        self.at += 1
        over = {agent: self.at == (2 if agent is self.possible_agents[-1] else 4) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        rewards = {agent: float(action) for agent, action in actions.items()}
        return self._look(), rewards, over, dict.fromkeys(over, False), {}

    def close(self) -> None:
        pass


class InTurn(Counting):
    """One after the other, for four turns of each."""

    infos: dict[Hashable, Any] = {}  # noqa: RUF012

    def agent_iter(self) -> None:
        """Says that it is an AECEnv."""

    def reset(self, seed: int | None = None) -> None:
        super().reset()
        self.turn = 0

    @property
    def agent_selection(self) -> Hashable:
        return self.possible_agents[self.turn % len(self.possible_agents)]

    def last(self) -> Any:
        return self._look()[self.agent_selection], 1.0, False, False, {}

    def step(self, action: Any) -> None:
        self.given.append({self.agent_selection: action})
        self.turn += 1


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        ([0, 1, 2], ["0", "1", "2"]),
        ([np.int64(4), np.int64(7)], ["4", "7"]),
        ([("red", 0), ("red", 1)], ["red_0", "red_1"]),
        ([Seat("blue", 3), Seat("red", 3)], ["blue_3", "red_3"]),
        ([Side.LEFT, Side.RIGHT], ["Side.LEFT", "Side.RIGHT"]),
        ([Ship("kon tiki"), Ship("ra")], ["kon_tiki", "ra"]),
        (["_left", -1, 0.5], ["_left", "_-1", "0.5"]),
    ],
)
def test_agents_are_called_by_their_texts_and_addressed_by_what_they_are(
    agents: list[Hashable], names: list[str]
) -> None:
    made: list[Counting] = []

    def make_one() -> Counting:
        made.append(Counting(agents))
        return made[-1]

    environment = PettingZooEnvironment("counting", make_one, copies=2)
    assert [agent.name for agent in environment.world.agents] == names
    turn = environment.reset(0)
    for step in range(1, 6):
        turn = environment.step([np.full(2, present.agent) for present in turn.present])
        begins = step == 4  # the last one has not acted in this episode
        both: list[AgentTimeStep | AgentOutcome] = [*turn.present, *turn.outcomes]
        for told in both:
            assert told.reward.tolist() == [0 if begins and names[told.agent] == names[-1] else told.agent] * 2
        there = agents[:-1] if step in (3, 4) else agents
        assert all(list(env.given[-1]) == there for env in made)
    assert all(type(key) is type(agents[0]) for env in made for key in list(env.given[0])[:1])


def test_agents_in_turn_may_be_numbers_and_objects_too() -> None:
    agents: list[Hashable] = [1, ("red", 0), Ship("ra")]
    made: list[InTurn] = []

    def make_one() -> InTurn:
        made.append(InTurn(agents))
        return made[-1]

    environment = PettingZooAEC("in_turn", make_one, copies=1)
    assert [agent.name for agent in environment.world.agents] == ["1", "red_0", "ra"]
    turn = environment.reset(0)
    for _ in range(6):
        turn = environment.step([np.full(1, 2)])
    assert [*map(dict, made[0].given)] == [{agent: 2} for agent in agents] * 2
    assert [present.agent for present in turn.present] == [0]


@pytest.mark.parametrize(
    ("agents", "name"),
    [
        ([1, "1"], "1"),
        (["red team", "red_team"], "red_team"),
        ([("red", 0), "red_0"], "red_0"),
        ([Ship("ra"), Ship("ra")], "ra"),
        (["a", "b", "a"], "a"),
    ],
)
def test_two_that_read_alike_are_refused(agents: list[Hashable], name: str) -> None:
    other = next(agent for agent in agents if agent in (name,) or str(agent) == name or agent is agents[0])
    with raises(ConfigurationError, "agents_read_alike", environment="alike", name=name, other=repr(other)):
        PettingZooEnvironment("alike", lambda: Counting(agents), copies=1)


@pytest.mark.parametrize("agent", [Anonymous(), ("red", Anonymous()), "", "?!"])
def test_one_without_a_text_that_lasts_is_refused(agent: Hashable) -> None:
    with raises(ConfigurationError, "agent_without_text", environment="unnamed", agent=repr(agent)):
        PettingZooEnvironment("unnamed", lambda: Counting(["a", agent]), copies=1)
