"""Any world with a joint observation for learners: what all other agents saw last, beside what each sees.

In flow: turns of a world of named agents. Out flow: the same turns, in whose observations there is a component
`central`, evaluation-only: `others`, the observations of all others in the world's order, evaluation-only parts
included, and `there`, 1 for each of them that has seen something in this episode and has not left it. Of one that is
not there all is 0. At a true last observation it is what the others saw last in that episode.

Legend: `E` copies, `A` agents, `n` rows, `m` truncated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Dict, MultiBinary, Place, Tuple, World
from protocol.spaces.tree import space_of
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Player, Turn, WrappedEnvironment
from workers.environments.wrappers.own_parts import CENTRAL, OwnParts, Rows, fields_of, rows_of, with_central

_THERE = f"{CENTRAL}.there"


class JointObservation(WrappedEnvironment):
    """`inner` with a joint observation; ConfigurationError where it has one agent, or templates of many."""

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner)
        self.world = _joint(inner.world)
        self._views = [_View(inner.world.places, agent, place) for agent, place in enumerate(self.world.places)]
        self._seen = [place.observed.zeros(inner.copies) for place in inner.world.places]
        """[A] of [E, *shape]: what each saw last; zeros where it is not there."""
        self._there = np.zeros((len(self._seen), inner.copies), np.int8)
        self._shown = [place.observed.zeros(inner.copies) for place in self.world.places]

    def reset(self, seed: int) -> Turn:
        """As the world's."""
        self._there.fill(0)
        for seen in self._seen:
            seen[...] = np.zeros((), seen.dtype)
        return self._augment(self._inner.reset(seed))

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """As the world's; all ends are told in the turn in which they come."""
        return self._augment(self._inner.step(actions))

    def _player(self, player: Player) -> Player:
        own = [view.own for view in self._views]
        return lambda present: player(replace(present, observation=own[present.agent].read(present.observation)))

    def _augment(self, turn: Turn) -> Turn:
        self.restarts = self._inner.restarts
        late = self._inner.flush_ends()
        outcomes = (*turn.outcomes, *late) if late else turn.outcomes
        told: tuple[AgentTimeStep | AgentOutcome, ...] = (*outcomes, *turn.present)
        ended = [(one, done) for one in told if (done := one.terminated | one.truncated).any()]
        finals = self._finals(turn, ended)
        for one, done in ended:
            self._leave(self._seen[one.agent], self._there[one.agent], rows_of(one, done))
        for present in turn.present:
            where = rows_of(present)
            self._seen[present.agent][where] = present.observation
            self._there[present.agent, where] = 1
        return replace(
            turn,
            outcomes=tuple(replace(one, **finals.get(id(one), {})) for one in outcomes),
            present=tuple(replace(one, observation=self._show(one), **finals.get(id(one), {})) for one in turn.present),
        )

    def _show(self, present: AgentTimeStep) -> NDArray:
        """[n, *shape] of one agent, in memory that is used again."""
        shown = self._shown[present.agent][: len(present.reward)]
        self._views[present.agent].write(shown, present.observation, self._seen, self._there, rows_of(present))
        return shown

    def _finals(
        self, turn: Turn, ended: Sequence[tuple[AgentTimeStep | AgentOutcome, NDArray[np.bool_]]]
    ) -> dict[int, Any]:
        """id of an entry -> its true last observations, [m, *shape]."""
        cut = [one for one, _ in ended if len(one.final_index)]
        if not cut:
            return {}
        seen, there = [rows.copy() for rows in self._seen], self._there.copy()
        for present in turn.present:  # of those whose episode goes on
            where = rows_of(present, ~(present.terminated | present.truncated))
            seen[present.agent][where] = present.observation[~(present.terminated | present.truncated)]
            there[present.agent, where] = 1
        for one, done in ended:
            self._leave(seen[one.agent], there[one.agent], rows_of(one, done))
        for one in cut:
            where = rows_of(one, one.final_index)
            seen[one.agent][where] = one.final_observation
            there[one.agent, where] = 1
        found = {}
        for one in cut:
            assert one.final_observation is not None
            final = self.world.places[one.agent].observed.zeros(len(one.final_index))
            self._views[one.agent].write(final, one.final_observation, seen, there, rows_of(one, one.final_index))
            found[id(one)] = {"final_observation": final}
        return found

    @staticmethod
    def _leave(seen: NDArray, there: NDArray[np.int8], where: Rows) -> None:
        seen[where] = np.zeros((), seen.dtype)
        there[where] = 0


class _View:
    """The fields of one agent's widened rows, and where each comes from."""

    def __init__(self, inner: Sequence[Place], agent: int, outer: Place) -> None:
        self.own = OwnParts(inner[agent], outer)
        self._others = [
            (other, ".".join(part for part in (f"{CENTRAL}.others.{position}", field) if part), field)
            for position, other in enumerate(other for other in range(len(inner)) if other != agent)
            for field in fields_of(inner[other])
        ]
        self._there = [other for other in range(len(inner)) if other != agent]

    def write(self, rows: NDArray, own: NDArray, seen: Sequence[NDArray], there: NDArray[np.int8], where: Rows) -> None:
        """Fills `rows` [n], of `own` [n, *shape] and of what others see in the copies `where`."""
        self.own.write(rows, own)
        for other, to, field in self._others:
            rows[to] = seen[other][field][where] if field else seen[other][where]
        rows[_THERE] = there[self._there][:, where].T


def _joint(world: World) -> World:
    """The world with what all others see; ConfigurationError in one sentence."""
    places = world.places
    for place in places:
        if place.capacity is not None:
            raise ConfigurationError(
                "joint_state_too_large",
                agent=place.name,
                environment=world.id,
                limit=place.capacity,
                key="environment.central_state",
            )
    if len(places) == 1:
        raise ConfigurationError(
            "joint_state_of_one_agent", environment=world.id, agent=places[0].name, key="environment.central_state"
        )
    spaces = {}
    for place in places:
        others = tuple(space_of(other.agent.observation) for other in places if other is not place)
        there = MultiBinary(shape=(len(others),))
        spaces[place.name] = Dict(spaces={"others": Tuple(spaces=others), "there": there})
    return with_central(world, spaces)
