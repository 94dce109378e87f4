"""Worlds that step all agents in all copies by one call: a small one in NumPy and torch, and, by night, each library's
own loop, step by step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.drawing import random_rows
from tests.faults import raises
from tests.tools import skip_or_fail
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.batched.parallel import BatchedParallel
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make

E = 4
SEED = copy_seeds(5, 1)[0]
Answer = tuple[Any, ...]


class Clocks:
    """Agents see the copy and the steps of its episode, of which copy c makes c + 2; those of even copies terminate,
    the others are truncated. `b` may choose 0 in odd steps alone, and is paid its choice."""

    possible_agents = ("a", "b")
    max_episode_steps = 5

    def __init__(self, array: Callable[[Any], Any], copies: int = E, change: Callable[[Answer], Any] = lambda x: x):
        self.num_envs, self._array, self._change = copies, array, change
        self._step = np.zeros(copies, np.int64)

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(0, 10, (2,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(3) if agent == "b" else gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed: int) -> Answer:
        assert 0 <= seed < 2**31
        self._step[:] = 0
        return self._seen(), {"b": {"action_mask": self._array(self._mask())}}

    def step(self, actions: Mapping[str, Any]) -> Any:
        self._step += 1
        ended, last = self._step == np.arange(self.num_envs) + 2, self._seen()
        self._step[ended] = 0
        even = np.arange(self.num_envs) % 2 == 0
        rewards = {"a": actions["a"][:, 0], "b": actions["b"].astype(np.float64)}
        infos: dict[str, Any] = {
            "a": {"final_observation": last["a"], "copy": np.arange(self.num_envs), "whole": 1.0},
            "b": {"final_observation": last["b"], "action_mask": self._array(self._mask())},
        }
        told = {name: self._array(reward) for name, reward in rewards.items()}
        ends = self._array(ended & even), self._array(ended & ~even)
        return self._change((self._seen(), told, *ends, infos))

    def _seen(self) -> dict[str, Any]:
        seen = np.stack([np.arange(self.num_envs), self._step], 1).astype(np.float32)
        return dict.fromkeys(self.possible_agents, self._array(seen))

    def _mask(self) -> Any:
        return np.stack([self._step % 2 == 1, *2 * [np.ones(self.num_envs, np.bool_)]], 1)


def drawn(turn: Turn, environment: Any, generator: np.random.Generator) -> list[Any]:
    places = environment.world.places
    return [random_rows(places[one.agent].acted, len(one.reward), generator, one.action_mask) for one in turn.present]


@pytest.mark.parametrize("array", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_all_that_a_batched_world_tells_reaches_each_agent_in_each_copy(array: Callable[[Any], Any]) -> None:
    environment = CheckedEnvironment(BatchedParallel("clocks", Clocks(array)))
    assert ([agent.name for agent in environment.world.agents], environment.world.episode_steps) == (["a", "b"], 5)
    turn, generator, steps = environment.reset(2**40), np.random.default_rng(0), np.zeros(E, np.int64)
    for _ in range(60):
        for one in turn.present:
            np.testing.assert_array_equal(one.observation, np.stack([np.arange(E), steps], 1))
        assert turn.present[0].action_mask is None
        mask = turn.present[1].action_mask
        assert mask is not None
        np.testing.assert_array_equal(mask, np.stack([steps % 2 == 1, *2 * [np.ones(E, np.bool_)]], 1))
        actions = drawn(turn, environment, generator)
        turn, steps = environment.step(actions), steps + 1
        ended, even = steps == np.arange(E) + 2, np.arange(E) % 2 == 0
        assert turn.env_steps == E
        for one, paid in zip(turn.present, (actions[0][:, 0], actions[1]), strict=True):
            np.testing.assert_array_equal(one.reward, paid.astype(np.float32))
            np.testing.assert_array_equal((one.terminated, one.truncated), (ended & even, ended & ~even))
            assert one.final_index.tolist() == np.flatnonzero(ended & ~even).tolist()
            if len(one.final_index):
                assert one.final_observation is not None
                assert one.final_observation.tolist() == [[c, c + 2] for c in one.final_index.tolist()]
        steps[ended] = 0
    ends = [60 // (copy + 2) for copy in range(E)]
    told = {("info/copy", 0): (sum(ends), float(sum(c * n for c, n in enumerate(ends))))}
    assert environment.take_episodes() == told


def changed(place: int, value: Callable[[Any], Any]) -> Callable[[Answer], Any]:
    return lambda told: (*told[:place], value(told[place]), *told[place + 1 :])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda told: told[:4], "environment_call_malformed"),
        (changed(4, lambda _: [{}]), "environment_call_malformed"),
        (changed(0, lambda seen: {"a": seen["a"]}), "dict_entry_missing"),
        (changed(0, lambda seen: {**seen, "b": seen["b"][:2]}), "array_form_mismatch"),
        (changed(1, lambda paid: {"a": paid["a"]}), "dict_entry_missing"),
        (changed(1, lambda paid: {**paid, "b": paid["b"][:, None]}), "vector_array_mismatch"),
        (changed(2, lambda ended: ended.astype(np.int64)), "vector_array_mismatch"),
        (changed(3, lambda ended: ended | True), None),
        (changed(4, lambda infos: {"b": infos["b"]}), "dict_entry_missing"),
        (changed(4, lambda infos: {**infos, "b": {"action_mask": np.ones((E, 2))}}), "action_mask_invalid"),
        (changed(4, lambda infos: {**infos, "a": [{}]}), "value_not_a_mapping"),
    ],
)
def test_what_is_no_step_of_a_batched_world_is_told(change: Callable[[Answer], Any], kind: str | None) -> None:
    environment = BatchedParallel("clocks", Clocks(np.array, change=change))
    turn, generator = environment.reset(0), np.random.default_rng(0)

    def play() -> None:
        nonlocal turn
        for _ in range(4):
            turn = environment.step(drawn(turn, environment, generator))
            assert not any((one.terminated & one.truncated).any() for one in turn.present)

    if kind is None:  # all of them are cut, whose last observations are there
        return play()
    with raises(EnvironmentFault, kind):
        play()


class Numbered(Clocks):
    """Observes one number, is called by numbers, and is told masks by `late`, from the first step on."""

    possible_agents: Any = (0, 1)

    def __init__(self, late: bool = False) -> None:
        super().__init__(np.array)
        self._late = late

    def observation_space(self, agent: Any) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(10)

    def action_space(self, agent: Any) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int) -> Answer:
        self._step[:] = 0
        return dict.fromkeys(self.possible_agents, self._step.copy()), {}

    def step(self, actions: Mapping[Any, Any]) -> Answer:
        self._step += 1
        info: dict[str, Any] = {"final_observation": self._step.copy(), "steps": self._step.copy()}
        ended = self._step == 3
        self._step[ended] = 0
        if self._late:
            info["action_mask"] = np.ones((E, 3), np.int64)
        told: Answer = (self._step.copy(), np.ones(E), info)
        seen, paid, infos = (dict.fromkeys(self.possible_agents, one) for one in told)
        return seen, paid, np.zeros(E, np.bool_), ended, infos


def test_agents_may_be_called_by_numbers_and_a_last_observation_is_no_measure() -> None:
    environment = CheckedEnvironment(BatchedParallel("numbered", Numbered()))
    assert [agent.name for agent in environment.world.agents] == ["0", "1"]
    turn, generator = environment.reset(0), np.random.default_rng(0)
    for _ in range(3):
        turn = environment.step(drawn(turn, environment, generator))
    assert environment.take_episodes() == {("info/steps", agent): (E, 3.0 * E) for agent in (0, 1)}


def test_masks_that_no_episode_began_with_are_refused() -> None:
    environment = BatchedParallel("numbered", Numbered(late=True))
    turn = environment.reset(0)
    with raises(EnvironmentFault, "action_mask_came_late"):
        environment.step(drawn(turn, environment, np.random.default_rng(0)))


@pytest.mark.parametrize(("names", "kind"), [((), "possible_agents_empty"), (("a", "a"), "agents_read_alike")])
def test_agents_that_are_none_or_called_alike_are_refused(names: Any, kind: str) -> None:
    batched = Numbered()
    batched.possible_agents = names
    with raises(ConfigurationError, kind):
        BatchedParallel("numbered", batched)


def clocks(copies: int) -> Clocks:
    return Clocks(np.array, copies)


def too_few(copies: int) -> Clocks:
    return Clocks(np.array, copies - 1)


def test_a_function_may_return_a_batched_world_of_as_many_copies_as_asked() -> None:
    module = __name__
    environment = make(EnvironmentConfig(id=f"{module}:clocks", copies=6))
    assert (environment.copies, environment.reset(0).present[1].observation[5].tolist()) == (6, [5, 0])
    with raises(ConfigurationError, "environment_copies_ignored"):
        make(EnvironmentConfig(id=f"{module}:too_few", copies=6))
    with raises(ConfigurationError, "turn_mode_not_supported", key="environment.turn_mode"):
        make(EnvironmentConfig(id=f"{module}:clocks", copies=6, turn_mode="sequential"))


@pytest.mark.parametrize("id", ["gymnax:CartPole-v1", "jaxmarl:MPE_simple_spread_v3", "vmas:balance"])
def test_a_library_that_is_not_installed_is_named(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gymnax", "jaxmarl", "vmas"):
        monkeypatch.setitem(sys.modules, module, None)
    with raises(ConfigurationError, "package_missing", key="environment.id"):
        make(EnvironmentConfig(id=id))


def test_a_platform_that_jax_does_not_find_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> None:
        raise AssertionError  # as JAX has it where CUDA is missing

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=devices))
    with raises(ConfigurationError, "jax_without_device", key="JAX_PLATFORMS"):
        make(EnvironmentConfig(id="gymnax:CartPole-v1"))


@pytest.mark.parametrize("given", ["--xla_cpu_multi_thread_eigen=true", ""])
def test_flags_of_jax_that_are_given_stand(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with raises(ConfigurationError, "package_missing", key="environment.id"):
        make(EnvironmentConfig(id="gymnax:CartPole-v1"))
    assert os.environ["XLA_FLAGS"] == (given or "--xla_cpu_multi_thread_eigen=false")


def needs(package: str) -> None:
    if find_spec(package) is None:
        skip_or_fail("a game of `make returns` is not installed", package)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "settings", "kind", "key"),
    [
        ("gymnax:CartPole-v2", {}, "jax_world_unknown", "environment.id"),
        ("gymnax:CartPole-v1", {"gravitas": 9}, "environment_settings_refused", "environment.settings"),
        ("jaxmarl:MPE_simple_spread", {}, "jax_world_unknown", "environment.id"),
        ("vmas:balanced", {}, "vmas_scenario_unknown", "environment.id"),
        ("vmas:balance", {"wrapper": "gym"}, "setting_is_environment_key", "environment.settings.wrapper"),
        ("vmas:balance", {"n_agnets": 5}, "environment_settings_refused", "environment.settings"),
        ("vmas:balance", {"max_steps": 0}, "environment_settings_refused", "environment.settings"),
        ("vmas:balance", {"continuous_actions": 3}, "environment_settings_refused", "environment.settings"),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": 2.5}, "environment_settings_refused", "environment.settings"),
    ],
)
def test_an_id_or_a_setting_that_is_unknown_there_is_refused(
    id: str, settings: dict[str, Any], kind: str, key: str
) -> None:
    needs(id.partition(":")[0])
    with raises(ConfigurationError, kind, key=key):
        make(EnvironmentConfig(id=id, settings=settings))


def played(id: str, copies: int, steps: int, seed: int, settings: dict[str, Any]) -> Any:
    """(turn, the actions that it was answered with), `steps` times."""
    environment = CheckedEnvironment(make(EnvironmentConfig(id=id, copies=copies, settings=settings)))
    turn, generator = environment.reset(seed), np.random.default_rng(0)
    for _ in range(steps):
        actions = drawn(turn, environment, generator)
        yield environment, turn, actions
        turn = environment.step(actions)
    yield environment, turn, []


@pytest.mark.slow
@pytest.mark.parametrize("id", ["CartPole-v1", "Breakout-MinAtar", "Pendulum-v1", "Catch-bsuite"])
def test_gymnax_plays_as_by_its_own_step(id: str) -> None:
    """10,000 steps in five copies, with its own parameters."""
    needs("gymnax")
    import gymnax
    import jax

    env, params = gymnax.make(id)
    params = params.replace(max_steps_in_episode=60)

    def begun(key: Any) -> Any:
        key, here = jax.random.split(key)
        return key, *jax.vmap(env.reset, (0, None))(jax.random.split(here, 5), params)

    def stepped(key: Any, state: Any, action: Any) -> Any:
        key, here = jax.random.split(key)
        return key, *jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(here, 5), state, action, params)

    step = jax.jit(stepped)
    key, seen, state = jax.jit(begun)(jax.random.PRNGKey(SEED))
    ends, told = 0, dict[str, Any]()
    for environment, turn, actions in played(f"gymnax:{id}", 5, 2_000, 5, {"max_steps_in_episode": 60}):
        (one,) = turn.present
        np.testing.assert_array_equal(one.observation, np.asarray(seen))
        if told:
            np.testing.assert_array_equal(one.reward, np.asarray(told["reward"], np.float32))
            np.testing.assert_array_equal(one.terminated, told["terminated"])
            np.testing.assert_array_equal(one.truncated, told["truncated"] & ~told["terminated"])
            ends += int((one.terminated | one.truncated).sum())
            if len(one.final_index):
                np.testing.assert_array_equal(
                    one.final_observation, np.asarray(told["final_observation"])[one.final_index]
                )
        if not actions:
            break
        key, seen, state, reward, terminated, truncated, info = step(key, state, actions[0])
        told = {**info, "reward": reward, "terminated": np.asarray(terminated), "truncated": np.asarray(truncated)}
        assert environment.world.episode_steps == 60
    assert ends >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "settings"),
    [("MPE_simple_spread_v3", {}), ("SMAX", {}), ("overcooked", {"max_steps": 50}), ("hanabi", {})],
)
def test_jaxmarl_plays_as_by_its_own_step(id: str, settings: dict[str, Any]) -> None:
    """3,500 steps in five copies."""
    needs("jaxmarl")
    import jax
    import jaxmarl

    env = jaxmarl.make(id, **settings)
    begin, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
    key, here = jax.random.split(jax.random.PRNGKey(SEED))
    seen, state = begin(jax.random.split(here, 5))
    ends, told = 0, dict[str, Any]()
    names = env.agents
    for _, turn, actions in played(f"jaxmarl:{id}", 5, 700, 5, settings):
        for one in turn.present:
            name = names[one.agent]
            np.testing.assert_array_equal(one.observation, np.asarray(seen[name]))
            if id in ("SMAX", "hanabi"):
                np.testing.assert_array_equal(one.action_mask, np.asarray(env_masks(env, state)[name]) != 0)
            if told:
                np.testing.assert_array_equal(one.reward, np.asarray(told["rewards"][name], np.float32))
                np.testing.assert_array_equal(one.terminated | one.truncated, told["ended"])
        ends += int(told["ended"].sum()) if told else 0
        if not actions:
            break
        key, here = jax.random.split(key)
        chosen = dict(zip(names, actions, strict=True))
        seen, state, rewards, ended, _ = step(jax.random.split(here, 5), state, chosen)
        told = {"rewards": rewards, "ended": np.asarray(ended["__all__"])}
    assert ends >= 20


def env_masks(env: Any, state: Any) -> Any:
    import jax

    return jax.vmap(getattr(env, "get_legal_moves", env.get_avail_actions))(state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "settings"),
    [
        ("jaxmarl:overcooked", {"max_steps": 5}),  # observes another shape than it declares
        ("jaxmarl:hanabi", {}),  # declares a number as shape
        ("jaxmarl:HeuristicEnemySMAX", {"max_steps": 5}),  # counts steps in a state of its state, and makes one more
        ("vmas:wheel", {"max_steps": 5}),  # pays in columns
        ("vmas:goal", {"max_steps": 5}),  # has a space in its agent's name
    ],
)
def test_a_world_that_is_unlike_the_others_of_its_library_is_played(id: str, settings: dict[str, Any]) -> None:
    needs(id.partition(":")[0])
    ends, most = [], None
    for environment, turn, _ in played(id, 2, 6, 0, settings):
        ends.append(all(one.truncated.all() for one in turn.present))
        most = environment.world.episode_steps
    assert ends.index(True) <= most if most else not any(ends)


@pytest.mark.slow
@pytest.mark.parametrize(("id", "settings"), [("balance", {}), ("simple_spread", {"continuous_actions": False})])
def test_vmas_plays_as_by_its_own_step(id: str, settings: dict[str, Any]) -> None:
    """2,000 steps in five copies, which are begun one by one where not all have ended."""
    needs("vmas")
    import vmas

    flags = {"dict_spaces": True, "terminated_truncated": True}
    known = {"max_steps": 40, "n_agents": 3, **settings}
    environments = played(f"vmas:{id}", 5, 400, 5, known)
    rows = [(turn, actions) for _, turn, actions in environments]  # its generators are those of the process
    env = vmas.make_env(id, 5, **known, **flags)
    seen, told, ends = env.reset(seed=SEED), dict[str, Any](), 0
    for turn, actions in rows:
        for one, agent in zip(turn.present, env.agents, strict=True):
            np.testing.assert_array_equal(one.observation, seen[agent.name].numpy())
            if told:
                np.testing.assert_array_equal(one.reward, told["rewards"][agent.name].numpy())
                np.testing.assert_array_equal(one.terminated, told["terminated"].numpy())
                np.testing.assert_array_equal(one.truncated, (told["truncated"] & ~told["terminated"]).numpy())
        if not actions:
            break
        given = {
            a.name: torch.from_numpy(x if x.ndim == 2 else x[:, None]) for a, x in zip(env.agents, actions, strict=True)
        }
        seen, rewards, terminated, truncated, _ = env.step(given)
        told = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        over = (terminated | truncated).nonzero().ravel().tolist()
        ends += len(over)
        if len(over) == 5:
            seen = env.reset()
        elif over:
            for copy in over:
                env.reset_at(copy)
            seen = env.get_from_scenario(True, False, False, False)[0]
    assert ends >= 20
