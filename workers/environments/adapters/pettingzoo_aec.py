"""PettingZoo environments whose agents act one after another (AECEnv) as worlds, E copies stepped one by one.

In flow: in each copy the action of the agent whose turn it is. Out flow: a turn that gathers, for each agent, the
copies in which it is to act now. What an agent earned since its last action is told with its next turn or its end; the
steps that the dead take in PettingZoo (action None) are taken here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import EnvironmentFault
from workers.environments.adapters.adapter_checks import STEP, copy_seeds, malformed
from workers.environments.adapters.pettingzoo_copies import PettingZooWorld
from workers.environments.base import Turn


class PettingZooAEC(PettingZooWorld):
    """Those in turns. An environment step is complete when an agent's turn comes that has acted in it already, or when
    the episode ends.

    A reward that an agent is given before its first action of an episode belongs to that action; one that never acts
    has nothing to be rewarded for, which is logged.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int, observe: ObservedParts | None = None) -> None:
        super().__init__(id, make_one, copies, observe)
        self._acted: list[set[int]] = [set() for _ in range(copies)]
        """Who has acted in each copy's present environment step."""

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        self._board.clear()
        for i, one in enumerate(copy_seeds(seed, self.copies)):
            self._cast.begin(i, seed=one)
            self._acted[i].clear()
            self._advance(i)
        return self._board.turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Applies the action of the agent whose turn it is in each copy."""
        steps, chosen = 0, list(self._board.each(actions))
        self._board.begin()
        for agent, i, action in chosen:
            self._cast.envs[i].step(action)
            self._acted[i].add(agent)
            steps += self._advance(i)
        return self._board.turn(env_steps=steps)

    def _advance(self, copy: int) -> bool:
        """On to the next agent that lives, past the dead, if need be into the next episode; whether an environment step
        is complete."""
        env, board, complete = self._cast.envs[copy], self._board, False
        for _ in range(2 * len(self._cast.names) + 1):
            if not env.agents:
                self._end(copy)
                complete = bool(self._acted[copy])
                self._acted[copy].clear()
                self._cast.begin(copy)
            agent = self._cast.selected(copy)
            told = env.last()
            if not isinstance(told, tuple | list) or len(told) != 5:
                raise malformed(self.world.id, "last", STEP, told, "pettingzoo.AECEnv")
            seen, reward, terminated, truncated, info = told
            board.add_reward(agent, copy, reward)
            if terminated is not False or truncated is not False:
                terminated, truncated = board.has_ended(agent, terminated, truncated)
            if not (terminated or truncated):
                board.observe(agent, copy, seen, info)
                if agent in self._acted[copy]:
                    self._acted[copy].clear()
                    complete = True
                return complete
            if board.end(agent, copy, terminated, truncated, seen):
                self.tell(agent, info)
            env.step(None)
        raise EnvironmentFault("dead_agents_selected", environment=self.world.id, copy=copy)

    def _end(self, copy: int) -> None:
        """Nobody is left: everyone who acted must have been told of an end."""
        for agent in self._board.waits(copy).tolist():
            raise EnvironmentFault(
                "agent_left_without_end", environment=self.world.id, agent=self._cast.names[agent], copy=copy
            )
