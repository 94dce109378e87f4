"""What an adapter costs beside the environments that it steps.

Out flow: figures by key, each the median over interleaved pairs of the time of stepping through the adapter, over that
of stepping the same environments bare with the same actions. `adapter.pettingzoo_ratio`: MPE's simple_spread, in turn.
`adapter.gymnasium_ratio`: 64 CartPoles in Gymnasium's vector form.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from workers.environments.adapters import gymnasium_adapter, pettingzoo_parallel
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.base import Environment

__all__ = ["overhead"]

_ROUNDS = 15
_SPREADS, _SPREAD_TURNS = 8, 60
_CARTPOLES, _CARTPOLE_TURNS = 64, 600


def overhead(rounds: int = _ROUNDS) -> dict[str, float]:
    """Both ratios; 1 is no cost. An adapter of converted PettingZoo environments does without the wrappers that check
    what it knows to hold, so its ratio is below 1."""
    return {"adapter.pettingzoo_ratio": _spread(rounds), "adapter.gymnasium_ratio": _cartpole(rounds)}


def _spread(rounds: int) -> float:
    from mpe2 import simple_spread_v3

    world = pettingzoo_parallel.from_id("pettingzoo:mpe2.simple_spread_v3", _SPREADS, {})
    bare = [simple_spread_v3.parallel_env() for _ in range(_SPREADS)]
    names = list(bare[0].possible_agents)

    def step_bare(actions: Any, seed: int) -> float:
        for env, one in zip(bare, copy_seeds(seed, _SPREADS), strict=True):
            env.reset(seed=one)
        chosen = actions.transpose(0, 2, 1).tolist()
        started = time.perf_counter()
        for turn in chosen:
            for env, acts in zip(bare, turn, strict=True):
                env.step(dict(zip(names, acts, strict=True)))
                if not env.agents:
                    env.reset()
        return time.perf_counter() - started

    shape = (_SPREAD_TURNS, len(names), _SPREADS)
    try:
        return _ratio(world, step_bare, shape, 5, rounds)
    finally:
        world.close()
        for env in bare:
            env.close()


def _cartpole(rounds: int) -> float:
    world = gymnasium_adapter.from_id("gymnasium:CartPole-v1", _CARTPOLES, {})
    bare = gymnasium.make_vec("CartPole-v1", num_envs=_CARTPOLES)

    def step_bare(actions: Any, seed: int) -> float:
        bare.reset(seed=seed)
        started = time.perf_counter()
        for turn in actions:
            bare.step(turn[0])
        return time.perf_counter() - started

    try:
        return _ratio(world, step_bare, (_CARTPOLE_TURNS, 1, _CARTPOLES), 2, rounds)
    finally:
        world.close()
        bare.close()


def _ratio(
    world: Environment, step_bare: Callable[[Any, int], float], shape: tuple[int, ...], choices: int, rounds: int
) -> float:
    """Median of pairs; the first of a pair changes, and the first pair warms up."""
    generator, ratios = np.random.default_rng(0), []
    for seed in range(rounds + 1):
        actions = generator.integers(choices, size=shape)
        if seed % 2:
            ours = _step_ours(world, actions, seed)
            bare = step_bare(actions, seed)
        else:
            bare = step_bare(actions, seed)
            ours = _step_ours(world, actions, seed)
        ratios.append(ours / bare)
    return statistics.median(ratios[1:])


def _step_ours(world: Environment, actions: Any, seed: int) -> float:
    world.reset(seed)
    started = time.perf_counter()
    for turn in actions:
        world.step(turn)
    return time.perf_counter() - started
