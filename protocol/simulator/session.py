"""A simulator's side of the conversation, without a socket: what to say, and what the answers mean.

In flows: values of agents, ends of episodes; messages of the actor. Out flows: messages as frames; what came as one of
the events below.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from protocol.errors import ConfigurationError, EnvironmentFault, RookeryError
from protocol.messages.codec import decode, encode
from protocol.messages.fast_path import ActHeader, ObserveHeader, frequent, pack
from protocol.messages.simulator import Act, Admit, Bye, End, Fault, Hello, Info, Ping, Pong, Reset
from protocol.messages.versioning import SPOKEN
from protocol.simulator.encoding import SpaceCodec
from protocol.spaces import World, parse_world

Frames = list[bytes]
_INFO: TypeAdapter[dict[str, bool | float]] = TypeAdapter(Info)
_AGAIN = ("full", "identity")
"""Codes of refusals after which it may be let in later."""


class RunOver(Exception):
    """No more actions are given: the run, or this actor's part of it, is over. No error."""


class SimulatorFault(RookeryError):
    """The actor did not take in what it was told, or lets nobody in, for a `reason`; `code` is for programs."""


class ObservedStep(NamedTuple):
    """What agents see when they ask for actions, with their masks, of `elements` if any are named; seconds on the
    simulator's clock."""

    observations: Mapping[str, Any]
    masks: Mapping[str, Any]
    elements: Sequence[str]
    clock: float = 0.0


class Acted(NamedTuple):
    """Actions for all agents of `observe` number `answers`, by name."""

    answers: int
    actions: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Begun:
    """An episode is to begin."""

    episode: int
    seed: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something was refused."""

    code: str
    answers: int
    """Number of the `observe`; 0: something else."""
    reason: str
    fatal: bool

    def again(self) -> str:
        """Why it was not let in, if it may be later; else SimulatorFault."""
        if self.fatal or self.code not in _AGAIN:
            raise SimulatorFault("simulator_refused", code=self.code, reason=self.reason)
        return self.reason


@dataclass(frozen=True, slots=True)
class Over:
    """There will be no more."""

    reason: str


Event = Admit | Acted | Begun | Wrong | Over | Pong


class Session:
    """Of the simulator `name`. `world`: what it was written for, if it is to be checked."""

    def __init__(self, name: str, drives: bool, lease: float, world: World | None, software: str) -> None:
        self._hello = Hello(
            name=name,
            token=secrets.token_hex(8),
            drives=drives,
            lease=lease,
            software=software,
            oldest_schema=SPOKEN.oldest,
            newest_schema=SPOKEN.newest,
        )
        self._expected = world
        self.admitted: Admit | None = None
        self.world: World | None = None
        self.cast: SpaceCodec | None = None
        self.episode, self.playing, self._number = 0, False, 0
        self._asked: dict[int, tuple[list[str], tuple[str, ...]]] = {}
        """Number of an `observe` that is not answered -> agents, elements."""
        self.pace: str = "going"
        self.waited = 0.0
        """Seconds that the last observation lay at the actor before it was looked at."""

    def hello(self) -> Frames:
        """To be said first, and whenever the actor does not know this simulator."""
        self.admitted = None
        return [encode(self._hello)]

    def observe(self, shown: ObservedStep, rewards: Mapping[str, float], late: int = 0) -> Frames:
        """These agents ask for actions."""
        observations, masks, elements, clock = shown
        cast, names, parts = self._known, [*observations], []
        for name in names:
            values = cast.of(name)
            parts.append(values.observation(observations[name], name))
            parts.append(values.mask(masks.get(name), name))
        self._number, self.episode, self.playing = self._number + 1, self.episode + (not self.playing), True
        said = ObserveHeader(
            self._schema,
            self._number,
            self.episode,
            names,
            [float(rewards.get(name, 0.0)) for name in names] if rewards else [],
            [*elements],
            late,
            float(clock),
        )
        self._asked[self._number] = (names, tuple(elements))
        return [pack(said), b"".join(parts)]

    def end(
        self,
        rewards: Mapping[str, float],
        truncated: bool,
        last: Mapping[str, Any] | None = None,
        over: bool = True,
        infos: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Frames:
        """The episode ended for the agents that `rewards` names; `last`: what they saw, where it was cut; `infos`: what
        is told of it by some of them."""
        cast, body = self._known, []
        if truncated:
            if last is None or set(last) != set(rewards):
                raise EnvironmentFault("last_observations_missing")
            body = [b"".join(cast.of(name).observation(last[name], name) for name in rewards)]
        message = End(
            schema_number=self._schema,
            episode=self.episode,
            agents=list(rewards),
            rewards=[float(reward) for reward in rewards.values()],
            truncated=truncated,
            over=over,
            infos=[_told(name, (infos or {}).get(name, {})) for name in rewards] if infos else [],
        )
        self.playing = self.playing and not over
        return [encode(message), *(body if rewards else [])]

    def ping(self) -> Frames:
        """I live; do you?"""
        return [encode(Ping(schema_number=self._schema))]

    def bye(self, reason: str) -> Frames:
        """That was all."""
        return [encode(Bye(schema_number=self._schema, reason=reason))]

    def take(self, frames: Frames) -> Event | None:
        """What the actor said; None for an answer to nothing that is still asked."""
        said = frequent(frames[0])
        if isinstance(said, ActHeader):  # as is usual
            return self._acted(said, frames[1:])
        message, rest = decode(frames)
        match message:
            case Act():
                return self._acted(message, rest)
            case Admit():
                return self._enter(message)
            case Reset():
                self.episode, self.playing = message.episode, True
                return Begun(message.episode, message.seed)
            case Fault():
                return Wrong(message.code, message.answers, message.reason, message.fatal)
            case Bye():
                return Over(message.reason)
            case Pong():
                self.pace = message.pace
                return message
        return None

    @property
    def _known(self) -> SpaceCodec:
        if self.cast is None:
            raise ConfigurationError("simulator_not_connected")
        return self.cast

    @property
    def _schema(self) -> int:
        return self.admitted.schema_number if self.admitted is not None else SPOKEN.newest

    def _enter(self, admit: Admit) -> Admit:
        world = parse_world(admit.world)
        expected = self._expected
        if expected is not None and expected.population != world.population:
            raise ConfigurationError("simulator_world_differs", environment=world.id)
        self.admitted, self.world, self.cast = admit, world, SpaceCodec(world)
        self.episode, self.playing, self._number = 0, False, 0
        self._asked.clear()
        return admit

    def _acted(self, message: Act | ActHeader, rest: Sequence[Any]) -> Acted | None:
        asked = self._asked.pop(message.answers, None)
        if asked is None or self.cast is None:
            return None
        self.waited, self.pace = message.waited, "going"
        names, elements = asked
        at, actions = 0, {}
        for name in names:
            actions[name], at = self.cast.of(name).action(rest[0], at, elements)
        return Acted(message.answers, actions)

    @property
    def drives(self) -> bool:
        """Whether its episodes begin by themselves."""
        return self._hello.drives


def _told(agent: str, info: Mapping[str, Any]) -> dict[str, bool | float]:
    """As it is sent; EnvironmentFault for what cannot be."""
    try:
        return _INFO.validate_python(dict(info), strict=True)
    except ValidationError as fault:
        raise EnvironmentFault("simulator_info_invalid", agent=agent, reason=fault.errors()[0]["msg"]) from None
