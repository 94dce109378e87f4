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

from protocol.config import EnvironmentConfig, ScriptedPolicy
from protocol.errors import ConfigurationError, EnvironmentFault, RookeryError
from protocol.spaces import Place
from workers.entries import find, said
from workers.environments.base import Outcome, Player, Present
from workers.environments.players import random_player
from workers.environments.registry import make
from workers.environments.rows import ActionRows
from workers.environments.simulators import EXTERNAL

__all__ = ["Script", "script"]

_FORMS = "random, constant, world or module:class of your own"


class Script:
    """The program `entry` as the agent at `place`."""

    def __init__(self, entry: str, policy: str, place: Place, player: Any) -> None:
        self._who, self._player, self._acted = f"policy {policy!r}: {entry}", player, ActionRows(place)
        self._receive = getattr(player, "receive", None)
        self._look = getattr(player, "look", None)

    def __call__(self, present: Present) -> NDArray[Any]:
        """n actions; EnvironmentFault where it raises, or does what is not in the agent's space or not legal."""
        actions: NDArray[Any] = self._run(self._player, present)
        flaw = self._acted.flaw("action", actions, len(present.observation), present.action_mask)
        if flaw is not None:
            raise EnvironmentFault(
                f"{self._who} should return {flaw.expected} as {flaw.field} but returns {flaw.got}; correct it"
            )
        return actions

    def receive(self, outcome: Outcome) -> None:
        """Rewards and ends that came between its turns, if it wants to know."""
        if self._receive is not None:
            self._run(self._receive, outcome)

    def look(self, common: NDArray[Any]) -> None:
        """What all agents see in this turn, if it wants to know."""
        if self._look is not None:
            self._run(self._look, common)

    def _run(self, call: Callable[..., Any], told: Any) -> Any:
        try:
            return call(told)
        except RookeryError:
            raise
        except (Exception, SystemExit) as fault:
            raise EnvironmentFault(
                f"{self._who} raised when it was to act ({said(fault)}); correct it, the traceback tells where"
            ) from fault


def script(
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
        raise ConfigurationError(f"policy {policy!r}: {entry} takes no settings; remove algorithm.settings")
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
        raise ConfigurationError(f"policy {policy!r}: unknown entry {entry!r}; algorithm.entry is one of {_FORMS}")
    return Script(entry, policy, place, player)


def _constant(policy: str, place: Place, settings: dict[str, Any]) -> Player:
    if settings.keys() != {"action"}:
        raise ConfigurationError(
            f"policy {policy!r}: constant takes the one setting `action`; write algorithm.settings: {{action: ...}}"
        )
    try:
        columns = place.agent.take(settings["action"], f"policy {policy!r}")
    except EnvironmentFault as fault:
        raise ConfigurationError(f"{fault} (algorithm.settings.action)") from None
    row = place.acted.zeros(1)
    for leaf, column in place.acted.parts(row):
        column[...] = columns[leaf.name]

    def choose(present: Present) -> NDArray[Any]:
        return np.repeat(row, len(present.observation), axis=0)

    return choose


def _of_world(policy: str, where: EnvironmentConfig, copies: int, generator: np.random.Generator) -> Player:
    """From another environment of as many copies, which ends at once: players keep what they need."""
    if where.id == EXTERNAL:  # to ask would start simulators
        raise _playerless(policy, where)
    environment = make(where.model_copy(update={"copies": copies, "processes": 0, "async_factor": 1}))
    try:
        environment.reset(int(generator.integers(2**31)))
        player = environment.scripted()
    finally:
        environment.close()
    if player is None:
        raise _playerless(policy, where)
    return player


def _playerless(policy: str, where: EnvironmentConfig) -> ConfigurationError:
    return ConfigurationError(f"policy {policy!r}: {where.id} has no scripted player; give another algorithm.entry")


def _users_own(
    policy: str, algorithm: ScriptedPolicy, place: Place, streams: int, generator: np.random.Generator
) -> Player:
    entry, settings = algorithm.entry, algorithm.settings
    make_player = find(entry, f"policies.{policy}.algorithm.entry", _FORMS)
    try:
        player = make_player(place, streams, generator, **settings)
    except RookeryError:
        raise
    except (Exception, SystemExit) as fault:
        raise ConfigurationError(
            f"policy {policy!r}: {entry} cannot be made with the settings {settings} ({said(fault)}); correct "
            "algorithm.settings or the class, which is given place, streams and generator before them"
        ) from fault
    if not callable(player):
        raise ConfigurationError(
            f"policy {policy!r}: {entry} made a {type(player).__name__}, which cannot be called; give it a method "
            "__call__(present)"
        )
    chosen: Player = player
    return chosen
