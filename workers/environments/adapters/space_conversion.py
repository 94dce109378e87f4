"""Values of foreign environments as rows, and actions as those environments expect them; one by one, or of many copies
at once as Gymnasium's vector environments have them.

In flows: observations and masks as Gymnasium's spaces nest them; actions [n], rows of `Place.acted`. Out flows: rows
filled in; a value of the foreign action space for each row. float64 is held as float32, as no policy needs the digits,
and what comes back lies within the environment's own bounds.

Masks of legal actions come as PettingZoo has them, beside the observation (`{"observation": ..., "action_mask": ...}`),
or as `info["action_mask"]`; of an action with several choices, by their dotted names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import EnvironmentFault
from protocol.spaces import (
    Agent,
    Box,
    Dict,
    Discrete,
    Leaf,
    Place,
    Space,
    Text,
    Tuple,
    World,
    dtype_of,
    elements,
    flatten,
    nest,
    space_of,
)
from protocol.spaces.arrays import limits
from protocol.spaces.gymnasium import world_of
from protocol.spaces.pettingzoo import world_from_pettingzoo
from workers.environments.adapters.adapter_checks import mapping_of
from workers.environments.wrappers.observed_parts import Plan, pick, pick_spaces

log = logging.getLogger(__name__)


def narrowed(world: World, masked: Collection[str] = ()) -> World:
    """The same world with the dtypes that are held here, and with masks for the agents named."""
    agents = tuple(
        Agent(
            name=agent.name,
            observation=_narrow(space_of(agent.observation)),
            action=_narrow(space_of(agent.action)),
            action_mask=agent.name in masked,
        )
        for agent in world.agents
    )
    return world_of(world.id, agents, world.episode_steps)


def clipped(space: Box, column: NDArray[Any]) -> NDArray[Any]:
    """[n, *shape] in bounds: one that was rounded to float32 may lie outside by that much."""
    low, high = space.span
    return column if low is None else np.clip(column, low, high).astype(column.dtype)


def _narrow(space: Any) -> Any:
    match space:
        case Dict():
            return Dict(spaces={key: _narrow(part) for key, part in space.spaces.items()})
        case Tuple():
            return Tuple(spaces=tuple(_narrow(part) for part in space.spaces))
        case Box(dtype="float64"):
            return Box(shape=space.shape, dtype="float32", low=_fitting(space.low), high=_fitting(space.high))
    return space


def _fitting(bound: Any) -> Any:
    """Bounds without those that float32 cannot hold."""
    if isinstance(bound, tuple):
        return tuple(_fitting(one) for one in bound)
    least, most = limits("float32")
    return bound if bound is not None and least <= bound <= most else None


MASK = "action_mask"
_OWN = "observation"


class SpaceConverter:
    """One agent of a foreign environment. `native` has its spaces as they are there, `place` as they are held here;
    `where` begins every sentence on it; `beside`: masks come beside the observation; `plan`: what is taken of that."""

    def __init__(
        self,
        where: str,
        place: Place,
        native: Agent,
        beside: bool = False,
        alone: bool = True,
        plan: Plan | None = None,
    ) -> None:
        self.where, self.place, self._plan = where, place, plan
        self.beside, self._alone = beside, alone
        self._seen, self.done = space_of(place.agent.observation), space_of(native.action)
        plain = isinstance(self._seen, Box) and not beside
        self._shape = place.observed.shape
        self._dtype = place.observed.dtype if plain else None
        self._native = tuple(elements(self.done, "action"))
        self._choice = isinstance(self.done, Discrete)

    def write_observation(self, rows: NDArray[Any], row: int, value: Any) -> None:
        """`rows[row] = value`; EnvironmentFault where it is not of the observation's space."""
        if type(value) is np.ndarray and value.dtype == self._dtype and value.shape == self._shape:
            rows[row] = value
            return
        arrays = flatten(self._seen, self.own(value), "observation", self.where)
        if self.place.observed.nested:
            for name, array in arrays.items():
                rows[name.partition(".")[2]][row] = array
        else:
            rows[row] = arrays["observation"]

    def write_mask(self, masks: NDArray[np.bool_], row: int, value: Any, info: Any) -> None:
        """`masks[row]` from what comes with an observation; all that there is where its info has nothing."""
        record = self.place.masked
        assert record is not None
        given = self.mask_beside(value) if self.beside else mapping_of(self.where, info).get(MASK)
        for leaf, target in record.parts(masks):
            name = leaf.name.partition(".")[2]
            if given is None:
                target[row] = True
            else:
                target[row] = self.mask(self.part_of_mask(given, name), target.shape[1:], name)

    def refuse_late_mask(self, info: Any) -> None:
        """EnvironmentFault for a mask in the info that an episode begins with, where the first one had none."""
        if self.place.masked is None and MASK in mapping_of(self.where, info):
            raise EnvironmentFault("action_mask_came_late", where=self.where, field=MASK)

    def values(self, actions: NDArray[Any]) -> list[Any]:
        """[n] values of the foreign space: numbers for choices, arrays of their own dtype for boxes, text as text."""
        if self._choice:
            return actions.tolist()
        columns = {name: _each(part, column) for name, part, column in self.columns(actions)}
        if not self.place.acted.nested:
            return list(columns["action"])
        rows = range(len(actions))
        return [nest(self.done, {name: column[row] for name, column in columns.items()}, "action") for row in rows]

    def columns(self, actions: NDArray[Any]) -> Iterator[tuple[str, Any, NDArray[Any]]]:
        """(name, native leaf, [n, *shape] of its dtype) of every leaf; arrays of our own."""
        for native, (_, part) in zip(self._native, self.place.acted.parts(actions), strict=True):
            column = part.astype(native.space.dtype)
            if isinstance(native.space, Box) and part.dtype != column.dtype:
                column = clipped(native.space, column)
            yield native.name, native.space, column

    def own(self, value: Any) -> Any:
        """What is taken of an observation, without the mask beside it."""
        value = pick(self._plan, value)
        if not self.beside or not isinstance(value, Mapping):
            return value
        if self._alone:
            return self._part(value, _OWN)
        return {key: part for key, part in value.items() if key != MASK}

    def mask_beside(self, value: Any) -> Any:
        """The mask beside an observation; EnvironmentFault where its space says that one is there, and it is not."""
        if not isinstance(value, Mapping):
            field = f"{self.where}: observation"
            raise EnvironmentFault("value_not_a_mapping", field=field, value=type(value).__name__)
        return self._part(value, MASK)

    def mask(self, given: Any, shape: tuple[int, ...], name: str) -> NDArray[np.bool_]:
        """A mask [*shape] as it came; those of several elements may come in a tuple."""
        mask = np.concatenate(given, axis=-1) if isinstance(given, tuple) else np.asarray(given)
        if mask.shape != shape or mask.dtype.kind not in "biu" or ((mask != 0) & (mask != 1)).any():
            said, strange = f"{mask.dtype}{list(mask.shape)}", mask[(mask != 0) & (mask != 1)].ravel()[:1].tolist()
            if mask.shape == shape and strange:
                said += f" with {strange}"
            raise EnvironmentFault(
                "action_mask_invalid",
                where=self.where,
                field=MASK,
                dot="." * bool(name),
                leaf=name,
                expected=list(shape),
                value=said,
            )
        return mask != 0

    def _part(self, value: Mapping[Any, Any], name: str) -> Any:
        """The mask, or what it lies beside."""
        if value.get(name) is None:
            choices = [_OWN, MASK] if self._alone else [MASK]
            field = f"{self.where}: observation"
            raise EnvironmentFault("component_missing", field=field, component=name, choices=choices)
        return value[name]

    def part_of_mask(self, given: Any, name: str) -> Any:
        """The mask of one choice out of those of all; `name` is its dotted name, "" for the only one."""
        if not name:
            return given
        if not isinstance(given, Mapping) or name not in given:
            said = f"of {', '.join(given)}" if isinstance(given, Mapping) else type(given).__name__
            raise EnvironmentFault("action_mask_part_missing", where=self.where, field=MASK, leaf=name, value=said)
        return given[name]


