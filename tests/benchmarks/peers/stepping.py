"""Worlds for peers, which count the steps that they make: CartPole-v1 by Gymnasium's own vectorised physics, MPE's
simple_spread copy by copy, and ours that costs nothing, for all agents in one call, with numbers or with pictures.

In flow: actions [n]. Out flow: what Gymnasium returns; numbers of steps in files that who watches (watching.py) reads.

Legend: `E` copies, `A` agents of a copy, `R = E * A` rows.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from numpy.typing import NDArray

__all__ = [
    "AGENTS",
    "COPIES",
    "EPISODES",
    "GUARDS",
    "PICTURES",
    "PLACE",
    "SCORES",
    "SEGMENT",
    "SPREAD_GAMMA",
    "SPREAD_SEGMENT",
    "SYNTHETIC_COPIES",
    "Carts",
    "Numbers",
    "Pictures",
    "Score",
    "Spread",
    "Tally",
]

COPIES, SEGMENT = 256, 64
AGENTS, SYNTHETIC_COPIES = 3, 128
SPREAD_SEGMENT, SPREAD_GAMMA = 25, 0.95
PICTURES = {"W5-84": (84, 32, 1), "W5-10": (10, 128, 1), "W5-10-three": (10, 64, 3)}
"""Side of a picture, copies, agents of each."""
PLACE = "PEER_STEPS"
"""Environment variable: the folder of the files."""
GUARDS = "PEER_GUARDS"
"""Environment variable: set where W2's world is to be as its package makes it."""
SCORES = "PEER_SCORES"
"""Environment variable: the folder of files with the mean return of the last `EPISODES`, where that is awaited."""
EPISODES = 256


class Tally:
    """Environment steps of this process, in a file of their own; nothing where nobody watches."""

    def __init__(self) -> None:
        self._steps = np.zeros(1, np.int64)
        if PLACE in os.environ:
            self._steps = _shared(PLACE, self._steps)

    def count(self, steps: int) -> None:
        """So many more."""
        self._steps[0] += steps


class Score:
    """The mean return of this process's last episodes, whichever of its worlds they were in, in a file of its own as
    soon as one has ended. Nothing where nobody awaits it (`awaited`)."""

    def __init__(self) -> None:
        self.awaited = SCORES in os.environ

    def add(self, returns: list[float]) -> None:
        """Of episodes that have ended."""
        ended, mean = _ended(os.environ[SCORES])
        ended.extend(returns)
        mean[:] = sum(ended) / len(ended)


@cache
def _ended(folder: str) -> tuple[deque[float], NDArray[np.float64]]:
    """The last returns of this process, and what is told of them in `folder`."""
    return deque(maxlen=EPISODES), _shared(SCORES, np.array([-np.inf]))


def _shared(place: str, first: NDArray[Any]) -> NDArray[Any]:
    """`first`, in a file of its own in the folder that the environment variable `place` names."""
    handle, path = tempfile.mkstemp(dir=os.environ[place])
    os.write(handle, first.tobytes())
    os.close(handle)
    return np.memmap(path, first.dtype, "r+", shape=first.shape)


