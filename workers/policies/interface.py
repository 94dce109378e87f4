"""Both ends of a policy: what it is shown and what it does. Without torch: the coordinator and relays plan with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from protocol.config.network import CNNEncoder, EntryNetwork, MLPEncoder, OneEncoder
from protocol.config.run import PolicyConfig
from protocol.experience.layout import common_of
from protocol.spaces import Agent, Box, Place, World
from workers.policies.action_encoding import ActionEncoding
from workers.policies.observation_encoding import ObservationEncoding, holds_pixels

Reader = OneEncoder | Mapping[str, OneEncoder] | EntryNetwork


@dataclass(frozen=True)
class Interface:
    """What the agent at `place`, or any of its kind, sees and does."""

    place: Place
    observation_encoding: ObservationEncoding
    action_encoding: ActionEncoding
    encoder: Reader | None = None
    """What reads what it sees, perhaps the whole network; None: a perceptron, all of it as numbers."""

    @classmethod
    def at(cls, world: World, place: Place, config: PolicyConfig | None = None) -> Interface:
        """The interface of the policy that plays the agent at `place`; ConfigurationError where no policy can."""
        common = common_of(world)
        encoder = None if config is None else _encoder(place, common, config)
        shown = ObservationEncoding(place, common, by_leaf=encoder is not None)
        return cls(place, shown, ActionEncoding(place), encoder)

    @classmethod
    def of(cls, agent: Agent, config: PolicyConfig | None = None) -> Interface:
        """The interface of an agent in a world of its own."""
        world = World(id="alone", agents=(agent,))
        return cls.at(world, world.places[0], config)

    @cached_property
    def privileged(self) -> ObservationEncoding | None:
        """What learners see besides: evaluation-only observations; None where there are none."""
        hidden = any(leaf.evaluation_only for leaf in self.place.observed.leaves)
        return ObservationEncoding(self.place, privileged=True) if hidden else None


def _encoder(place: Place, common: Box | None, config: PolicyConfig) -> Reader | None:
    """The one that is configured, or what an image needs."""
    if isinstance(config.network, EntryNetwork):
        return config.network
    told = config.network.encoder
    if isinstance(told, MLPEncoder) and not told.hidden:
        return None
    seen = [leaf.space for leaf in place.observed.leaves if not leaf.evaluation_only]
    shown = seen if common is None else [*seen, common]
    frames = config.algorithm.frames
    return told or (CNNEncoder() if any(holds_pixels(space, frames) for space in shown) else None)
