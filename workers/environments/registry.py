"""From a configured id to an environment.

In flow: an `EnvironmentConfig`. Out flow: the environment, or a ConfigurationError that says what to write instead.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import World, parse_world
from workers.environments.adapters import (
    gymnasium_adapter,
    gymnasium_multi_agent,
    openspiel_adapter,
    pettingzoo_parallel,
)
from workers.environments.adapters.batched.atari import WHOLE, AtariVector
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.batched.jax_worlds import from_id as jax_world
from workers.environments.adapters.batched.parallel import BatchedParallel
from workers.environments.adapters.batched.vmas_world import VmasWorld
from workers.environments.adapters.dm_env_adapter import DmEnv, is_dm_env
from workers.environments.adapters.mlagents_adapter import MlAgentsEnvironment, is_mlagents
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.adapters.sorrel_adapter import SorrelEnvironment, is_gridworld
from workers.environments.base import Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.checks.closing import close_logged, closed_on_failure
from workers.environments.collections import Collection
from workers.environments.known_ids import gymnasium_names, is_meant, nearest
from workers.environments.simulators import EXTERNAL
from workers.environments.vectorized.process_environment import ProcessEnvironment
from workers.environments.worlds.cleanup import Cleanup
from workers.environments.worlds.deep_sea import DeepSea
from workers.environments.worlds.foraging import Foraging
from workers.environments.worlds.matrix_game import MatrixGame
from workers.environments.worlds.memory import MemoryTask
from workers.environments.worlds.rendezvous import Rendezvous
from workers.environments.worlds.simple_spread import Spread
from workers.environments.worlds.synthetic import Synthetic
from workers.environments.worlds.tag import Tag
from workers.environments.worlds.treasure_hunt import TreasureHunt
from workers.environments.worlds.weather import Weather
from workers.environments.wrappers.added_inputs import AddedInputs
from workers.environments.wrappers.joint_observation import JointObservation
from workers.environments.wrappers.team import TeamEnvironment
from workers.runtime.entry_points import calling, import_entry_point

if TYPE_CHECKING:
    from workers.environments.simulators.endpoint import SimulatorEndpoint

BUILT_IN: Mapping[str, Callable[..., Environment]] = {
    "treasure_hunt": TreasureHunt,
    "cleanup": Cleanup,
    "tag": Tag,
    "matrix_game": MatrixGame,
    "memory": MemoryTask,
    "deep_sea": DeepSea,
    "rendezvous": Rendezvous,
    "synthetic": Synthetic,
    "weather": Weather,
    "foraging": Foraging,
    "spread": Spread,
}
"""The worlds that need no package, each called with copies, turn mode and its settings."""
_FORMS = (
    f"{', '.join(BUILT_IN)}, {EXTERNAL}, atari:GAME, gymnasium:ID, gymnasium_multi:ID, gymnax:ID, jaxmarl:ID, "
    "openspiel:GAME, pettingzoo:MODULE, vmas:SCENARIO or module:function of your own"
)


def make(
    config: EnvironmentConfig, purpose: Literal["train", "evaluate"] = "train", outside: SimulatorEndpoint | None = None
) -> Environment:
    """The environment of `config`, which serves simulators at the `outside` if it is one of these.

    ConfigurationError if there is none, or its settings or turn mode do not fit; EnvironmentFault if it raises when it
    is asked for its spaces or for a first look.

    To `evaluate`, of several: the test side of a split, or all, whatever a curriculum or an adversary would play.
    """
    if purpose == "evaluate":
        config = config.evaluation()
    with calling(config.id, lambda **at: EnvironmentFault("environment_creation_failed", environment=config.id, **at)):
        return _made(config, outside)


def _made(config: EnvironmentConfig, outside: SimulatorEndpoint | None) -> Environment:
    for reserved in ("copies", "turn_mode"):
        if reserved in config.settings:
            raise ConfigurationError(
                "setting_is_environment_key", field=reserved, key=f"environment.settings.{reserved}"
            )
    if config.id == EXTERNAL:
        # what they are made of would be a third of this file's cost, in every process that steps copies
        from workers.environments.simulators.environment import SimulatorEnvironment
        from workers.environments.simulators.simulator_settings import settings_of, world_of

        _refuse_observe(config)
        settings = settings_of(config)
        known = parse_world(outside.world) if outside is not None and outside.world else None
        return SimulatorEnvironment(config, settings, known or world_of(settings, describe), outside)
    if config.processes:
        return ProcessEnvironment(config)
    if config.central_state == "joint":
        return JointObservation(_made(config.model_copy(update={"central_state": None}), outside))
    if config.teams:
        agents = _made(config.model_copy(update={"teams": {}}), outside)
        return TeamEnvironment(agents, config.teams, config.team_reward)
    if config.members is not None:
        if any(member.id == EXTERNAL for member in config.members.values()):
            raise ConfigurationError("external_environment_as_member", environment=EXTERNAL, key="environment.members")
        return Collection(config, make)
    if config.observe is not None and config.observe.add:
        taken = config.observe.model_copy(update={"add": ()}) if config.observe.drop or config.observe.keep else None
        return AddedInputs(_made(config.model_copy(update={"observe": taken}), outside), config.observe.add)
    environment = _one(config)
    if config.central_state == "state" and not isinstance(environment, PettingZooEnvironment | PettingZooAEC):
        close_logged(config.id, environment.close)
        raise ConfigurationError("state_needs_pettingzoo", environment=config.id, key="environment.central_state")
    return environment


def settings_for_evaluation(id: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` without what serves training only: shortened first episodes, and other ends and rewards than a game's
    own."""
    if id.startswith("atari:"):
        return {**settings, **WHOLE}
    return {key: value for key, value in settings.items() if id not in BUILT_IN or key != "desynchronize"}


