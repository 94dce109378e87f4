"""PettingZoo parallel environments as worlds, E copies stepped one by one.

In flow: actions of the agents that live. Out flow: a turn of all of them; agents may die, come back and appear within
an episode, which ends in a copy when none is left; the step that ends it begins the next.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.errors.origin import blame, is_users, one_line
from protocol.errors.packages import missing_module, not_installed
from workers.environments.adapters.adapter_checks import copy_seeds, malformed, number_of, settings_refused
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_copies import PettingZooWorld
from workers.environments.adapters.pettingzoo_state import with_states
from workers.environments.base import Environment, Turn
from workers.environments.checks.closing import close_logged
from workers.environments.known_ids import is_meant, nearest_modules
from workers.environments.wrappers.own_parts import tagged

_DICTS = [dict] * 5
_STEP = "({agent: observation}, {agent: reward}, {agent: terminated}, {agent: truncated}, {agent: info})"


class PettingZooEnvironment(PettingZooWorld):
    """Parallel ones. An agent that terminated counts as terminated alone, even where its time was up in the same
    step."""

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        self._board.clear()
        for i, one in enumerate(copy_seeds(seed, self.copies)):
            self._begin(i, seed=one)
        return self._board.turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Steps every copy with the actions of those who were present."""
        chosen = self._chosen(actions)
        board, n = self._board, len(self._cast.keys)
        board.begin()
        whole = True
        for i, (env, acts) in enumerate(zip(self._cast.envs, chosen, strict=True)):
            told, agents = env.step(acts), env.agents
            if type(told) is not tuple or [*map(type, told)] != _DICTS:
                told = self._told(told)
            if type(agents) is not list:
                agents = self._cast.alive(i)
            if _says_end(told) or len(acts) != n or len(agents) != n:
                if whole:  # the copies before this one went the short way
                    board.present[:, :i] = True
                    whole = False
                self._come_and_go(i, acts, told)
            else:
                self._all_stay(i, told)
                if not whole:
                    board.present[:, i] = True
        if whole:
            board.present.fill(True)
        return board.turn(env_steps=self.copies)

    def _told(self, told: Any) -> tuple[Mapping[Any, Any], ...]:
        """What `step` returned, with empty infos where there are none; EnvironmentFault where that is not a dictionary
        by agent in each place."""
        if not isinstance(told, tuple | list) or len(told) != 5:
            raise malformed(self.world.id, "step", _STEP, told, "pettingzoo.ParallelEnv")
        parts = (*told[:4], {} if told[4] is None else told[4])
        if not all(isinstance(part, Mapping) for part in parts):
            raise malformed(self.world.id, "step", _STEP, told, "pettingzoo.ParallelEnv")
        return parts

    def _chosen(self, actions: Sequence[NDArray[Any]]) -> list[dict[Hashable, Any]]:
        """[E]: agent -> action."""
        keys, given = self._cast.keys, self._board.actions_by_agent(actions)
        if len(given) == len(keys) and all(len(copies) == self.copies for _, copies, _ in given):
            every = zip(*(values for _, _, values in given), strict=True)
            return [dict(zip(keys, acts, strict=True)) for acts in every]
        chosen: list[dict[Hashable, Any]] = [{} for _ in range(self.copies)]
        for agent, copies, values in given:
            for i, value in zip(copies, values, strict=True):
                chosen[i][keys[agent]] = value
        return chosen

    def _all_stay(self, copy: int, told: tuple[Any, ...]) -> None:
        """All agents acted and go on."""
        seen, rewards, _, _, infos = told
        self._cast.check_known(seen, rewards, infos)
        board = self._board
        for k, (key, agent, masks) in enumerate(zip(self._cast.keys, self._cast.agents, board.masks, strict=True)):
            if key not in seen or key not in rewards:
                raise self._lacks(key, copy, "observation" if key not in seen else "reward")
            reward = rewards[key]
            board.pending_reward[k, copy] = reward if type(reward) is float else number_of(agent.where, reward)
            agent.write_observation(board.observation[k], copy, seen[key])
            if masks is not None:
                agent.write_mask(masks, copy, seen[key], infos.get(key))
            elif infos:
                agent.refuse_late_mask(infos.get(key))

    def _come_and_go(self, copy: int, acts: Mapping[Any, Any], told: tuple[Any, ...]) -> None:
        """Some agents have ended, or were absent, or come."""
        seen, rewards, terminations, truncations, infos = told
        board, alive = self._board, set(self._cast.alive(copy))
        ended = set()
        for key in acts:
            k = self._cast.number(key)
            if key not in rewards:
                raise self._lacks(key, copy, "reward")
            board.add_reward(k, copy, rewards[key])
            terminated, truncated = board.has_ended(k, terminations.get(key, False), truncations.get(key, False))
            if terminated or truncated:
                ended.add(key)
                board.end(k, copy, terminated, truncated, seen.get(key))
                self.tell(k, infos.get(key))
            elif key not in alive:
                raise self._fault(key, f"copy {copy}", "terminated or truncated, as it left env.agents", "neither")
        self._cast.check_known(rewards)
        for key in rewards.keys() - acts.keys():
            if rewards[key] and key in self._cast.keys:
                raise self._fault(key, f"reward in copy {copy}", "nothing, as it did not act", repr(rewards[key]))
        if ended >= alive:
            self._begin(copy)
            return
        for key in ended & alive:
            raise self._fault(key, f"copy {copy}", "removed from env.agents, as it ended", "there")
        self._look(copy, seen, infos)

    def _begin(self, copy: int, **seed: int) -> None:
        """The first observations of a new episode."""
        seen, infos = self._cast.begin(copy, **seed)
        self._look(copy, seen, infos)

    def _look(self, copy: int, seen: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        self._cast.check_known(seen, infos)
        for key in self._cast.alive(copy):
            if key not in seen:
                raise self._lacks(key, copy, "observation")
            self._board.observe(self._cast.number(key), copy, seen[key], infos.get(key))

    def _lacks(self, key: Hashable, copy: int, field: str) -> EnvironmentFault:
        return self._fault(key, f"{field} in copy {copy}", "there, as it acts", "missing")

    def _fault(self, key: Hashable, field: str, expected: str, got: str) -> EnvironmentFault:
        return EnvironmentFault(
            "agent_data_invalid",
            environment=self.world.id,
            agent=self._cast.names[self._cast.number(key)],
            field=field,
            expected=expected,
            value=got,
        )


def _says_end(told: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether somebody may have ended."""
    try:
        return any(told[2].values()) or any(told[3].values())
    except (ValueError, RuntimeError):  # arrays of several, which are told of the agent
        return True


TurnMode = Literal["sequential", "simultaneous"]


def wrap_pettingzoo(
    id: str,
    first: Any,
    make_one: Callable[[], Any],
    copies: int,
    turn_mode: TurnMode | None,
    state: bool = False,
    observe: ObservedParts | None = None,
) -> Environment:
    """Environments of `make_one`, which are like `first`: parallel ones, or such as take turns (AECEnv). `state`:
    learners see what `state()` says.

    ConfigurationError if `turn_mode` is not theirs, or they have no state.
    """
    sequential = hasattr(first, "agent_iter")
    if turn_mode not in (None, "sequential" if sequential else "simultaneous"):
        close_logged(id, first.close)
        how, mode = ("one after another", "sequential") if sequential else ("all at once", "simultaneous")
        raise ConfigurationError(
            "turn_mode_not_supported",
            value=turn_mode,
            environment=id,
            how=how,
            expected=mode,
            key="environment.turn_mode",
        )
    kind = PettingZooAEC if sequential else PettingZooEnvironment
    environment = kind(id, with_states(id, make_one) if state else make_one, copies, observe)
    if state:
        environment.world = tagged(environment.world)
    return environment


def from_id(
    id: str,
    copies: int,
    settings: Mapping[str, Any],
    turn_mode: TurnMode | None = None,
    state: bool = False,
    observe: ObservedParts | None = None,
    module: ModuleType | None = None,
) -> Environment:
    """`parallel_env(**settings)` of `module`, or of the one named in `id`; `env(**settings)` where `turn_mode` is
    sequential or there is no other. ConfigurationError if it cannot be made. `state` as for `wrap_pettingzoo`."""
    module = module or _imported(id)
    wanted = {"sequential": ["env"], "simultaneous": ["parallel_env"]}.get(turn_mode or "", ["parallel_env", "env"])
    function = next((getattr(module, one) for one in wanted if hasattr(module, one)), None)
    if function is None:
        reason = f"module {module.__name__!r} has no {' nor '.join(wanted)}"
        if turn_mode is not None:
            raise ConfigurationError(
                "pettingzoo_turn_mode_missing",
                environment=id,
                value=turn_mode,
                reason=reason,
                key="environment.turn_mode",
            )
        raise ConfigurationError("pettingzoo_id_unusable", environment=id, reason=reason, hint="", key="environment.id")
    make_one = _maker(id, function, settings)
    first = make_one()
    made = [first]
    return wrap_pettingzoo(id, first, lambda: made.pop() if made else make_one(), copies, turn_mode, state, observe)


def _imported(id: str) -> ModuleType:
    name = id.removeprefix("pettingzoo:")
    try:
        return importlib.import_module(name)
    except BaseException as fault:
        if not is_users(fault):
            raise
        raise _not_imported(id, name, fault) from fault


def _not_imported(id: str, name: str, fault: BaseException) -> ConfigurationError:
    """Why there is no such module, with what may be meant: the same world of another version, or where it lies now."""
    missing = missing_module(fault)
    hint = is_meant([f"pettingzoo:{one}" for one in nearest_modules(name)])
    if missing and missing != name and not name.startswith(f"{missing}."):  # of what the module itself imports
        return not_installed(id, missing)
    if missing and missing == name.partition(".")[0]:
        return not_installed(id, missing, hint=hint)
    if missing or (hint and isinstance(fault, ImportError)):  # PettingZoo says so of what has moved
        return ConfigurationError(
            "pettingzoo_id_unusable", environment=id, reason=one_line(fault), hint=hint, key="environment.id"
        )
    return ConfigurationError("module_import_failed", value=id, **blame(fault))


def _maker(id: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[[], Any]:
    def make_one() -> Any:
        try:
            return _without_canvas(function(**settings))
        except ConfigurationError:
            raise
        except (TypeError, ValueError, AssertionError) as fault:
            raise settings_refused(id, settings, fault) from fault

    return make_one


def _without_canvas(env: Any) -> Any:
    """`env`, whose pygame surface is given back if nobody will see it and it is one of MPE's worlds: each copy of them
    makes one of 2 MiB. Others look at theirs."""
    inner = getattr(env, "unwrapped", env)
    if type(inner).__module__.partition(".")[0] == "mpe2" and inner.render_mode is None:
        inner.screen = None
    return env