def translate(
    id: str,
    observations: Mapping[str, Any],
    actions: Mapping[str, Any],
    infos: Mapping[str, Any],
    episode_steps: int | None = None,
    observe: ObservedParts | None = None,
) -> tuple[World, list[SpaceConverter]]:
    """The world of agents with these spaces of Gymnasium, and how each is spoken to. `infos`, of a first episode, show
    whether masks come there: then all who have choices are given them. ConfigurationError for what cannot be taken."""
    observations, plans = pick_spaces(id, observations, observe)
    native = world_from_pettingzoo(id, observations, actions, episode_steps)
    masked = {agent.name for agent in native.agents if agent.action_mask}
    for agent in native.agents:
        seen = getattr(observations[agent.name], "spaces", None)
        if not agent.action_mask and _chooses(agent) and isinstance(seen, Mapping) and MASK in seen:
            where, action = f"{id}, agent {agent.name}", actions[agent.name]
            log.warning("event=mask_only_seen where=%r reason='%s is no mask of %s'", where, seen[MASK], action)
    if not masked and any(MASK in mapping_of(f"{id}, agent {name}", info) for name, info in infos.items()):
        masked = {agent.name for agent in native.agents if _chooses(agent)}
    world = narrowed(native, masked)
    return world, [
        SpaceConverter(
            f"{id}, agent {agent.name}",
            place,
            agent,
            beside=agent.action_mask,
            alone=agent.action_mask and set(observations[agent.name].spaces) == {_OWN, MASK},
            plan=plans[agent.name],
        )
        for agent, place in zip(native.agents, world.places, strict=True)
    ]


