"""Simple spread: bodies in a plane are to cover as many landmarks between them without touching; many copies at once in
numpy.

What is seen and done, how bodies move and push each other, what it brings and when it ends is as in `simple_spread_v3`
of mpe2 (https://github.com/Farama-Foundation/MPE2; Lowe et al. 2017, arXiv:1706.02275), in which a policy that learned
here can be tried. In flow: a move of each agent. Out flow: positions relative to each agent; payoffs.

Legend: `E` copies, `A` agents and as many landmarks, `n` some of the copies; the last axis is x, y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings, refuse_sequential
from workers.environments.worlds.base.fixed_length import TurnMode
from workers.environments.worlds.base.plane import PlaneWorld

MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)], np.float64)
"""Staying, and a push to the left, the right, down and up."""
PUSH, STEP, DRAG = 5.0, 0.1, 0.25
"""Force of a push on a body of mass 1; seconds of a turn; share of a velocity that a turn takes."""
TOUCH = 0.15 + 0.15
"""Bodies that are nearer than this touch."""
_MARGIN, _STIFF = 1e-3, 1e2
"""How soft a touch is, and how hard it pushes back."""


class SpreadSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    agents: int = Field(default=3, ge=1, le=16)
    turns: int = Field(default=25, ge=1)
    """Turns of an episode, which then ends as truncated."""
    local_ratio: float = Field(default=0.5, ge=0, le=1)
    """Share of a payoff that is an agent's own touches; the rest is everybody's."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""


class Spread(PlaneWorld):
    """`copies` planes; ConfigurationError for settings that cannot work, or if agents are to act one after another.

    Observation [6 * A] float32: own velocity and position, the way to each landmark, the way to each other agent, and
    zeros where others would say something. A turn brings minus the sum over landmarks of the distance of who is
    nearest, times 1 - `local_ratio`, and minus one's own touches times `local_ratio`.
    """

    _reach = 1.5  # nothing keeps a body within

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("spread", SpreadSettings, settings)
        refuse_sequential("spread", turn_mode)
        sees, move = Box(shape=(6 * s.agents,)), Discrete(n=len(MOVES))
        agents = tuple(Agent(name=f"agent_{i}", observation=sees, action=move) for i in range(s.agents))
        population = DictPopulation(agents=agents, payoff="general" if s.local_ratio else "cooperative")
        world = World(id="spread", population=population, episode_steps=s.turns, action_period=1)
        super().__init__(world, copies, "simultaneous", s.turns, desynchronize=s.desynchronize)
        shape = (s.agents, copies, 2)
        self._position, self._velocity, self._force = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._landmark = np.zeros(shape)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """Bodies at rest and landmarks, all anywhere from -1 to 1."""
        shape = (self.settings.agents, copies.size, 2)
        self._position[:, copies] = self._generator.uniform(-1, 1, shape)
        self._landmark[:, copies] = self._generator.uniform(-1, 1, shape)
        self._velocity[:, copies] = 0

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        self._force[agent] = PUSH * MOVES[action]

    def _rewards(self) -> None:
        """Moves the bodies, and pays for where they are then."""
        position, velocity, force = self._position, self._velocity, self._force
        count, ratio = self.settings.agents, self.settings.local_ratio
        for one in range(count):
            for other in range(one + 1, count):
                away = position[one] - position[other]
                distance = _length(away)
                depth = np.logaddexp(0, -(distance - TOUCH) / _MARGIN) * _MARGIN
                pushed = _STIFF * away / distance[:, None] * depth[:, None]
                force[one] += pushed
                force[other] -= pushed
        position += velocity * STEP
        velocity *= 1 - DRAG
        velocity += force * STEP
        shared = np.zeros(self.copies)
        for landmark in self._landmark:
            shared -= _length(position - landmark).min(axis=0)
        for agent in range(count):
            near = (_length(position - position[agent]) < TOUCH).sum(axis=0) - 1  # near oneself one always is
            self._earned[agent] = shared * (1 - ratio) - near * ratio

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        where = slice(None) if copies is None else copies
        own, others = self._position[agent, where], [i for i in range(self.settings.agents) if i != agent]
        seen = out[: len(own)]
        seen[:, :2], seen[:, 2:4] = self._velocity[agent, where], own
        ways = [*self._landmark[:, where], *self._position[others][:, where]]
        for way, column in zip(ways, range(4, seen.shape[1], 2), strict=False):
            np.subtract(way, own, out=seen[:, column : column + 2], casting="same_kind")

    def _points(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        return self._landmark, self._position

    def scripted(self) -> Player:
        """Goes to the landmark that falls to it where the nearest pairs are made first; see `SpreadPlayer`."""
        return SpreadPlayer(self.settings.agents, PUSH * STEP, STEP / DRAG)


def _length(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of vectors [..., 2]."""
    length: NDArray[np.float64] = np.sqrt(np.square(vectors).sum(axis=-1))
    return length


class SpreadPlayer:
    """A hand-written player, which sees what a policy sees. Landmarks fall to agents pair by pair, the nearest pair
    first, which all agents see alike. It goes to its own, one axis a turn, as far as it would not slide there by
    itself: a velocity slides on for `slide` times itself, and a push adds `push` to it."""

    def __init__(self, agents: int, push: float, slide: float) -> None:
        self._agents, self._slide = agents, slide
        self._worth = push * slide / 2
        """A push that is worth less than half of what it moves is left."""

    def __call__(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """[n]: the moves."""
        seen, count = present.observation, self._agents
        ways = seen[:, 4 : 4 + 2 * count].reshape(len(seen), count, 2)
        others = seen[:, 4 + 2 * count : 2 + 4 * count].reshape(len(seen), count - 1, 2)
        agents = np.concatenate([np.zeros_like(ways[:, :1]), others], 1)
        rows = np.arange(len(seen))
        left = ways[rows, self._own(agents, ways)] - self._slide * seen[:, :2]
        axis = np.abs(left).argmax(axis=1)
        along = left[rows, axis]
        move: NDArray[np.int64] = np.where(np.abs(along) > self._worth, 1 + 2 * axis + (along > 0), 0)
        return move

    def _own(self, agents: NDArray[np.float32], landmarks: NDArray[np.float32]) -> NDArray[np.int64]:
        """[n]: the landmark that falls to the first of `agents`."""
        rows, count = np.arange(len(agents)), self._agents
        away = np.linalg.norm(agents[:, :, None] - landmarks[:, None], axis=-1)
        own: NDArray[np.int64] = np.zeros(len(agents), np.int64)
        for _ in range(count):
            agent, landmark = np.divmod(away.reshape(len(agents), -1).argmin(axis=1), count)
            own = np.where(agent == 0, landmark, own)
            away[rows, agent] = np.inf
            away[rows, :, landmark] = np.inf
        return own
