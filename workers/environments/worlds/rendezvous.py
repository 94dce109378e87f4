"""Rendezvous: bodies with mass in a plane steer to their places around a meeting point and keep clear of one another;
many copies at once in numpy.

In flow: a thrust of two numbers for each agent. Out flow: velocities and relative positions; one payoff for all.

Legend: `E` copies, `A` agents, `n` some of the copies, `O` other agents; the last axis is x, y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Agent, Box, DictPopulation, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings, refuse_sequential
from workers.environments.worlds.base.fixed_length import TurnMode
from workers.environments.worlds.base.plane import PlaneWorld

DRAG, THRUST = 0.75, 0.05
"""What is left of a velocity after a turn, and what full thrust adds to it; positions are in -1..1."""
TOP = THRUST / (1 - DRAG)
"""The highest speed in each direction, in which velocities are told."""
REACH = 0.15
"""Bodies that are nearer than this touch."""
_RING = 0.3
"""How far from the meeting point the places are."""


class RendezvousSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    agents: int = Field(default=3, ge=2, le=8)
    turns: int = Field(default=50, ge=1)
    """Turns of an episode, which then ends as truncated."""
    touch: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """What each pair of bodies that touch costs everybody, a turn."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""


class Rendezvous(PlaneWorld):
    """`copies` planes; ConfigurationError for settings that cannot work, or if agents are to act one after another.

    A thrust [2] float32 in -1..1 adds `THRUST` times itself to `DRAG` times the velocity, which then moves the body; a
    wall stops it. Observation [4 * A] float32: own velocity over `TOP`, way to the own place, then of each further
    agent, by number and around, the way to it and its velocity over `TOP`. A turn brings everybody the same: minus the
    mean distance from the places, minus `touch` for each pair that touches.
    """

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("rendezvous", RendezvousSettings, settings)
        refuse_sequential("rendezvous", turn_mode)
        sees, thrust = Box(shape=(4 * s.agents,)), Box(shape=(2,), low=-1, high=1)
        agents = tuple(Agent(name=f"agent_{i}", observation=sees, action=thrust) for i in range(s.agents))
        population = DictPopulation(agents=agents, payoff="cooperative")
        world = World(id="rendezvous", population=population, episode_steps=s.turns, action_period=1)
        super().__init__(world, copies, "simultaneous", s.turns, desynchronize=s.desynchronize)
        shape = (s.agents, copies, 2)
        self._position, self._velocity = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._thrust = np.zeros(shape, np.float32)
        self._place = np.zeros(shape, np.float32)
        angle = 2 * np.pi * np.arange(s.agents) / s.agents
        self._ring = (_RING * np.stack([np.cos(angle), np.sin(angle)], 1)).astype(np.float32)[:, None]
        self._others = [[(i + step) % s.agents for step in range(1, s.agents)] for i in range(s.agents)]
        self._pairs = np.triu_indices(s.agents, 1)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """Bodies at rest and a meeting point, all anywhere, the places inside the walls."""
        s, draw = self.settings, self._generator
        point = draw.uniform(_RING - 1, 1 - _RING, (copies.size, 2)).astype(np.float32)
        self._place[:, copies] = point + self._ring
        self._position[:, copies] = draw.uniform(-1, 1, (s.agents, copies.size, 2))
        self._velocity[:, copies] = 0

    def _act(self, agent: int, action: NDArray[Any]) -> None:
        self._thrust[agent] = action

    def _rewards(self) -> None:
        """Moves the bodies, and pays for where they are then."""
        velocity, position = self._velocity, self._position
        velocity *= np.float32(DRAG)
        velocity += np.float32(THRUST) * self._thrust
        position += velocity
        velocity[np.abs(position) > 1] = 0
        np.clip(position, -1, 1, out=position)
        self._earned -= _length(self._place - position).mean(axis=0)
        one, other = self._pairs
        touching = _length(position[one] - position[other]) < REACH
        self._earned -= np.float32(self.settings.touch) * touching.sum(axis=0)

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        where = slice(None) if copies is None else copies
        position, velocity = self._position[:, where], self._velocity[:, where]
        seen = out[: position.shape[1]]
        np.divide(velocity[agent], np.float32(TOP), out=seen[:, :2])
        np.subtract(self._place[agent, where], position[agent], out=seen[:, 2:4])
        for other, column in zip(self._others[agent], range(4, seen.shape[1], 4), strict=True):
            np.subtract(position[other], position[agent], out=seen[:, column : column + 2])
            np.divide(velocity[other], np.float32(TOP), out=seen[:, column + 2 : column + 4])

    def _points(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        return self._place, self._position

    def scripted(self) -> Player:
        """Steers straight to its place, and out of the way of others; see `RendezvousPlayer`."""
        return RendezvousPlayer(DRAG, THRUST, REACH)


def _length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of vectors [..., 2]."""
    length: NDArray[np.float32] = np.hypot(vectors[..., 0], vectors[..., 1])
    return length


_EASE = 0.7
"""How much of the way that is left it wants to go in a turn: braking takes room."""
_SPACE = 1.6
"""How near others may come, in units of what touches, before it gives way."""


class RendezvousPlayer:
    """A hand-written player, which sees what a policy sees. Goes straight to its place as fast as it can still
    brake, and turns away from who is about to touch it."""

    def __init__(self, drag: float, thrust: float, reach: float) -> None:
        self._drag, self._thrust, self._reach = drag, thrust, reach
        self._top = thrust / (1 - drag)

    def __call__(self, present: AgentTimeStep) -> NDArray[np.float32]:
        """[n, 2]: the thrusts."""
        seen = present.observation
        velocity, way = seen[:, :2] * self._top, seen[:, 2:4]
        others = seen[:, 4:].reshape(len(seen), -1, 4)
        wanted = np.clip(_EASE * way, -self._top, self._top) + self._away(velocity, others)
        thrust = (wanted - self._drag * velocity) / self._thrust
        return np.clip(thrust, -1, 1).astype(np.float32)

    def _away(self, velocity: NDArray[np.floating], others: NDArray[np.float32]) -> NDArray[np.floating]:
        """[n, 2]: what to add to the velocity so as to pass who comes too near within the next turn, each on its own
        left."""
        there = others[..., :2] + others[..., 2:] * self._top - velocity[:, None]
        distance = np.maximum(np.linalg.norm(there, axis=-1, keepdims=True), 1e-6)
        near = np.clip(1 - distance / (_SPACE * self._reach), 0, 1)
        back = -there / distance
        left = np.stack([back[..., 1], -back[..., 0]], -1)
        push: NDArray[np.floating] = (near * (back + left)).sum(axis=1) * self._top
        return push
