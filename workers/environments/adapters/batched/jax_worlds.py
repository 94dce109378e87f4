"""Worlds in JAX, jitted and mapped over all copies: those of gymnax (one agent) and of JaxMARL (several).

In flow: actions [E, ...] of NumPy. Out flow: what a step brought, as arrays of NumPy that lie where JAX has them. One
key makes all chance: it is split in each step, and then once for each copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.errors.packages import missing_module, not_installed
from workers.environments.adapters.adapter_checks import check_limit, settings_refused
from workers.environments.adapters.batched.parallel import as_gymnasium
from workers.environments.adapters.space_conversion import MASK
from workers.environments.known_ids import is_meant, nearest
from workers.runtime.state_capture import State

_AGENT = "agent"
_NOT_OWN = ("terminated", "truncated", "discount")
"""What infos of gymnax hold besides what a world tells."""
_THREADS = "--xla_cpu_multi_thread_eigen"
"""False: one thread a computation. The other cores are the learner's, and other actors'."""


def from_id(id: str, copies: int, settings: Mapping[str, Any]) -> JaxWorld:
    """`gymnax:ID` or `jaxmarl:ID`, with what it is made of, and the fields of gymnax' parameters, as settings."""
    if _THREADS not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_THREADS}=false".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    package, _, name = id.partition(":")
    try:
        _find_device()
        if package == "gymnax":
            import gymnax as library
        else:
            import jaxmarl as library
    except ImportError as fault:
        raise not_installed(id, missing_module(fault) or package) from fault
    if name not in library.registered_envs:
        hint = is_meant([f"{package}:{one}" for one in nearest(name, {env: env for env in library.registered_envs})])
        raise ConfigurationError("jax_world_unknown", value=name, package=package, hint=hint, key="environment.id")
    try:
        for limit in ("max_steps", "max_steps_in_episode"):
            check_limit(limit, settings.get(limit))
        return (
            _gymnax(library, name, copies, settings)
            if package == "gymnax"
            else _jaxmarl(library, name, copies, settings)
        )
    except (TypeError, ValueError, AttributeError) as fault:
        raise settings_refused(id, settings, fault) from fault


def _find_device() -> None:
    """ConfigurationError where JAX has none, of which it says little."""
    try:
        import jax

        jax.devices()
    except ImportError:
        return  # is told of the library that needs it
    except (RuntimeError, AssertionError) as fault:
        value = os.environ["JAX_PLATFORMS"]
        raise ConfigurationError("jax_without_device", value=value, key="JAX_PLATFORMS") from fault


class JaxWorld:
    """E copies of a world of `spaces` (agent -> observation, action). Of one copy `begin` (key) returns (state,
    observations, masks) of a new episode, and `step` (key, state, actions) the next state and what a `BatchedWorld`
    returns."""

    def __init__(
        self, copies: int, spaces: Mapping[str, tuple[Any, Any]], limit: int | None, begin: Callable, step: Callable
    ) -> None:
        import jax

        self.num_envs, self.possible_agents, self.max_episode_steps = copies, [*spaces], limit
        _, like, _ = jax.eval_shape(begin, jax.random.PRNGKey(0))
        self._spaces = {
            name: (as_gymnasium(seen, like[name]), as_gymnasium(acted)) for name, (seen, acted) in spaces.items()
        }
        self._state: Any = None
        self._key: Any = None

        def begun(key: Any) -> Any:
            key, here = jax.random.split(key)
            return key, *jax.vmap(begin)(jax.random.split(here, copies))

        def stepped(key: Any, state: Any, actions: Any) -> Any:
            key, here = jax.random.split(key)
            return key, *jax.vmap(step)(jax.random.split(here, copies), state, actions)

        self._begin, self._step = jax.jit(begun), jax.jit(stepped)

    def observation_space(self, agent: str) -> Any:
        """Gymnasium's."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        """Gymnasium's."""
        return self._spaces[agent][1]

    def reset(self, seed: int) -> tuple[Any, Any]:
        """From JAX's key of `seed`."""
        import jax

        self._key, self._state, seen, masks = self._begin(jax.random.PRNGKey(seed))
        return _arrays(seen), {name: {MASK: mask} for name, mask in _arrays(masks).items()}

    def step(self, actions: Mapping[str, NDArray[Any]]) -> tuple[Any, ...]:
        """In all copies."""
        self._key, self._state, *told = self._step(self._key, self._state, dict(actions))
        return tuple(_arrays(told))

    def get_state(self) -> State:
        """States and the key, leaf by leaf."""
        import jax

        leaves = jax.tree.leaves((self._key, self._state))
        return {str(number): np.array(leaf) for number, leaf in enumerate(leaves)}

    def set_state(self, state: State) -> None:
        """The inverse, after `reset`."""
        import jax

        leaves = [state[str(number)] for number in range(len(state))]
        form = jax.tree.structure((self._key, self._state))
        self._key, self._state = jax.tree.unflatten(form, [jax.numpy.asarray(leaf) for leaf in leaves])


