"""Both ends of a policy: what it is shown and what it does. Without torch: the coordinator and relays plan with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from protocol.experience.layout import common_of
from protocol.spaces import Agent, Place, World
from workers.policies.action_encoding import ActionEncoding
from workers.policies.observation_encoding import ObservationEncoding

__all__ = ["Interface"]


@dataclass(frozen=True)
class Interface:
    """What the agent at `place`, or any of its kind, sees and does."""

    place: Place
    observation_encoding: ObservationEncoding
    action_encoding: ActionEncoding

    @classmethod
    def at(cls, world: World, place: Place) -> Interface:
        """The interface of the policy that plays the agent at `place`; ConfigurationError where no policy can."""
        return cls(place, ObservationEncoding(place, common_of(world)), ActionEncoding(place))

    @classmethod
    def of(cls, agent: Agent) -> Interface:
        """The interface of an agent in a world of its own."""
        world = World(id="alone", agents=(agent,))
        return cls.at(world, world.places[0])

    @cached_property
    def privileged(self) -> ObservationEncoding | None:
        """What learners see besides: evaluation-only observations; None where there are none."""
        hidden = any(leaf.evaluation_only for leaf in self.place.observed.leaves)
        return ObservationEncoding(self.place, privileged=True) if hidden else None