class Carts(CartPoleVectorEnv):
    """`copies` carts; one whose episode has ended begins the next in the step after."""

    def __init__(self, copies: int = COPIES) -> None:
        super().__init__(copies, max_episode_steps=500)
        self._tally, self._score = Tally(), Score()

    def step(self, action: NDArray[Any]) -> Any:
        self._tally.count(self.num_envs)
        told = super().step(action)
        if self._score.awaited and (over := told[2] | told[3]).any():
            self._score.add(self.steps[over].tolist())
        return told

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Begins new episodes in those [E] at once, for peers that restart by themselves."""
        assert self.state is not None
        self.state[:, which] = self.np_random.uniform(self.low, self.high, (4, int(which.sum())))
        self.steps[which] = 0
        self.prev_done[which] = False

    def seen(self) -> NDArray[np.float32]:
        """[E, 4]: what all see now."""
        assert self.state is not None
        return np.asarray(self.state.T, np.float32)


class Spread:
    """W2's world: `copies` of what our adapter steps, which takes off PettingZoo's guards; or with them (`GUARDS`).

    Rows [R] are [A, E], those of an agent together: one batch where agents share a policy, `A` where each has its own.
    A copy whose episode has ended begins the next in the same step.
    """

    def __init__(self, copies: int = COPIES) -> None:
        from mpe2.simple_spread_v3 import parallel_env

        from workers.environments.adapters.pettingzoo_copies import PettingZooCopies

        if GUARDS in os.environ:
            self._worlds: list[Any] = [parallel_env() for _ in range(copies)]
        else:
            self._worlds = PettingZooCopies("pettingzoo:mpe2.simple_spread_v3", parallel_env, copies).envs
        first = self._worlds[0]
        self._names: list[str] = first.possible_agents
        self.observation_space, self.action_space = first.observation_space(self._names[0]), spaces.Discrete(5)
        self.rows = AGENTS * copies
        self._shape = (AGENTS, copies)
        self.now = self.before = np.empty((self.rows, 0), np.float32)
        """[R, 18]: what all see, and what they saw before ended episodes were begun anew."""
        self._earned = np.zeros(copies)
        """[E]: by the mean agent, in the episodes that are on."""
        self._tally, self._score = Tally(), Score()

    def reset(self) -> NDArray[np.float32]:
        """[R, 18]."""
        self._earned[:] = 0
        self.now = self.before = self._seen([world.reset()[0] for world in self._worlds])
        return self.now

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """[R] -> ([R, 18], rewards [R], episodes whose time is up [R])."""
        self._tally.count(self._shape[1])
        rewards, over = np.empty(self._shape, np.float32), np.zeros(self._shape, np.bool_)
        seen = []
        for copy, (world, chosen) in enumerate(zip(self._worlds, actions.reshape(self._shape).T.tolist(), strict=True)):
            one, earned, _, late, _ = world.step(dict(zip(self._names, chosen, strict=True)))
            seen.append(one)
            rewards[:, copy] = list(earned.values())
            over[:, copy] = list(late.values())
        self.now = self.before = self._seen(seen)
        self._earned += rewards.mean(0)
        if over.any():
            if self._score.awaited:
                self._score.add(self._earned[over[0]].tolist())
            self._earned[over[0]] = 0
            for copy in np.flatnonzero(over[0]).tolist():
                seen[copy] = self._worlds[copy].reset()[0]
            self.now = self._seen(seen)
        return self.now, rewards.ravel(), over.ravel()

    def _seen(self, seen: list[dict[str, NDArray[np.float32]]]) -> NDArray[np.float32]:
        return np.array([one[name] for name in self._names for one in seen], np.float32)


class Numbers:
    """W3's world for peers: `A` agents of each of `copies` are as many rows, those of an agent together."""

    def __init__(self, copies: int = SYNTHETIC_COPIES) -> None:
        self._make(copies, AGENTS, observation=64, actions=8)
        self.observation_space: spaces.Box[Any] = spaces.Box(0, 8, (64,), np.float32)
        self.action_space = spaces.Discrete(8)

    def _make(self, copies: int, agents: int, **settings: Any) -> None:
        from workers.environments.worlds.synthetic import Synthetic

        self.rows, self._copies, self._tally = agents * copies, copies, Tally()
        self._world = Synthetic(copies, agents=agents, episode_steps=1000, **settings)

    def reset(self) -> NDArray[Any]:
        """[R, *shape]."""
        return self._told(self._world.reset(0).present)[0]

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_]]:
        """[R] -> ([R, *shape], rewards [R], episodes whose time is up [R])."""
        self._tally.count(self._copies)
        return self._told(self._world.step([actions]).present)

    def _told(self, present: Any) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_]]:
        return (
            np.concatenate([one.observation for one in present]),
            np.concatenate([one.reward for one in present]),
            np.concatenate([one.truncated for one in present]),
        )


class Pictures(Numbers):
    """W5's worlds in the same way, with the channels first, as peers' networks want them."""

    def __init__(self, name: str, copies: int | None = None) -> None:
        side, all_copies, agents = PICTURES[name]
        self._make(copies or all_copies, agents, image=[4, side, side], actions=6)
        self.observation_space = spaces.Box(0, 255, (4, side, side), np.uint8)
        self.action_space = spaces.Discrete(6)
