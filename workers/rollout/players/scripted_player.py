"""Players that are programs, by the name that the configuration gives them. Without torch.

In flow: the configuration of a scripted policy. Out flow: a player, whose every action is checked before the world has
it, so that a fault names the program.

Legend: `n` streams that act, of the S streams of an agent (copies, times the places of one that stands for many).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig, FrozenPolicy, Run, ScriptedPolicy
from protocol.errors import ConfigurationError, EnvironmentFault, RookeryError
from protocol.errors.origin import blame, is_users
from protocol.spaces import Place, World
from workers.environments.base import AgentOutcome, AgentTimeStep, Player, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.checks.row_checks import ActionRows
from workers.environments.registry import make
from workers.environments.simulators import EXTERNAL
from workers.planning.fixed_policy_plan import check_frozen, plan_fixed
from workers.runtime.entry_points import calling, import_entry_point

_FORMS = "random, constant, world or module:class of your own"


class Script:
    """The program `entry` as the agent at `place`."""

    def __init__(self, entry: str, policy: str, place: Place, player: Any) -> None:
        self._who, self._player, self._acted = f"policy {policy!r}: {entry}", player, ActionRows(place)
        self._receive = getattr(player, "add_outcome", None)
        self._look = getattr(player, "set_shared_observation", None)

    def __call__(self, present: AgentTimeStep) -> NDArray[Any]:
        """n actions; EnvironmentFault where it raises, or does what is not in the agent's space or not legal."""
        actions: NDArray[Any] = self._run(self._player, present)
        flaw = self._acted.flaw("action", actions, len(present.observation), present.action_mask)
        if flaw is not None:
            raise EnvironmentFault(
                "script_action_wrong", player=self._who, expected=flaw.expected, field=flaw.field, value=flaw.got
            )
        return actions

    def add_outcome(self, outcome: AgentOutcome) -> None:
        """Rewards and ends that came between its turns, if it wants to know."""
        if self._receive is not None:
            self._run(self._receive, outcome)

    def set_shared_observation(self, common: NDArray[Any]) -> None:
        """What all agents see in this turn, if it wants to know."""
        if self._look is not None:
            self._run(self._look, common)

    def _run(self, call: Callable[..., Any], told: Any) -> Any:
        try:
            return call(told)
        except RookeryError:
            raise
        except BaseException as fault:
            if not is_users(fault):
                raise
            raise EnvironmentFault("script_raised", player=self._who, **blame(fault)) from fault


def build_scripted_player(
    policy: str,
    algorithm: ScriptedPolicy,
    place: Place,
    streams: int,
    generator: np.random.Generator,
    where: EnvironmentConfig,
) -> Script:
    """The player of `policy` as the agent at `place` in `streams` streams; ConfigurationError in one sentence."""
    entry, settings = algorithm.entry, algorithm.settings
    if entry in ("random", "world") and settings:
        raise ConfigurationError(
            "script_takes_no_settings", policy=policy, entry=entry, key=f"policies.{policy}.algorithm.settings"
        )
    player: Player
    if entry == "random":
        player = random_player(place, generator)
    elif entry == "constant":
        player = _constant(policy, place, settings)
    elif entry == "world":
        player = _of_world(policy, where, streams // place.many, generator)
    elif ":" in entry:
        player = _users_own(policy, algorithm, place, streams, generator)
    else:
        raise ConfigurationError(
            "script_entry_unknown", policy=policy, entry=entry, choices=_FORMS, key=f"policies.{policy}.algorithm.entry"
        )
    return Script(entry, policy, place, player)


def check_fixed(run: Run, world: World) -> None:
    """Whether all of them can act here, which workers elsewhere find out for themselves."""
    for plan in plan_fixed(run, world).values():
        if isinstance(plan.algorithm, FrozenPolicy):
            check_frozen(plan, world)
            continue
        for agent in plan.agents:
            place = world.places[agent]
            build_scripted_player(
                plan.name, plan.algorithm, place, place.many, np.random.default_rng(0), run.environment
            )


def _constant(policy: str, place: Place, settings: dict[str, Any]) -> Player:
    if settings.keys() != {"action"}:
        raise ConfigurationError(
            "constant_script_settings_wrong", policy=policy, key=f"policies.{policy}.algorithm.settings"
        )
    try:
        columns = place.agent.take(settings["action"], f"policy {policy!r}")
    except EnvironmentFault as fault:
        key = f"policies.{policy}.algorithm.settings.action"
        raise ConfigurationError("constant_script_action_wrong", reason=str(fault), policy=policy, key=key) from None
    row = place.acted.zeros(1)
    for leaf, column in place.acted.parts(row):
        column[...] = columns[leaf.name]

    def choose(present: AgentTimeStep) -> NDArray[Any]:
        return np.repeat(row, len(present.observation), axis=0)

    return choose


def _of_world(policy: str, where: EnvironmentConfig, copies: int, generator: np.random.Generator) -> Player:
    """From another environment of as many copies, which ends at once: players keep what they need."""
    if where.id == EXTERNAL:  # to ask would start simulators
        raise _playerless(policy, where)
    alone = where.model_copy(update={"copies": copies, "processes": 0, "async_factor": 1})
    environment = CheckedEnvironment(make(alone))
    try:
        environment.reset(int(generator.integers(2**31)))
        player = environment.scripted()
    finally:
        environment.close()
    if player is None:
        raise _playerless(policy, where)
    return player


def _playerless(policy: str, where: EnvironmentConfig) -> ConfigurationError:
    return ConfigurationError(
        "no_scripted_player", policy=policy, environment=where.id, key=f"policies.{policy}.algorithm.entry"
    )


def _users_own(
    policy: str, algorithm: ScriptedPolicy, place: Place, streams: int, generator: np.random.Generator
) -> Player:
    entry, settings = algorithm.entry, algorithm.settings
    make_player = import_entry_point(entry, f"policies.{policy}.algorithm.entry", _FORMS)
    facts = {"policy": policy, "entry": entry, "settings": settings, "key": f"policies.{policy}.algorithm.settings"}
    with calling(entry, lambda **at: ConfigurationError("script_cannot_be_made", **facts, **at)):
        player = make_player(place, streams, generator, **settings)
    if not callable(player):
        raise ConfigurationError(
            "script_not_callable",
            policy=policy,
            entry=entry,
            value=type(player).__name__,
            key=f"policies.{policy}.algorithm.entry",
        )
    chosen: Player = player
    return chosen