def _one(config: EnvironmentConfig) -> Environment:
    """A world in this process, which is no collection."""
    if config.id in BUILT_IN:
        _refuse_observe(config)
        return BUILT_IN[config.id](config.copies, config.turn_mode, **config.settings)
    if config.id.startswith("atari:"):
        return GymnasiumVector(config.id, AtariVector(config.id, config.copies, config.settings), config.observe)
    if config.id.startswith("gymnasium:"):
        return gymnasium_adapter.from_id(config.id, config.copies, config.settings, config.observe)
    if config.id.startswith("gymnasium_multi:"):
        return gymnasium_multi_agent.from_id(config.id, config.copies, config.settings, config.observe)
    if config.id.startswith("openspiel:"):
        _refuse_observe(config)
        return openspiel_adapter.from_id(config.id, config.copies, config.settings)
    if config.id.startswith(("gymnax:", "jaxmarl:")):
        world = jax_world(config.id, config.copies, config.settings)
        return BatchedParallel(config.id, world, config.observe, config.turn_mode)
    if config.id.startswith("vmas:"):
        scenario = VmasWorld(config.id, config.copies, config.settings)
        return BatchedParallel(config.id, scenario, config.observe, config.turn_mode)
    if config.id.startswith("pettingzoo:"):
        states = config.central_state == "state"
        return pettingzoo_parallel.from_id(
            config.id, config.copies, config.settings, config.turn_mode, states, config.observe
        )
    if ":" in config.id:
        return _from_function(config)
    raise ConfigurationError(
        "unknown_environment", environment=config.id, hint=_meant(config.id), choices=_FORMS, key="environment.id"
    )


def _meant(id: str) -> str:
    """A question, where a file of the working directory is called so, or a world much alike."""
    plain = id.removesuffix(".py").replace("/", ".").lstrip(".")
    holder, _, name = plain.rpartition(".")
    for module, function in ((plain, "FUNCTION"), (holder, name)):
        if module and Path(*module.split(".")).with_suffix(".py").is_file():
            return is_meant([f"{module}:{function}"])
    known = {name: name for name in BUILT_IN}
    with suppress(ImportError):
        known |= {f"gymnasium:{one}": name for one, name in gymnasium_names().items()}
    return is_meant(nearest(id, known))


def single_copy(config: EnvironmentConfig, cut: bool = False) -> CheckedEnvironment:
    """One copy of the world of `config`, to learn from what it is; ConfigurationError if a run that makes cuts is to
    play it and it cannot tell its state."""
    environment = CheckedEnvironment(make(config.model_copy(update={"copies": 1, "processes": 0, "async_factor": 1})))
    with closed_on_failure(config.id, environment.close):
        if config.teams:  # whose members take turns is refused before anybody starts
            environment.reset(0)
        if cut and not environment.has_state:
            raise ConfigurationError("lockstep_environment_without_state", environment=config.id, key="schedule")
    return environment


def describe(config: EnvironmentConfig, cut: bool = False) -> World:
    """The world of `config`, learned from a single copy; ConfigurationError as `single_copy`'s."""
    environment = single_copy(config, cut)
    environment.close()
    return environment.world


