"""Any world with more to see: who an agent is, what it did last and what that earned, as parts of its observation.

In flow: turns of a world, and the actions that answer them. Out flow: the same turns, whose observations have the parts
that `environment.observe.add` names; a plain observation is its part `own` from then on.

Legend: `E` copies, C agents at a place, `n` rows, `m` truncated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import AddedInput
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Component, Dict, Discrete, MultiDiscrete, Place, Text, Tuple, World
from protocol.spaces.row_format import field_of
from protocol.spaces.tree import space_of
from workers.environments.base import Environment, Player, Turn, WrappedEnvironment
from workers.environments.wrappers.own_parts import OwnParts, Rows, components, rows_of, with_agents, with_parts


class AddedInputs(WrappedEnvironment):
    """`inner` with the `inputs` beside what each agent sees; ConfigurationError where a part has such a name already,
    or where an action of text is to be seen."""

    def __init__(self, inner: Environment, inputs: Sequence[AddedInput]) -> None:
        super().__init__(inner)
        places = inner.world.places
        self._starts = [0, *accumulate(place.many for place in places)]
        self.world = with_agents(inner.world, lambda agent, name: _widened(inner.world, agent, name, inputs))
        self._own = [OwnParts(*pair) for pair in zip(places, self.world.places, strict=True)]
        self._rewards = "last_reward" in inputs
        self._actions = [_actions_of(place) if "last_action" in inputs else [] for place in places]
        self._added = [self._rows(place, "agent" in inputs) for place in range(len(places))]
        """[A] of [E * C]: of each agent in each copy its rows, in which only what is added is kept."""
        self._acting: list[tuple[int, NDArray[np.int64]]] = []

    def _rows(self, place: int, numbered: bool) -> NDArray:
        many = self._inner.world.places[place].many
        rows = self.world.places[place].observed.zeros(self.copies * many)
        if numbered:
            rows["agent"] = self._starts[place] + np.tile(np.arange(many), self.copies)
        return rows

    def reset(self, seed: int) -> Turn:
        """As the world's; nobody has done anything."""
        for agent in range(len(self._added)):
            self._forget(agent, slice(None))
        return self._augment(self._inner.reset(seed))

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """As the world's; all ends are told in the turn in which they come."""
        for (agent, rows), action in zip(self._acting, actions, strict=True):
            added = self._added[agent]
            for to, field, first in self._actions[agent]:
                done = action[field] if field else action
                added[to][rows] = done if first is None else done - first + 1
            if self._rewards:
                added["last_reward"][rows] = 0.0
        return self._augment(self._inner.step(actions))

    def _player(self, player: Player) -> Player:
        return lambda present: player(replace(present, observation=self._own[present.agent].read(present.observation)))

    def _augment(self, turn: Turn) -> Turn:
        self.restarts = self._inner.restarts
        outcomes = tuple(self._told(one) for one in (*turn.outcomes, *self._inner.flush_ends()))
        present = tuple(
            replace(self._told(one), observation=self._show(one.agent, one.observation, rows_of(one)))
            for one in turn.present
        )
        self._acting = [
            (one.agent, np.arange(len(one.reward)) if one.copies is None else one.copies.copy()) for one in present
        ]
        return replace(turn, outcomes=outcomes, present=present)

    def _told(self, one: Any) -> Any:
        """What an agent is told, its final observations widened; where its episode ended it begins anew."""
        if self._rewards:
            self._added[one.agent]["last_reward"][rows_of(one), 0] += one.reward
        if len(one.final_index):
            final = self._show(one.agent, one.final_observation, rows_of(one, one.final_index))
            one = replace(one, final_observation=final)
        ended = one.terminated | one.truncated
        if ended.any():
            self._forget(one.agent, rows_of(one, ended))
        return one

    def _show(self, agent: int, own: NDArray, where: Rows) -> NDArray:
        """[n, *shape]: `own`, which an agent sees in the copies `where`, and what is added."""
        rows = self._added[agent][where].copy()
        self._own[agent].write(rows, own)
        return rows

    def _forget(self, agent: int, where: Rows) -> None:
        for to, _, _ in self._actions[agent]:
            self._added[agent][to][where] = 0
        if self._rewards:
            self._added[agent]["last_reward"][where] = 0.0


def _actions_of(place: Place) -> list[tuple[str, str, Any]]:
    """(field of the part, field of the action, its first choice, None of what is no choice) of each leaf."""
    found = []
    for leaf in place.acted.leaves:
        field = field_of(leaf)
        first = leaf.space.span[0] if isinstance(leaf.space, Discrete | MultiDiscrete) else None
        found.append((f"last_action.{field}" if field else "last_action", field, first))
    return found


def _widened(world: World, agent: Agent, name: str, inputs: Sequence[AddedInput]) -> Agent:
    """`agent` that sees the `inputs` too."""
    parts = components(agent.observation)
    facts = {"agent": name, "environment": world.id, "key": "environment.observe.add"}
    for one in inputs:
        if one in parts:
            raise ConfigurationError("observation_part_taken", entry=one, **facts)
        if one == "agent":
            space: Any = Discrete(n=sum(place.many for place in world.places))
        elif one == "last_action":
            space = _or_none(space_of(agent.action), facts)
        else:
            space = Box(shape=(1,))
        parts[one] = Component(space=space)
    return with_parts(agent, parts)


def _or_none(space: Any, facts: dict[str, Any]) -> Any:
    """The space of an action in which 0 is none: choices count from 1, and numbers may be 0."""
    if isinstance(space, Dict):
        return Dict(spaces={key: _or_none(inner, facts) for key, inner in space.spaces.items()})
    if isinstance(space, Tuple):
        return Tuple(spaces=tuple(_or_none(inner, facts) for inner in space.spaces))
    if isinstance(space, Discrete):
        return Discrete(n=space.n + 1, dtype="int64")
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(nvec=tuple(n + 1 for n in space.nvec), shape=space.shape)
    if isinstance(space, Box):
        low, high = (_with_zero(bound, pick) for bound, pick in ((space.low, min), (space.high, max)))
        return space.model_copy(update={"low": low, "high": high})
    if isinstance(space, Text):
        raise ConfigurationError("last_action_is_text", **facts)
    return space


def _with_zero(bound: Any, pick: Any) -> Any:
    if isinstance(bound, tuple):
        return tuple(_with_zero(one, pick) for one in bound)
    return None if bound is None else pick(bound, 0)
