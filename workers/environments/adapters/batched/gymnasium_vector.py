"""Gymnasium's vector environments as worlds with the single agent `agent`: all copies in one call.

In flow: actions [n]. Out flow: observations, rewards and ends, exact in each of Gymnasium's ways to restart. Where an
episode restarts only with the next step (`NEXT_STEP`), that step takes no action of the agent: it is not present in
that copy, and is told of the end meanwhile. CartPole restarts in the step that ended an episode, with the rows that E
scalar CartPoles with the same seeds give, some twenty times faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.drawing import first_legal
from protocol.spaces.gymnasium import world_from_gymnasium
from workers.environments.adapters.adapter_checks import (
    RESET,
    STEP,
    check_reset,
    copy_seeds,
    declared_space,
    malformed,
    max_steps,
    picture_of,
    step_before_reset,
)
from workers.environments.adapters.space_conversion import BatchConverter, translate
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn
from workers.environments.checks.closing import closed_on_failure
from workers.runtime.state_capture import State

_API = "gymnasium.vector.VectorEnv"


class GymnasiumVector(Environment):
    """`vector` is a `gymnasium.vector.VectorEnv` of E copies; ConfigurationError for spaces that cannot be taken.

    An episode that terminated counts as terminated alone, even where its time was up in the same step.
    """

    def __init__(self, id: str, vector: Any, observe: ObservedParts | None = None) -> None:
        self._vector = vector
        self.copies = vector.num_envs
        self._where = f"{id}, agent agent"
        with closed_on_failure(id, self.close):
            self._mode = _mode(id, vector)
            observed = {"agent": declared_space(id, vector, "single_observation_space")}
            acted = {"agent": declared_space(id, vector, "single_action_space")}
            steps = max_steps(getattr(getattr(vector, "spec", None), "max_episode_steps", None))
            check_reset(self._where, vector.reset, always_seeded=True)
            infos = {"agent": self._restart(seed=0)[1]}
            self.world, (self._agent,) = translate(id, observed, acted, infos, steps, observe)
        self._place = self.world.places[0]
        self._all = BatchConverter(self._agent, self.copies)
        self._ended = np.zeros(self.copies, np.bool_)
        """[E]: copies that restart in the next step (`NEXT_STEP`)."""
        self._begun = False

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; Gymnasium seeds each copy from one number, drawn from `seed`."""
        observation, info = self._restart(seed=copy_seeds(seed, 1)[0])
        self._agent.refuse_late_mask(info)
        self._ended.fill(False)
        self._begun = True
        none = np.zeros(self.copies, np.bool_)
        present = AgentTimeStep(
            0, self._all.write_observation(observation), np.zeros(self.copies, np.float32), none, none.copy()
        )
        present.action_mask = self._all.write_mask(observation, info)
        return Turn((present,))

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Steps all copies in one call."""
        if not self._begun:
            raise step_before_reset(self.world.id)
        if self._mode == "NEXT_STEP":
            return self._step_next_step_autoreset(actions[0])
        present, info = self._advance(self._all.act(actions[0]))
        self._tell_ends(present, info.get("final_info") if self._mode == "SAME_STEP" else info)
        if self._mode == "DISABLED":
            self._keep_finals(present, present.observation[present.truncated])
            ended = present.terminated | present.truncated
            if ended.any():
                observation, info = self._restart(options={"reset_mask": ended})
                present.observation = self._all.write_observation(observation)
                present.action_mask = self._all.write_mask(observation, info, present.action_mask)
        elif present.truncated.any():
            self._keep_finals(present, self._finals(present.truncated, info))
        return Turn((present,), env_steps=self.copies)

    def _step_next_step_autoreset(self, actions: NDArray[Any]) -> Turn:
        """Copies that ended in the last step restart in this one, whatever the action."""
        restarted = self._ended
        chosen = first_legal(self._place.acted, self.copies)
        chosen[~restarted] = actions
        present, info = self._advance(self._all.act(chosen))
        self._tell_ends(present, info)
        ended = present.terminated | present.truncated
        steps = self.copies - int(restarted.sum())
        if (ended & restarted).any():
            copy = int(np.flatnonzero(ended & restarted)[0])
            raise EnvironmentFault("restarting_copy_ended", where=self._where, copy=copy)
        self._keep_finals(present, present.observation[present.truncated])
        if ended.all():  # nobody could act: on to the first observations
            first, _ = self._advance(self._all.act(first_legal(self._place.acted, self.copies)))
            present.observation, present.action_mask = first.observation, first.action_mask
            self._ended = np.zeros(self.copies, np.bool_)
            return Turn((present,), env_steps=steps)
        self._ended = ended
        if not ended.any():
            return Turn((present,), env_steps=steps)
        away, here = np.flatnonzero(ended), np.flatnonzero(~ended)
        outcome = AgentOutcome(
            0,
            away,
            present.reward[away],
            present.terminated[away],
            present.truncated[away],
            np.flatnonzero(present.truncated[away]),
            present.final_observation,
        )
        there = present.observation[here], present.reward[here], present.terminated[here], present.truncated[here]
        mask = None if present.action_mask is None else present.action_mask[here]
        return Turn((AgentTimeStep(0, *there, here, action_mask=mask),), env_steps=steps, outcomes=(outcome,))

    def _restart(self, **how: Any) -> tuple[Any, Mapping[str, Any]]:
        """(observations, info) of new episodes."""
        told = self._vector.reset(**how)
        if not isinstance(told, tuple | list) or len(told) != 2 or not isinstance(told[1], Mapping | None):
            raise malformed(self._where, "reset", RESET, told, _API)
        return told[0], told[1] or {}

    def _advance(self, actions: Any) -> tuple[AgentTimeStep, Mapping[str, Any]]:
        """What a step brought, and its info."""
        told = self._vector.step(actions)
        if not isinstance(told, tuple | list) or len(told) != 5 or not isinstance(told[4], Mapping | None):
            raise malformed(self._where, "step", STEP, told, _API)
        observation, reward, info = told[0], told[1], told[4] or {}
        terminated, truncated = _array(told[2]), _array(told[3])
        for field, got in (("terminated", terminated), ("truncated", truncated)):
            if got.shape != (self.copies,) or got.dtype != np.bool_:
                raise self._fault(field, f"bool[{self.copies}]", got)
        earned = _array(reward)
        if earned.shape != (self.copies,) or earned.dtype.kind not in "fiub":
            raise self._fault("reward", f"float32[{self.copies}]", earned)
        seen, mask = self._all.write_observation(observation), self._all.write_mask(observation, info)
        present = AgentTimeStep(0, seen, earned.astype(np.float32, copy=False), terminated, truncated & ~terminated)
        present.action_mask = mask
        return present, info

    def _tell_ends(self, present: AgentTimeStep, info: Any) -> None:
        """What `info` tells of the episodes that ended, each in its row."""
        if info:
            for copy in np.flatnonzero(present.terminated | present.truncated).tolist():
                self.tell(0, _row_of(info, copy, self.copies))

    def _keep_finals(self, present: AgentTimeStep, finals: NDArray[Any]) -> None:
        if len(finals):
            present.final_index = np.flatnonzero(present.truncated)
            present.final_observation = finals

    def _finals(self, truncated: NDArray[np.bool_], info: Any) -> NDArray[Any]:
        """[m, *shape] from `info`, where episodes restart in the step that ended them."""
        finals, there = info.get("final_obs"), _array(info.get("_final_obs", False))
        copies = np.flatnonzero(truncated).tolist()
        try:
            seen = [finals[copy] for copy in copies if there[copy]]
        except (TypeError, IndexError, KeyError):
            seen = []
        if len(seen) < len(copies):
            raise EnvironmentFault("final_observations_missing", where=self._where)
        last = self._place.observed.zeros(len(copies))
        for row, one in enumerate(seen):
            self._agent.write_observation(last, row, one)
        return last

    def _fault(self, field: str, expected: str, got: NDArray[Any]) -> EnvironmentFault:
        return EnvironmentFault(
            "vector_array_mismatch",
            where=self._where,
            field=field,
            expected=expected,
            dtype=got.dtype,
            shape=list(got.shape),
        )

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """What the environment renders, where it was made with `render_mode: rgb_array`."""
        return picture_of(self._vector, copy)

    def close(self) -> None:
        """Closes all copies."""
        self._vector.close()


def _array(told: Any) -> NDArray[Any]:
    """An array, of objects where it is ragged."""
    try:
        return np.asarray(told)
    except ValueError:
        return np.asarray(told, object)


def _row_of(info: Any, copy: int, copies: int) -> dict[str, Any]:
    """What arrays of `copies` rows tell of one copy, which they do where the one that is called `_NAME` says so."""
    found: dict[str, Any] = {}
    for name, told in info.items() if isinstance(info, Mapping) else ():
        there = info.get(f"_{name}")
        if str(name)[:1] == "_" or (np.shape(there) == (copies,) and not there[copy]):
            continue
        if isinstance(told, Mapping):
            found[name] = _row_of(told, copy, copies)
        elif isinstance(told, np.ndarray) and told.shape == (copies,):
            found[name] = told[copy]
    return found


def _mode(id: str, vector: Any) -> str:
    """NEXT_STEP, SAME_STEP or DISABLED."""
    mode = getattr((getattr(vector, "metadata", None) or {}).get("autoreset_mode"), "name", None)
    if mode not in ("NEXT_STEP", "SAME_STEP", "DISABLED"):
        raise ConfigurationError("autoreset_mode_missing", environment=id)
    return str(mode)


_PHYSICS = ("state", "steps", "prev_done")
_AHEAD = 64
"""Beginnings of episodes that are drawn at once for a copy."""


class CartPole(Environment):
    """`vector` is a `CartPoleVectorEnv` of E copies.

    By itself that restarts a copy one step late, in a step that ignores the action. Here a copy's state is replaced as
    soon as its episode has ended, with random numbers of its own, drawn as the scalar CartPole draws them.
    """

    has_state = True

    def __init__(self, id: str, vector: Any) -> None:
        self._vector = vector
        self._physics = vector.unwrapped
        self._physics.action_space = _Trusted()
        self.copies = vector.num_envs
        spaces = vector.single_observation_space, vector.single_action_space
        self.world = world_from_gymnasium(id, *spaces, episode_steps=self._physics.max_episode_steps)
        self._generators: list[np.random.Generator] = []
        self._starts = np.zeros((self.copies, _AHEAD, 4))
        self._nowhere = np.zeros(self.copies, np.bool_)
        self._next: NDArray[np.int64] = np.zeros(self.copies, np.int64)

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        from gymnasium.utils import seeding

        self._vector.reset(seed=seed)
        self._generators = [seeding.np_random(one)[0] for one in copy_seeds(seed, self.copies)]
        for i in range(self.copies):
            self._draw(i)
        observation = np.empty((self.copies, 4), np.float32)
        self._restart(np.arange(self.copies), observation)
        none = np.zeros(self.copies, np.bool_)
        return Turn((AgentTimeStep(0, observation, np.zeros(self.copies, np.float32), none, none.copy()),))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps every copy; where an episode ended, the observation is already the next episode's first."""
        physics = self._physics
        observation, reward, terminated, truncated, _ = self._vector.step(actions[0])
        present = AgentTimeStep(0, observation, reward, terminated, truncated)
        ended = physics.prev_done.nonzero()[0]
        if ended.size:
            truncated &= ~terminated
            if physics.steps[ended].max() >= physics.max_episode_steps:
                present.final_index = truncated.nonzero()[0]
                if present.final_index.size:
                    present.final_observation = observation[present.final_index]
            self._restart(ended, observation)
        return Turn((present,), env_steps=self.copies)

    def get_state(self) -> State:
        """With that of Gymnasium's physics, of which nothing else changes."""
        physics = {name: getattr(self._physics, name).copy() for name in _PHYSICS}
        return {**super().get_state(), **physics}

    def set_state(self, state: State) -> None:
        """The inverse."""
        super().set_state(state)
        for name in _PHYSICS:
            setattr(self._physics, name, state[name].copy())

    def _restart(self, copies: NDArray[np.int64], observation: NDArray[np.float32]) -> None:
        """New episodes in `copies`, which are all that have ended; their first observations are written to
        `observation` [E, 4]."""
        physics = self._physics
        at = self._next[copies]
        if max(at.tolist()) == _AHEAD:
            for i in copies[at == _AHEAD]:
                self._draw(i)
            at = self._next[copies]
        states = self._starts[copies, at]
        self._next[copies] += 1
        physics.state[:, copies] = states.T
        physics.steps[copies] = 0
        physics.prev_done = self._nowhere
        observation[copies] = states

    def _draw(self, copy: int) -> None:
        """The states in which the next episodes of a copy begin: the numbers that drawing one by one would give."""
        physics = self._physics
        self._starts[copy] = self._generators[copy].uniform(physics.low, physics.high, size=(_AHEAD, 4))
        self._next[copy] = 0

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """What the environment renders, where it was made with `render_mode: rgb_array`."""
        return picture_of(self._vector, copy)

    def close(self) -> None:
        """Closes Gymnasium's environment."""
        self._vector.close()


class _Trusted:
    """In place of the action space, which takes a seventh of a step to look at actions that are known to be in it."""

    def contains(self, action: Any) -> bool:
        """They come from a policy that has no others."""
        return True