def _chooses(agent: Agent) -> bool:
    return any(hasattr(part.space, "choices") for part in elements(space_of(agent.action), "action"))


def _each(space: Any, column: NDArray[Any]) -> list[Any]:
    """[n] of a leaf."""
    if isinstance(space, Discrete):
        return column.tolist()
    if isinstance(space, Text):
        return [space.decode(row) for row in column]
    return [column[row, ...] for row in range(len(column))]


class BatchConverter:
    """The only agent of `copies` copies of a foreign environment."""

    def __init__(self, agent: SpaceConverter, copies: int) -> None:
        self._agent, self._copies = agent, copies
        self._observed, self._masked = agent.place.observed, agent.place.masked
        self._chooses = any(hasattr(leaf.space, "choices") for leaf in agent.place.acted.leaves)

    def write_observation(self, value: Any) -> NDArray[Any]:
        """[E, *shape]; the very array that came where it is one of the right dtype."""
        own = self._agent.own(value)
        if not self._observed.nested:
            return column_of(self._observed.leaves[0], own, self._copies, self._agent.where)
        rows = self._observed.zeros(self._copies)
        for leaf, column in self._observed.parts(rows):
            column[...] = column_of(leaf, own, self._copies, self._agent.where)
        return rows

    def write_mask(
        self, value: Any, info: Mapping[str, Any], before: NDArray[Any] | None = None
    ) -> NDArray[Any] | None:
        """[E, *shape] of masks, None for an agent without: what came, else what was `before`, else all."""
        if self._masked is None:
            if self._chooses:
                self._agent.refuse_late_mask(info)
            return None
        masks = self._masked.zeros(self._copies) if before is None else before
        given = self._agent.mask_beside(value) if self._agent.beside else info.get(MASK)
        everywhere = np.ones(self._copies, np.bool_)
        there = everywhere if self._agent.beside else info.get(f"_{MASK}", everywhere)
        for leaf, target in self._masked.parts(masks):
            name = leaf.name.partition(".")[2]
            if before is None:
                target[:] = True
            if given is not None:
                part = self._agent.part_of_mask(given, name)
                target[there] = self._agent.mask(part, target.shape, name)[there]
        return masks

    def act(self, actions: NDArray[Any]) -> Any:
        """The batched value of the foreign action space, of actions [E]."""
        return batch_of(self._agent.done, {name: column for name, _, column in self._agent.columns(actions)}, "action")


def column_of(leaf: Leaf, value: Any, copies: int, where: str) -> NDArray[Any]:
    """[E, *leaf.space.shape] of its dtype, out of the batched value of its space; EnvironmentFault (it begins with
    `where`) if it is not that."""
    for key in leaf.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise EnvironmentFault("dict_entry_missing", where=where, field=leaf.name, entry=key) from None
    if isinstance(leaf.space, Text):
        return np.stack([leaf.space.encode(text, f"{where}: {leaf.name}") for text in value])
    dtype, shape = dtype_of(leaf.space), (copies, *leaf.space.shape)
    try:
        array = np.asarray(value)
    except ValueError:
        field = f"{where}: {leaf.name}"
        raise EnvironmentFault("array_is_ragged", field=field, expected=dtype, shape=list(shape)) from None
    whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    if array.shape != shape or not (whole or np.can_cast(array.dtype, dtype, "same_kind")):
        raise EnvironmentFault(
            "array_form_mismatch",
            where=where,
            field=leaf.name,
            dtype=dtype,
            shape=list(shape),
            got_dtype=array.dtype,
            got_shape=list(array.shape),
        )
    return array.astype(dtype, copy=False)


def batch_of(space: Space, columns: Mapping[str, NDArray[Any]], name: str) -> Any:
    """The batched value of `space` out of its leaves' columns [E, *shape]; text in a tuple."""
    parts: dict[str, Any] = {}
    for leaf in elements(space, name):
        column = columns[leaf.name]
        parts[leaf.name] = tuple(leaf.space.decode(row) for row in column) if isinstance(leaf.space, Text) else column
    return nest(space, parts, name)
