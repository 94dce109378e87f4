"""Gymnasium's vector environments as worlds with the single agent `agent`: all copies in one call.

In flow: actions [n]. Out flow: observations, rewards and ends, exact in each of Gymnasium's ways to restart. Where an
episode restarts only with the next step (`NEXT_STEP`), that step takes no action of the agent: it is not present in
that copy, and is told of the end meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import World
from workers.environments.adapting import agent_of, copy_seeds, most_steps, refuse_early_step
from workers.environments.base import Environment, Outcome, Present, Turn

__all__ = ["GymnasiumVector"]

_NONE = np.empty(0, np.int64)


class GymnasiumVector(Environment):
    """`vector` is a `gymnasium.vector.VectorEnv` of E copies; ConfigurationError for spaces this release does not take.

    An episode that terminated counts as terminated alone, even where its time was up in the same step.
    """

    def __init__(self, id: str, vector: Any) -> None:
        self._vector = vector
        self.copies = vector.num_envs
        try:
            agent, self._start = agent_of("agent", vector.single_observation_space, vector.single_action_space, id)
            self._mode = _mode(id, vector)
        except BaseException:
            self.close()
            raise
        steps = most_steps(getattr(getattr(vector, "spec", None), "max_episode_steps", None))
        self.world = World(id=id, agents=(agent,), episode_steps=steps)
        self._shape, self._dtype = (self.copies, *agent.observation.shape), np.dtype(agent.observation.dtype)
        self._ended = np.zeros(self.copies, np.bool_)
        """[E]: copies that restart in the next step (`NEXT_STEP`)."""
        self._begun = False

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; Gymnasium seeds each copy from one number, drawn from `seed`."""
        observation, _ = self._vector.reset(seed=copy_seeds(seed, 1)[0])
        self._ended.fill(False)
        self._begun = True
        return Turn((self._fresh(observation),))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps all copies in one call."""
        if not self._begun:
            raise refuse_early_step(self.world.id)
        if self._mode == "NEXT_STEP":
            return self._step_late(actions[0])
        observation, reward, terminated, truncated, info = self._vector.step(actions[0] + self._start)
        present = self._told(observation, reward, terminated, truncated)
        if self._mode == "DISABLED":
            self._keep_finals(present, present.observation[present.truncated])
            ended = present.terminated | present.truncated
            if ended.any():
                observation, _ = self._vector.reset(options={"reset_mask": ended})
                present.observation = self._seen(observation)
        elif present.truncated.any():
            self._keep_finals(present, self._finals(present.truncated, info))
        return Turn((present,), env_steps=self.copies)

    def _step_late(self, action: NDArray[np.int64]) -> Turn:
        """Copies that ended in the last step restart in this one, whatever the action."""
        restarted = self._ended
        chosen = np.full(self.copies, self._start, np.int64)
        chosen[~restarted] += action
        present = self._told(*self._vector.step(chosen)[:4])
        ended = present.terminated | present.truncated
        steps = self.copies - int(restarted.sum())
        if (ended & restarted).any():
            copy = int(np.flatnonzero(ended & restarted)[0])
            raise EnvironmentFault(
                f"{self.world.id}, agent agent: terminated and truncated should be False in copy {copy}, which "
                "restarts, but one is True; correct autoreset_mode in the metadata of the vector environment"
            )
        self._keep_finals(present, present.observation[present.truncated])
        if ended.all():  # nobody could act: on to the first observations
            observation = self._vector.step(np.full(self.copies, self._start, np.int64))[0]
            present.observation = self._seen(observation)
            self._ended = np.zeros(self.copies, np.bool_)
            return Turn((present,), env_steps=steps)
        self._ended = ended
        if not ended.any():
            return Turn((present,), env_steps=steps)
        away, here = np.flatnonzero(ended), np.flatnonzero(~ended)
        outcome = Outcome(
            0,
            away,
            present.reward[away],
            present.terminated[away],
            present.truncated[away],
            np.flatnonzero(present.truncated[away]),
            present.final_observation,
        )
        there = present.observation[here], present.reward[here], present.terminated[here], present.truncated[here]
        return Turn((Present(0, *there, here),), env_steps=steps, outcomes=(outcome,))

    def _fresh(self, observation: Any) -> Present:
        none = np.zeros(self.copies, np.bool_)
        return Present(0, self._seen(observation), np.zeros(self.copies, np.float32), none, none.copy())

    def _told(self, observation: Any, reward: Any, terminated: Any, truncated: Any) -> Present:
        seen = self._seen(observation)
        terminated, truncated = np.asarray(terminated), np.asarray(truncated)
        for field, got in (("terminated", terminated), ("truncated", truncated)):
            if got.shape != (self.copies,) or got.dtype != np.bool_:
                raise self._fault(field, f"bool[{self.copies}]", got)
        earned = np.asarray(reward)
        if earned.shape != (self.copies,) or earned.dtype.kind not in "fiub":
            raise self._fault("reward", f"float32[{self.copies}]", earned)
        return Present(0, seen, earned.astype(np.float32, copy=False), terminated, truncated & ~terminated)

    def _seen(self, observation: Any) -> NDArray[Any]:
        seen = np.asarray(observation)
        if seen.shape != self._shape or not np.can_cast(seen.dtype, self._dtype, "same_kind"):
            raise self._fault("observation", f"{self._dtype}{list(self._shape)}", seen)
        return seen.astype(self._dtype, copy=False)

    def _keep_finals(self, present: Present, finals: NDArray[Any]) -> None:
        if len(finals):
            present.final_index = np.flatnonzero(present.truncated)
            present.final_observation = finals

    def _finals(self, truncated: NDArray[np.bool_], info: Any) -> NDArray[Any]:
        """[m, *shape] from `info`, where episodes restart in the step that ended them."""
        finals = info.get("final_obs")
        there = info.get("_final_obs", np.zeros(self.copies, np.bool_))
        if finals is None or not there[truncated].all():
            raise EnvironmentFault(
                f"{self.world.id}, agent agent: final_obs in info should hold the last observation of each truncated "
                "episode but does not; correct the vector environment, or its autoreset_mode"
            )
        rows = [np.asarray(finals[i]) for i in np.flatnonzero(truncated)]
        for row in rows:
            if row.shape != self._shape[1:] or not np.can_cast(row.dtype, self._dtype, "same_kind"):
                raise self._fault("final_obs", f"{self._dtype}{list(self._shape[1:])}", row)
        return np.stack(rows).astype(self._dtype, copy=False)

    def _fault(self, field: str, expected: str, got: NDArray[Any]) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.world.id}, agent agent: {field} should be {expected} but is {got.dtype}{list(got.shape)}; "
            "correct the vector environment"
        )

    def close(self) -> None:
        """Closes all copies."""
        self._vector.close()


def _mode(id: str, vector: Any) -> str:
    """NEXT_STEP, SAME_STEP or DISABLED."""
    mode = getattr((getattr(vector, "metadata", None) or {}).get("autoreset_mode"), "name", None)
    if mode not in ("NEXT_STEP", "SAME_STEP", "DISABLED"):
        raise ConfigurationError(
            f"{id} does not say when its episodes restart; set metadata['autoreset_mode'] of the vector environment to "
            "one of gymnasium.vector.AutoresetMode"
        )
    return str(mode)
