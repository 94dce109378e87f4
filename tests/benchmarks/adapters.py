"""What an adapter costs beside the environments that it steps.

Out flow: figures by key, each the median over interleaved pairs of the time of stepping through the adapter, over that
of stepping the same environments bare with the same actions. `adapter.pettingzoo_ratio`: MPE's simple_spread, in turn.
`adapter.gymnasium_ratio`: 64 CartPoles in Gymnasium's vector form. Where they are installed, `adapter.gymnax_ratio`:
256 of MinAtar's Breakout, whose bare loop is jitted; `adapter.vmas_ratio`: 256 of `simple_spread`, whose
episodes end by their limit, so that all begin at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np

from protocol.config.run import EnvironmentConfig
from workers.environments.adapters import gymnasium_adapter, pettingzoo_parallel
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.base import Environment
from workers.environments.registry import make

__all__ = ["overhead"]

_ROUNDS = 15
_SPREADS, _SPREAD_TURNS = 8, 60
_CARTPOLES, _CARTPOLE_TURNS = 64, 600
_BATCH, _BATCH_TURNS = 256, 120


def overhead(rounds: int = _ROUNDS) -> dict[str, float]:
    """Both ratios; 1 is no cost. An adapter of converted PettingZoo environments does without the wrappers that check
    what it knows to hold, so its ratio is below 1."""
    found = {"adapter.pettingzoo_ratio": _spread(rounds), "adapter.gymnasium_ratio": _cartpole(rounds)}
    for name, measured in (("gymnax", _breakout), ("vmas", _vmas)):
        if find_spec(name) is not None:
            found[f"adapter.{name}_ratio"] = measured(rounds)
    return found


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


def _breakout(rounds: int) -> float:
    import gymnax
    import jax

    world = make(EnvironmentConfig(id="gymnax:Breakout-MinAtar", copies=_BATCH))
    env, params = gymnax.make("Breakout-MinAtar")

    @jax.jit
    def begun(key: Any) -> Any:
        return key, *jax.vmap(env.reset, (0, None))(jax.random.split(key, _BATCH), params)

    @jax.jit
    def stepped(key: Any, state: Any, action: Any) -> Any:
        key, here = jax.random.split(key)
        return key, *jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(here, _BATCH), state, action, params)

    def step_bare(actions: Any, seed: int) -> float:
        key, _, state = begun(jax.random.PRNGKey(seed))
        started = time.perf_counter()
        for turn in actions:
            key, seen, state, reward, terminated, truncated, _ = stepped(key, state, turn[0])
            jax.block_until_ready((seen, reward, terminated, truncated))
        return time.perf_counter() - started

    try:
        return _ratio(world, step_bare, (_BATCH_TURNS, 1, _BATCH), 3, rounds)
    finally:
        world.close()


def _vmas(rounds: int) -> float:
    import torch
    import vmas

    settings = {"continuous_actions": False, "max_steps": 100}
    world = make(EnvironmentConfig(id="vmas:simple_spread", copies=_BATCH, settings=settings))
    bare = vmas.make_env("simple_spread", _BATCH, dict_spaces=True, terminated_truncated=True, **settings)
    names = [agent.name for agent in bare.agents]

    def step_bare(actions: Any, seed: int) -> float:
        bare.reset(seed=seed)
        started = time.perf_counter()
        for turn in actions:
            _, _, terminated, truncated, _ = bare.step(
                {name: torch.from_numpy(one)[:, None] for name, one in zip(names, turn, strict=True)}
            )
            if bool((terminated | truncated).any()):
                bare.reset()
        return time.perf_counter() - started

    try:
        return _ratio(world, step_bare, (_BATCH_TURNS, len(names), _BATCH), 9, rounds)
    finally:
        world.close()


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
