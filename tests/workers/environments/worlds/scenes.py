"""A world of any tree whose rows are drawn at random: observations of their spaces, masks, ends of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.experience.layout import common_of
from protocol.spaces import Place, World
from protocol.spaces.drawing import random_rows
from workers.environments.base import AgentTimeStep, Environment, Turn

__all__ = ["Scenes"]


class Scenes(Environment):
    """All agents are always present; episodes of 5 turns end for all, terminated and truncated in turn. `steady`: the
    same is legal in every turn."""

    def __init__(self, world: World, copies: int = 1, *, steady: bool = False) -> None:
        self.world, self.copies, self.steady = world, copies, steady
        self.given: list[list[NDArray[Any]]] = []
        self._box = common_of(world)

    def reset(self, seed: int) -> Turn:
        self._chance, self._time = np.random.default_rng(seed), 0
        return self._turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        self.given.append(list(actions))
        self._time += 1
        return self._turn()

    def _turn(self) -> Turn:
        over = self._time > 0 and self._time % 5 == 0
        told = tuple(self._present(k, place, over) for k, place in enumerate(self.world.places))
        common = None if self._box is None else self._chance.random((self.copies, *self._box.shape)).astype("f4")
        return Turn(told, self.copies if self._time else 0, common=common)

    def _present(self, agent: int, place: Place, over: bool) -> AgentTimeStep:
        n = self.copies * place.many
        cut = over and self._time % 10 == 0
        ends = np.full(n, over and not cut), np.full(n, cut)
        seen = random_rows(place.observed, n, self._chance)
        reward = self._chance.random(n, np.float32) * (self._time > 0)
        told = AgentTimeStep(agent, seen, reward.astype(np.float32), *ends, action_mask=self._mask(place, n))
        if cut:
            told.final_index = np.arange(n)
            told.final_observation = random_rows(place.observed, n, self._chance)
            if self._box is not None:
                told.final_common = np.ones((n, *self._box.shape), np.float32)
        return told

    def _mask(self, place: Place, n: int) -> NDArray[Any] | None:
        """Legal is what one random action chooses, and much besides."""
        if place.masked is None:
            return None
        chance = np.random.default_rng(0) if self.steady else self._chance
        masks = place.masked.zeros(n)
        legal = {
            leaf.name.partition(".")[2]: part for leaf, part in place.acted.parts(random_rows(place.acted, n, chance))
        }
        for leaf, mask in place.masked.parts(masks):
            mask[...] = chance.random(mask.shape) < 0.4
            space = next(
                one.space for one in place.acted.leaves if one.name == leaf.name.replace("action_mask", "action", 1)
            )
            chosen = legal[leaf.name.partition(".")[2]].reshape(n, -1) - np.ravel(getattr(space, "start", 0))
            nvec = getattr(space, "nvec", (mask.shape[1],))
            offsets = np.concatenate(([0], np.cumsum(nvec[:-1], dtype=np.int64)))
            mask[np.arange(n)[:, None], chosen + offsets] = True
        return masks
