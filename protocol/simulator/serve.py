"""An environment as a simulator that a run steps: it has no clock of its own, and begins an episode when it is told.

In flows: seeds and actions from an actor. Out flows: what a Gymnasium or PettingZoo (parallel) environment says to
them.

    serve(gymnasium.make("CartPole-v1"), "tcp://127.0.0.1:5700", "sim-0")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from protocol.messages.simulator import LONGEST_INFO, MOST_INFOS
from protocol.simulator.client import EpisodeCut, RunOver, Simulator

_LARGEST = 1e12
"""Beyond which there is no curve of a number."""


def serve(env: Any, endpoint: str | Path, name: str, *, episodes: int | None = None, **options: Any) -> int:
    """Plays until the run is over, or so many episodes; how many were played to their end. `options`: of `Simulator`.

    `env` has `reset(seed=...)` and `step(action)` as `gymnasium.Env` has them, or `possible_agents` and `agents`
    besides, as PettingZoo's parallel environments do.
    """
    play, played = (_parallel if hasattr(env, "possible_agents") else _single), 0
    try:
        with Simulator(endpoint, name, drives=False, **options) as sim:
            while episodes is None or played < episodes:
                with suppress(EpisodeCut):  # the actor was lost and is found again: it tells when to begin
                    play(sim, env, sim.begin())
                    played += 1
    except RunOver:
        pass  # there will be nothing to begin
    return played


def _single(sim: Simulator, env: Any, seed: int) -> None:
    masked = sim.world.places[0].masked is not None
    (observation, info), reward = env.reset(seed=seed), 0.0
    while True:
        action = sim.act(observation, reward, mask=info["action_mask"] if masked else None)
        observation, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            cut = bool(truncated and not terminated)
            sim.end_episode(reward, truncated=cut, observation=observation, info=_numbers(info))
            return


def _parallel(sim: Simulator, env: Any, seed: int) -> None:
    observations, infos = env.reset(seed=seed)
    rewards: Mapping[str, float] = {}
    while env.agents:
        shown = {name: _parted(sim, name, observations[name], infos.get(name, {})) for name in env.agents}
        actions = sim.act_all(
            {name: seen for name, (seen, _) in shown.items()},
            rewards,
            {name: mask for name, (_, mask) in shown.items()},
        )
        observations, rewards, terminated, truncated, infos = env.step(actions)
        dead = [name for name, it in terminated.items() if it]
        cut = [name for name, it in truncated.items() if it and not terminated[name]]
        told = {name: _numbers(infos.get(name, {})) for name in (*dead, *cut)}
        if dead:
            sim.end_all({name: rewards[name] for name in dead}, over=not env.agents and not cut, infos=told)
        if cut:
            last = {name: _parted(sim, name, observations[name], {})[0] for name in cut}
            earned, over = {name: rewards[name] for name in cut}, not env.agents
            sim.end_all(earned, truncated=True, observations=last, over=over, infos=told)
        rewards = {name: rewards[name] for name in env.agents if name in rewards}


def _numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """What of `info` can be sent: the first of its finite numbers and truths. The rest is passed over, as where an
    actor steps the environment itself."""
    found: dict[str, float] = {}
    for name, value in info.items():
        value = value.item() if getattr(value, "shape", None) == () else value
        fits = len(found) < MOST_INFOS and 0 < len(name) <= LONGEST_INFO
        if fits and isinstance(value, int | float) and abs(value) <= _LARGEST:  # of what is no number that is false
            found[name] = value
    return found


def _parted(sim: Simulator, name: str, observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """What an agent sees and its mask of legal actions, which lies beside it or in the info, if it has one."""
    if sim.world.place(name).masked is None:
        return observation, None
    if isinstance(observation, Mapping) and "action_mask" in observation:
        return observation["observation"], observation["action_mask"]
    return observation, info.get("action_mask")
