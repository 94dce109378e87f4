"""PettingZoo parallel environments as worlds, E copies stepped one by one.

In flow: actions of the agents that live. Out flow: a turn of all of them; agents may die, come back and appear within
an episode, which ends in a copy when none is left; the step that ends it begins the next.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import World
from workers.environments.adapting import (
    check_same,
    copy_in,
    copy_seeds,
    most_steps,
    possible_agents,
    refuse_early_step,
)
from workers.environments.base import Environment, Turn
from workers.environments.gathering import Board
from workers.environments.pettingzoo_aec import PettingZooTurns

__all__ = ["PettingZooEnvironment", "from_id", "wrap"]


class PettingZooEnvironment(Environment):
    """`copies` parallel environments, each from `make_one`; ConfigurationError for spaces not taken in this release.

    An agent that terminated counts as terminated alone, even where its time was up in the same step.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int) -> None:
        self.copies = copies
        self._envs: list[Any] = []
        try:
            for _ in range(copies):
                self._envs.append(_without_guards(make_one()))
            first = self._envs[0]
            agents, self._starts = possible_agents(id, first)
        except BaseException:
            self.close()
            raise
        self.world = World(id=id, agents=agents, episode_steps=most_steps(getattr(first.unwrapped, "max_cycles", None)))
        self._names = [agent.name for agent in agents]
        self._spaces = [(first.observation_space(name), first.action_space(name)) for name in self._names]
        self._number = {name: k for k, name in enumerate(self._names)}
        self._where = [f"{id}, agent {name}:" for name in self._names]
        self._board = Board(self.world, copies)
        self._turn: Turn | None = None

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        self._board.clear()
        for i, one in enumerate(copy_seeds(seed, self.copies)):
            self._begin(i, seed=one)
        self._turn = self._board.turn()
        return self._turn

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps every copy with the actions of those who were present."""
        chosen = self._chosen(actions)
        board, n = self._board, len(self._names)
        board.begin()
        whole = True
        for i, (env, acts) in enumerate(zip(self._envs, chosen, strict=True)):
            told = env.step(acts)
            _, _, terminations, truncations, _ = told
            ended = any(terminations.values()) or any(truncations.values())
            if ended or len(acts) != n or len(env.agents) != n:
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
        self._turn = board.turn(env_steps=self.copies)
        return self._turn

    def _chosen(self, actions: Sequence[NDArray[np.int64]]) -> list[dict[str, int]]:
        """[E]: agent -> action."""
        turn, names = self._turn, self._names
        if turn is None:
            raise refuse_early_step(self.world.id)
        numbered = [
            (a + self._starts[present.agent]).tolist() for a, present in zip(actions, turn.present, strict=True)
        ]
        if len(turn.present) == len(names) and all(present.copies is None for present in turn.present):
            return [dict(zip(names, acts, strict=True)) for acts in zip(*numbered, strict=True)]
        chosen: list[dict[str, int]] = [{} for _ in range(self.copies)]
        for present, acts in zip(turn.present, numbered, strict=True):
            copies = range(self.copies) if present.copies is None else present.copies.tolist()
            for i, action in zip(copies, acts, strict=True):
                chosen[i][names[present.agent]] = action
        return chosen

    def _all_stay(self, copy: int, told: tuple[Any, ...]) -> None:
        """All agents acted and go on."""
        seen, rewards, *_ = told
        held, observation, where = self._board.held, self._board.observation, self._where
        for k, name in enumerate(self._names):
            if name not in seen or name not in rewards:
                raise self._lacks(name, copy, "observation" if name not in seen else "reward")
            try:
                held[k, copy] = rewards[name]
            except (TypeError, ValueError):
                self._board.earn(k, copy, rewards[name])
            copy_in(observation[k], copy, seen[name], where[k])

    def _come_and_go(self, copy: int, acts: Mapping[str, int], told: tuple[Any, ...]) -> None:
        """Some agents have ended, or were absent, or come."""
        seen, rewards, terminations, truncations, _ = told
        board, alive = self._board, self._alive(copy)
        ended = set()
        for name in acts:
            k = self._number[name]
            if name not in rewards:
                raise self._lacks(name, copy, "reward")
            board.earn(k, copy, rewards[name])
            terminated, truncated = terminations.get(name, False), truncations.get(name, False)
            if terminated or truncated:
                ended.add(name)
                board.end(k, copy, terminated, truncated, seen.get(name))
            elif name not in alive:
                raise self._fault(k, f"copy {copy}", "terminated or truncated, as it left env.agents", "neither")
        for name in rewards.keys() - acts.keys():
            if rewards[name]:
                known = self._index(name)
                raise self._fault(known, f"reward in copy {copy}", "nothing, as it did not act", repr(rewards[name]))
        if ended >= alive:
            self._begin(copy)
            return
        for name in ended & alive:
            raise self._fault(self._number[name], f"copy {copy}", "removed from env.agents, as it ended", "there")
        self._look(copy, alive, seen)

    def _begin(self, copy: int, **seed: int) -> None:
        """The first observations of a new episode."""
        env = self._envs[copy]
        seen, _ = env.reset(**seed)
        for k, (name, spaces) in enumerate(zip(self._names, self._spaces, strict=True)):
            check_same(spaces[0], env.observation_space(name), self._where[k], "observation space")
            check_same(spaces[1], env.action_space(name), self._where[k], "action space")
        alive = self._alive(copy)
        if not alive:
            raise EnvironmentFault(
                f"{self.world.id}: env.agents should name those who act but is empty after reset in copy {copy}; "
                "correct the environment"
            )
        self._look(copy, alive, seen)

    def _look(self, copy: int, alive: set[str], seen: Mapping[str, Any]) -> None:
        for name in alive:
            if name not in seen:
                raise self._lacks(name, copy, "observation")
            self._board.see(self._number[name], copy, seen[name])

    def _alive(self, copy: int) -> set[str]:
        agents = getattr(self._envs[copy], "agents", None)
        if agents is None:
            raise EnvironmentFault(
                f"{self.world.id}: env.agents should name those who act but there is none; keep it in the environment"
            )
        for name in agents:
            self._index(name)
        return set(agents)

    def _index(self, name: Any) -> int:
        if name not in self._number:
            raise EnvironmentFault(
                f"{self.world.id}, agent {name}: it should be one of {', '.join(self._names)} but is unknown; "
                "list it in possible_agents"
            )
        return self._number[name]

    def _lacks(self, name: str, copy: int, field: str) -> EnvironmentFault:
        return self._fault(self._number[name], f"{field} in copy {copy}", "there, as it acts", "missing")

    def _fault(self, agent: int, field: str, expected: str, got: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self._where[agent]} {field} should be {expected} but is {got}; correct the environment"
        )

    def close(self) -> None:
        """Closes all copies."""
        while self._envs:
            self._envs.pop().close()


def _without_guards(env: Any) -> Any:
    """`env` without the wrappers that only check the order of calls and the range of actions, both of which hold here:
    a converted environment spends a third of its time in them."""
    try:
        from pettingzoo.utils import wrappers
        from pettingzoo.utils.conversions import aec_to_parallel_wrapper
    except ImportError:
        return env
    if type(env) is aec_to_parallel_wrapper:
        while type(env.aec_env) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper):
            env.aec_env = env.aec_env.env
    return env


TurnMode = Literal["sequential", "simultaneous"]


def wrap(id: str, first: Any, make_one: Callable[[], Any], copies: int, turn_mode: TurnMode | None) -> Environment:
    """Environments of `make_one`, which are like `first`: parallel ones, or such as take turns (AECEnv).

    ConfigurationError if `turn_mode` is not theirs.
    """
    sequential = hasattr(first, "agent_iter")
    if turn_mode not in (None, "sequential" if sequential else "simultaneous"):
        first.close()
        how, mode = ("one after another", "sequential") if sequential else ("all at once", "simultaneous")
        raise ConfigurationError(
            f"environment.turn_mode is {turn_mode} but the agents of {id} act {how}; set it to {mode} or remove it"
        )
    return (PettingZooTurns if sequential else PettingZooEnvironment)(id, make_one, copies)


def from_id(id: str, copies: int, settings: Mapping[str, Any], turn_mode: TurnMode | None = None) -> Environment:
    """`parallel_env(**settings)` of the module named in `id`, or `env(**settings)` where `turn_mode` is sequential or
    there is no other, as a world; ConfigurationError if it cannot be made."""
    name = id.removeprefix("pettingzoo:")
    package = name.partition(".")[0]
    try:
        module = importlib.import_module(name)
        wanted = {"sequential": ["env"], "simultaneous": ["parallel_env"]}.get(turn_mode or "", ["parallel_env", "env"])
        function = next((getattr(module, one) for one in wanted if hasattr(module, one)), None)
        if function is None:
            raise AttributeError(f"module {name!r} has no {' nor '.join(wanted)}")
    except (ImportError, AttributeError, ValueError) as fault:
        missing = fault.name if isinstance(fault, ModuleNotFoundError) else None
        if missing and not name.startswith(f"{missing}.") and missing != name:
            remedy = f"needs a package that is missing; run: pip install {missing.partition('.')[0]}"
        elif missing == package:
            remedy = f"needs a package that is missing; run: pip install {package}"
        elif isinstance(fault, AttributeError) and turn_mode is not None:
            remedy = f"cannot act in turn_mode {turn_mode} ({fault}); remove environment.turn_mode"
        else:
            remedy = f"names no module with a function parallel_env or env ({fault}); correct environment.id"
        raise ConfigurationError(f"{id} {remedy}") from fault
    make_one = _maker(id, function, settings)
    first = make_one()
    made = [first]
    return wrap(id, first, lambda: made.pop() if made else make_one(), copies, turn_mode)


def _maker(id: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[[], Any]:
    def make_one() -> Any:
        try:
            return function(**settings)
        except (TypeError, ValueError, AssertionError) as fault:
            raise ConfigurationError(
                f"{id} cannot be made with the settings {dict(settings)} ({' '.join(str(fault).split())}); "
                "correct environment.settings"
            ) from fault

    return make_one