def _from_function(config: EnvironmentConfig) -> Environment:
    """Calls `module:function` with the settings. It may return whatever an id may name.

    A function that takes `copies` is called once and returns an `Environment`, a `gymnasium.vector.VectorEnv` or a
    `BatchedWorld` of as many; any other is called once for each copy.
    """
    function = import_entry_point(config.id, "environment.id", _FORMS)
    parameters = _parameters(function)
    if "copies" in parameters:
        takes_mode = "turn_mode" in parameters
        mode = {"turn_mode": config.turn_mode} if takes_mode else {}
        made = _call(config, function, {"copies": config.copies, **mode})
        if not _is_vectorised(made) or getattr(made, "copies", getattr(made, "num_envs", 0)) != config.copies:
            raise ConfigurationError("environment_copies_ignored", environment=config.id, count=config.copies)
        return _vectorised(config, made, takes_mode)
    first = _call(config, function, {})
    if _is_vectorised(first):
        close_logged(config.id, first.close)
        kind = "an Environment" if isinstance(first, Environment) else "a VectorEnv or a BatchedWorld"
        raise ConfigurationError("environment_function_without_copies", environment=config.id, expected=kind)
    calls = [first]
    return _copied(config, first, lambda: calls.pop() if calls else _call(config, function, {}))


def _refuse_observe(config: EnvironmentConfig) -> None:
    """ConfigurationError if parts of observations are chosen of a world that says itself what they are."""
    if config.observe is not None:
        fields = [name for name, chosen in config.observe if chosen]
        raise ConfigurationError(
            "observe_not_here", environment=config.id, fields=", ".join(fields), key="environment.observe"
        )


def _copied(config: EnvironmentConfig, first: Any, make_one: Callable[[], Any]) -> Environment:
    """A world of copies made one by one, which are like `first`."""
    id, copies, mode, observe = config.id, config.copies, config.turn_mode, config.observe
    states = config.central_state == "state"
    if is_gridworld(first):
        _refuse_observe(config)
        return SorrelEnvironment(id, make_one, copies, mode or "sequential")
    if _speaks_pettingzoo(first):
        return pettingzoo_parallel.wrap_pettingzoo(id, first, make_one, copies, mode, states, observe)
    if isinstance(first, ModuleType):
        return pettingzoo_parallel.from_id(id, copies, {}, mode, states, observe, first)
    if is_mlagents(first):
        _refuse_observe(config)
        return MlAgentsEnvironment(id, make_one, copies)
    if is_dm_env(first):
        return gymnasium_adapter.GymnasiumEnvironment(id, lambda: DmEnv(id, make_one()), copies, observe)
    if gymnasium_multi_agent.is_tuple_multi_agent(first):
        return PettingZooEnvironment(id, lambda: gymnasium_multi_agent.TupleMultiAgent(id, make_one()), copies, observe)
    if hasattr(first, "reset") and hasattr(first, "step"):
        return gymnasium_adapter.GymnasiumEnvironment(id, make_one, copies, observe)
    if openspiel_adapter.is_game(first):
        _refuse_observe(config)
        return openspiel_adapter.OpenSpielTurns(id, openspiel_adapter.check_game(id, first), copies)
    raise ConfigurationError("environment_function_result", environment=config.id, value=type(first).__name__)


def _speaks_pettingzoo(env: Any) -> bool:
    """Also where it does not list its agents."""
    listed = hasattr(env, "possible_agents") or hasattr(env, "agent_iter")
    return listed or "agent" in _parameters(getattr(env, "observation_space", None))


def _vectorised(config: EnvironmentConfig, made: Any, takes_mode: bool) -> Environment:
    """What plays all copies by itself."""
    if not isinstance(made, Environment):
        if hasattr(made, "possible_agents"):
            return BatchedParallel(config.id, made, config.observe, config.turn_mode)
        return GymnasiumVector(config.id, made, config.observe)
    _refuse_observe(config)
    if config.turn_mode is not None and not takes_mode and len(made.world.agents) > 1:
        close_logged(config.id, made.close)
        raise ConfigurationError(
            "turn_mode_already_set", value=config.turn_mode, environment=config.id, key="environment.turn_mode"
        )
    return made


def _is_vectorised(made: Any) -> bool:
    vector = sys.modules.get("gymnasium.vector")  # whose class it may be, though it declares no spaces
    kinds = (Environment,) if vector is None else (Environment, vector.VectorEnv)
    batched = hasattr(made, "num_envs") and hasattr(made, "possible_agents")
    return isinstance(made, kinds) or hasattr(made, "single_observation_space") or batched


def _parameters(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _call(config: EnvironmentConfig, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    facts = {"environment": config.id, "value": config.settings, "key": "environment.settings"}
    with calling(config.id, lambda **at: ConfigurationError("environment_function_refused_settings", **facts, **at)):
        made = function(**config.settings, **arguments)
    if isinstance(made, type):
        raise ConfigurationError(
            "environment_function_result", environment=config.id, value=f"the class {made.__name__}, uncalled"
        )
    return made