def _gymnax(library: Any, name: str, copies: int, settings: Mapping[str, Any]) -> JaxWorld:
    plain = {field.name for field in fields(library.make(name)[1])}
    env, known = library.make(name, **{key: value for key, value in settings.items() if key not in plain})
    params = known.replace(**{key: value for key, value in settings.items() if key in plain})

    def begin(key: Any) -> Any:
        seen, state = env.reset(key, params)
        return state, {_AGENT: seen}, {}

    def step(key: Any, state: Any, actions: Any) -> Any:
        seen, state, reward, terminated, truncated, info = env.step(key, state, actions[_AGENT], params)
        info = {name: told for name, told in info.items() if name not in _NOT_OWN}
        return state, {_AGENT: seen}, {_AGENT: reward}, terminated, truncated, {_AGENT: info}

    spaces = {_AGENT: (env.observation_space(params), env.action_space(params))}
    return JaxWorld(copies, spaces, int(params.max_steps_in_episode), begin, step)


def _jaxmarl(library: Any, name: str, copies: int, settings: Mapping[str, Any]) -> JaxWorld:
    """An episode that ends in its last step counts as truncated: JaxMARL does not say which it was."""
    import jax

    env = library.make(name, **settings)
    limit = getattr(env, "max_steps", None)
    base = library.environments.multi_agent_env.MultiAgentEnv
    told = type(env).get_avail_actions is not base.get_avail_actions
    legal_actions = env.get_avail_actions if told else getattr(env, "get_legal_moves", None)  # the second is Hanabi's

    def masks(state: Any) -> Any:
        legal = {} if legal_actions is None else legal_actions(state)
        return {name: mask != 0 for name, mask in legal.items() if name in env.agents}

    def begin(key: Any) -> Any:
        seen, state = env.reset(key)
        return (state, 0), {name: seen[name] for name in env.agents}, masks(state)

    def step(key: Any, state: Any, actions: Any) -> Any:
        key, again = jax.random.split(key)  # as its own `step` does
        state, steps = state
        last, after, rewards, done, info = env.step_env(key, state, actions)
        first, new = env.reset(again)
        over = done["__all__"]
        seen, state = jax.tree.map(lambda x, y: jax.lax.select(over, x, y), (first, new), (last, after))
        truncated = over & (steps + 1 >= limit) if limit else over & False
        legal = masks(state)
        infos = {
            name: {"final_observation": last[name], **({MASK: legal[name]} if legal else {}), **_scalars(info)}
            for name in env.agents
        }
        seen = {name: seen[name] for name in env.agents}
        return (state, (steps + 1) * ~over), seen, rewards, over & ~truncated, truncated, infos

    spaces = {name: (env.observation_space(name), env.action_space(name)) for name in env.agents}
    return JaxWorld(copies, spaces, limit + 1 if limit else None, begin, step)  # SMAX and MPE make one more


def _scalars(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the whole copy."""
    return {name: value for name, value in told.items() if getattr(value, "shape", None) == ()}


def _arrays(told: Any) -> Any:
    """All leaves as arrays of NumPy, without a copy."""
    import jax

    return jax.tree.map(np.asarray, told)
