"""The seat of an agent whose policy does not learn: nothing of what it does is written down but its returns.

In flows: an agent's turns, and outcomes between them. Out flows: actions; episodes and the sum of their returns.

Legend: `n` streams that act, of all streams of the agent in a group of copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.rollout.segment_block import Index
from workers.rollout.stream_state import EpisodeReturns


class FixedPlayer(Protocol):
    """A `Player` that is told what comes beside its turns."""

    def __call__(self, present: AgentTimeStep) -> NDArray[Any]:
        """n actions."""

    def add_outcome(self, outcome: AgentOutcome) -> None:
        """Rewards and ends between its turns."""

    def set_shared_observation(self, common: NDArray[Any]) -> None:
        """What all agents see in this turn, before it acts."""


class Collector(Protocol):
    """What takes an agent's turns, where some or all of its actions are of policies that do not learn."""

    name: str
    steps: int
    """Actions so far of those who do not learn."""

    def act(self, present: AgentTimeStep, on_wait: Callable[[], None]) -> NDArray[Any]:
        """n actions."""

    def add_outcome(self, outcome: AgentOutcome, on_wait: Callable[[], None]) -> None:
        """What arrived between the agent's turns."""


class FixedCollector:
    """Agent `name`, which `performer` plays in `streams` streams. It takes turns as a `AgentCollector` does."""

    def __init__(self, name: str, performer: FixedPlayer, streams: int) -> None:
        self.name, self.performer = name, performer
        self.steps = 0
        """Actions so far."""
        self.episodes = EpisodeReturns(streams)

    def set_shared_observation(self, common: NDArray[Any]) -> None:
        """What all agents see in this turn."""
        self.performer.set_shared_observation(common)

    def act(self, present: AgentTimeStep, on_wait: Callable[[], None]) -> NDArray[Any]:
        """n actions; never waits."""
        streams: Index = slice(None) if present.copies is None else present.copies
        self.episodes.add(streams, present.reward, present.terminated | present.truncated)
        actions = self.performer(present)
        self.episodes.act(streams)
        self.steps += len(actions)
        return actions

    def add_outcome(self, outcome: AgentOutcome, on_wait: Callable[[], None]) -> None:
        """What arrived between the agent's turns."""
        self.episodes.add(outcome.copies, outcome.reward, outcome.terminated | outcome.truncated)
        self.performer.add_outcome(outcome)
