"""The nodes of the tree: what an agent observes and does, agents, and populations of them.

In flow: plain data. Out flow: frozen nodes, in which what means the same is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.composite import Dict, Element, Space, Tuple, elements, flatten, sorted_by_name
from protocol.spaces.model import ELEMENTS, Key, Label, Node
from protocol.spaces.primitive import Box, Discrete, MultiBinary, MultiDiscrete, Text

Payoff = Literal["cooperative", "zero_sum", "general"]


class Component(Node):
    """A part of an observation. `evaluation_only`: learners see it (a central critic, say), acting policies never."""

    space: Space
    evaluation_only: bool = False


class Observation(Node):
    """A Dict space whose parts carry tags. One without any tag becomes that Dict space."""

    kind: Literal["observation"] = "observation"
    components: Annotated[dict[Key, Component], AfterValidator(sorted_by_name)]


class Action(Node):
    """A Dict space; not `atomic`: its elements may arrive, and are done, one by one. Atomic, it becomes that space."""

    kind: Literal["action"] = "action"
    space: Space
    atomic: bool = True

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if not self.atomic and not isinstance(self.space, Dict):
            raise ConfigurationError("partial_action_not_a_dict", value=self.space.kind)
        return self


def _plain(node: Any) -> Any:
    """A node that says no more than its space does, as that space."""
    if isinstance(node, Observation) and not any(part.evaluation_only for part in node.components.values()):
        return space_of(node)
    if isinstance(node, Action) and node.atomic:
        return node.space
    return node


if TYPE_CHECKING:
    # Whoever reads an agent's spaces knows which kinds it takes; `Place.leaves` serves all kinds, with their types.
    Seen: TypeAlias = Any
    Done: TypeAlias = Any
else:
    _Leaves = Box | Discrete | MultiDiscrete | MultiBinary | Text
    Seen = Annotated[_Leaves | Dict | Tuple | Observation, Field(discriminator="kind"), AfterValidator(_plain)]
    Done = Annotated[_Leaves | Dict | Tuple | Action, Field(discriminator="kind"), AfterValidator(_plain)]


class Agent(Node):
    """A named place in a world that observes and acts, or the template of many alike.

    `observation` is a space or an `Observation`, `action` a space or an `Action`. `action_mask`: each observation comes
    with a mask of the choices that are legal, for every Discrete and MultiDiscrete leaf of the action.
    """

    kind: Literal["agent"] = "agent"
    name: Label
    observation: Seen
    action: Done
    action_mask: bool = False

    @model_validator(mode="after")
    def _maskable(self) -> Self:
        choices = [getattr(part.space, "choices", 0) for part in elements(space_of(self.action), "action")]
        if self.action_mask and not 0 < max(choices, default=0) <= ELEMENTS:
            raise ConfigurationError("action_mask_not_possible", agent=self.name)
        return self

    def see(self, value: Any, where: str = "") -> dict[str, NDArray[Any]]:
        """leaf name -> array of an observation; EnvironmentFault (it begins with `where`) for what is not in its space.

        Whatever is evaluation-only must be there, and must not be where the world is a deployed one.
        """
        return flatten(space_of(self.observation), value, "observation", where or self.name)

    def take(self, value: Any, where: str = "") -> dict[str, NDArray[Any]]:
        """leaf name -> array of an action; of one that is not atomic, some of its elements are enough.

        EnvironmentFault (it begins with `where`) for what is not in the action's space.
        """
        space = space_of(self.action)
        if isinstance(self.action, Action) and isinstance(value, Mapping):
            if not value:
                raise EnvironmentFault("action_is_empty", agent=where or self.name, choices=list(space.spaces))
            space = Dict(spaces={key: inner for key, inner in space.spaces.items() if key in value} or space.spaces)
        elif isinstance(space, Dict) and isinstance(value, Mapping) and value.keys() < space.spaces.keys():
            lacking = ", ".join(key for key in space.spaces if key not in value)
            raise EnvironmentFault("atomic_action_incomplete", agent=where or self.name, fields=lacking)
        return flatten(space, value, "action", where or self.name)


class _Population(Node):
    """What both forms share.

    `payoff` is about the rewards of all agents below, in one turn: `cooperative`: they are equal; `zero_sum`: they sum
    to 0. `common` (a space or an `Observation`) is observed by all of them, and delivered once for all. The name of the
    outermost population is in no path.
    """

    name: Label = "all"
    payoff: Payoff = "general"
    common: Seen | None = None


class DictPopulation(_Population):
    """A fixed set of named agents or populations. `symmetric`: they are interchangeable, so they may share a policy."""

    kind: Literal["dictionary"] = "dictionary"
    agents: Annotated[tuple[Child, ...], Field(min_length=1)]
    symmetric: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        first, names = self.agents[0], set()
        for child in self.agents:
            if child.name in names:
                raise ConfigurationError("population_member_twice", population=self.name, value=child.name)
            names.add(child.name)
            if self.symmetric and child.model_copy(update={"name": first.name}) != first:
                raise ConfigurationError(
                    "symmetric_members_differ", population=self.name, agent=first.name, other=child.name
                )
        return self


class ArrayPopulation(_Population):
    """A varying number of like agents, at most `capacity` at once: they may join and leave within an episode."""

    kind: Literal["array"] = "array"
    template: Agent
    capacity: int = Field(ge=1, le=1_000_000)


Child = Annotated[Agent | DictPopulation | ArrayPopulation, Field(discriminator="kind")]
Population = DictPopulation | ArrayPopulation
DictPopulation.model_rebuild()


def space_of(node: Any) -> Any:
    """The space of an observation, an action or a space."""
    if isinstance(node, Observation):
        return Dict(spaces={name: part.space for name, part in node.components.items()})
    return node.space if isinstance(node, Action) else node


def is_evaluation_only(node: Any, part: Element) -> bool:
    """Is this leaf of an observation evaluation-only?"""
    return isinstance(node, Observation) and node.components[str(part.path[0])].evaluation_only


def deployed(node: Any) -> Any:
    """An observation without its evaluation-only components."""
    if not isinstance(node, Observation):
        return node
    return Dict(spaces={name: part.space for name, part in node.components.items() if not part.evaluation_only})
