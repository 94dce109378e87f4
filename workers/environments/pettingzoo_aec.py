"""PettingZoo environments whose agents act one after another (AECEnv) as worlds, E copies stepped one by one.

In flow: in each copy the action of the agent whose turn it is. Out flow: a turn that gathers, for each agent, the
copies in which it is to act now. What an agent earned since its last action is told with its next turn or its end; the
steps that the dead take in PettingZoo (action None) are taken here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import World
from workers.environments.adapting import check_same, copy_seeds, possible_agents, refuse_early_step
from workers.environments.base import Environment, Turn
from workers.environments.gathering import Board

__all__ = ["PettingZooTurns"]


class PettingZooTurns(Environment):
    """`copies` environments, each from `make_one`; ConfigurationError for spaces not taken in this release.

    An environment step is complete when an agent's turn comes that has acted in it already, or when the episode ends.
    A reward that an agent is given before its first action of an episode belongs to that action; one that never acts
    has nothing to be rewarded for, which is logged.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int) -> None:
        self.copies = copies
        self._envs: list[Any] = []
        try:
            for _ in range(copies):
                self._envs.append(_without_guards(make_one()))
            first = self._envs[0]
            agents, self._starts = possible_agents(id, first)
        except BaseException:
            self.close()
            raise
        self.world = World(id=id, agents=agents)
        self._names = [agent.name for agent in agents]
        self._spaces = [(first.observation_space(name), first.action_space(name)) for name in self._names]
        self._number = {name: k for k, name in enumerate(self._names)}
        self._board = Board(self.world, copies)
        self._acted: list[set[int]] = [set() for _ in range(copies)]
        """Who has acted in each copy's present environment step."""
        self._turn: Turn | None = None

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        self._board.clear()
        for i, one in enumerate(copy_seeds(seed, self.copies)):
            self._begin(i, seed=one)
            self._acted[i].clear()
            self._advance(i)
        self._turn = self._board.turn()
        return self._turn

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Applies the action of the agent whose turn it is in each copy."""
        if self._turn is None:
            raise refuse_early_step(self.world.id)
        steps = 0
        self._board.begin()
        for present, chosen in zip(self._turn.present, actions, strict=True):
            copies = range(self.copies) if present.copies is None else present.copies.tolist()
            for i, action in zip(copies, (chosen + self._starts[present.agent]).tolist(), strict=True):
                self._envs[i].step(action)
                self._acted[i].add(present.agent)
                steps += self._advance(i)
        self._turn = self._board.turn(env_steps=steps)
        return self._turn

    def _advance(self, copy: int) -> bool:
        """On to the next agent that lives, past the dead, if need be into the next episode; whether an environment step
        is complete."""
        env, board, complete = self._envs[copy], self._board, False
        for _ in range(2 * len(self._names) + 1):
            if not env.agents:
                self._end(copy)
                complete = bool(self._acted[copy])
                self._acted[copy].clear()
                self._begin(copy)
            agent = self._index(env.agent_selection)
            seen, reward, terminated, truncated, _ = env.last()
            board.earn(agent, copy, reward)
            if not (terminated or truncated):
                board.see(agent, copy, seen)
                if agent in self._acted[copy]:
                    self._acted[copy].clear()
                    complete = True
                return complete
            board.end(agent, copy, terminated, truncated, seen)
            env.step(None)
        raise EnvironmentFault(
            f"{self.world.id}: agent_selection should come to an agent that lives but in copy {copy} names only the "
            "dead; remove an agent from env.agents when it is stepped with None (_was_dead_step)"
        )

    def _begin(self, copy: int, **seed: int) -> None:
        env = self._envs[copy]
        env.reset(**seed)
        for name, spaces in zip(self._names, self._spaces, strict=True):
            where = f"{self.world.id}, agent {name}:"
            check_same(spaces[0], env.observation_space(name), where, "observation space")
            check_same(spaces[1], env.action_space(name), where, "action space")
        if not env.agents:
            raise EnvironmentFault(
                f"{self.world.id}: env.agents should name those who act but is empty after reset in copy {copy}; "
                "correct the environment"
            )

    def _end(self, copy: int) -> None:
        """Nobody is left: everyone who acted must have been told of an end."""
        for agent in self._board.waits(copy).tolist():
            raise EnvironmentFault(
                f"{self.world.id}, agent {self._names[agent]}: its episode in copy {copy} should be terminated or "
                "truncated but it left env.agents without either; set one, and let it take its last step with None"
            )

    def _index(self, name: Any) -> int:
        if name not in self._number:
            raise EnvironmentFault(
                f"{self.world.id}, agent {name}: it should be one of {', '.join(self._names)} but is unknown; "
                "list it in possible_agents"
            )
        return self._number[name]

    def close(self) -> None:
        """Closes all copies."""
        while self._envs:
            self._envs.pop().close()


def _without_guards(env: Any) -> Any:
    """`env` without the wrappers that only check the order of calls and the range of actions, both of which hold
    here."""
    try:
        from pettingzoo.utils import wrappers
    except ImportError:
        return env
    while type(env) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper):
        env = env.env
    return env
