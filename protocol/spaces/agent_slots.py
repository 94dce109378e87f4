"""Where agents stand in the tree, and the leaves that each sees and does.

In flow: a population. Out flow: a `Place` for each agent and template below it, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray

from protocol.spaces.composite import elements
from protocol.spaces.primitive import Box
from protocol.spaces.row_format import Leaf, Role, RowFormat, field_of
from protocol.spaces.tree import Agent, ArrayPopulation, Population, is_evaluation_only, space_of


@dataclass(frozen=True)
class Place:
    """An agent, or the template of a varying number of them, where it stands in the tree.

    `populations`: (path, population) from the outermost to the one it is a direct member of. `capacity`: the most that
    there are at once if it is a template, else None.
    """

    name: str
    agent: Agent
    populations: tuple[tuple[str, Population], ...]
    capacity: int | None

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of those that may stand here: its own, or one for each number below `capacity`."""
        return (self.name,) if self.capacity is None else tuple(f"{self.name}.{i}" for i in range(self.capacity))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """All it sees (common observations first, from the outermost population), its masks, and what it does."""
        return tuple(self._leaves())

    @cached_property
    def observed(self) -> RowFormat:
        """Rows of its own observations, without common ones."""
        return self._record("observation")

    @cached_property
    def acted(self) -> RowFormat:
        """Rows of its actions."""
        return self._record("action")

    @cached_property
    def masked(self) -> RowFormat | None:
        """Rows of its masks of legal actions, if it has any."""
        return self._record("action_mask") if self.agent.action_mask else None

    @property
    def many(self) -> int:
        """The most that stand here at once in one copy of the world: `capacity`, or 1."""
        return self.capacity or 1

    def parts(self, role: Role, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """leaf name -> its own array, a view on `rows` of `observed` (role "observation"), `acted` or `masked`."""
        fields = self._fields[role]
        return {role: rows} if fields is None else {name: rows[field] for name, field in fields}

    @cached_property
    def _fields(self) -> dict[str, list[tuple[str, str]] | None]:
        """(leaf name, field of its record) of each role; None where rows are plain."""
        records = {"observation": self.observed, "action": self.acted, "action_mask": self.masked}
        return {
            role: [(leaf.name, field_of(leaf)) for leaf in record.leaves] if record.nested else None
            for role, record in records.items()
            if record is not None
        }

    def _record(self, role: Role) -> RowFormat:
        return RowFormat.of([leaf for leaf in self.leaves if leaf.role == role])

    def _leaves(self) -> Iterator[Leaf]:
        for path, population in self.populations:
            if population.common is not None:
                yield from _seen("common", population.common, path)
        yield from _seen("observation", self.agent.observation, self.name)
        does = tuple(elements(space_of(self.agent.action), "action"))
        for part in does if self.agent.action_mask else ():
            choices = getattr(part.space, "choices", None)
            if choices is not None:
                mask, name = Box(shape=(choices,), dtype="bool"), part.name.replace("action", "action_mask", 1)
                yield Leaf(name, "action_mask", part.path, mask, False, self.name)
        for part in does:
            yield Leaf(part.name, "action", part.path, part.space, False, self.name)


def places_of(population: Population) -> tuple[Place, ...]:
    """The agents and templates of a tree, depth first."""
    return tuple(_descend(population, "", ()))


def _seen(role: Literal["observation", "common"], node: Any, owner: str) -> Iterator[Leaf]:
    for part in elements(space_of(node), role):
        yield Leaf(part.name, role, part.path, part.space, is_evaluation_only(node, part), owner)


def _descend(node: Population, path: str, above: tuple[tuple[str, Population], ...]) -> Iterator[Place]:
    above = (*above, (path, node))
    dotted = f"{path}." if path else ""
    if isinstance(node, ArrayPopulation):
        yield Place(dotted + node.template.name, node.template, above, node.capacity)
        return
    for child in node.agents:
        if isinstance(child, Agent):
            yield Place(dotted + child.name, child, above, None)
        else:
            yield from _descend(child, dotted + child.name, above)
