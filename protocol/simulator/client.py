"""The client for simulators in Python: connect to an actor of a run, ask it for actions, tell what they brought.

    with Simulator("tcp://127.0.0.1:5700", "sim-0") as sim:
        action = sim.act(observation)
        ...
        action = sim.act(observation, reward)
        ...
        sim.end_episode(reward)

Needs no torch. Every wait has an end; an actor that is lost is found again, and the episode that was going on then
counts as cut: what the simulator shows next begins another one.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from protocol import RELEASE
from protocol.errors import ConfigurationError, Timeout
from protocol.messages.simulator import Fallback
from protocol.simulator.connection import Line
from protocol.simulator.fallback import Lateness, Script
from protocol.simulator.session import Acted, Begun, Event, ObservedStep, Over, RunOver, Session, SimulatorFault, Wrong
from protocol.spaces import World

__all__ = ["EpisodeCut", "RunOver", "Simulator", "SimulatorFault"]

_ASK_EVERY = 1.0
"""Seconds of silence after which the actor is asked whether it lives."""


class EpisodeCut(Exception):
    """Of a simulator that is told when to begin: the actor was lost and found again; wait for `begin`."""


class Simulator:
    """One simulator, `name`, at `endpoint`: the address, or connect string, that a run printed, or its folder on this
    machine, whose actors it tries in turn.

    `world`: what it was written for, if that is to be compared. `patience`: seconds that it waits for an actor before
    it raises Timeout. `lease`: seconds that it may be silent. `keys`: the folder of the run's keys, where
    neither a connect string carries them, nor the run's folder or `ROOKERY_KEYS` has them.

    `deadline`: seconds in which an action must come, else `act` returns what `fallback` says (`last`, `default`, or
    `scripted`: what `script` makes of an agent and what it sees); the action that comes later is then what the next
    call returns, and what was earned meanwhile adds up. Without a deadline of its own it has the run's, if that has
    one, with the run's fallback; with one and no fallback `act` returns None.
    """

    def __init__(
        self,
        endpoint: str | Path,
        name: str,
        *,
        world: World | None = None,
        drives: bool = True,
        lease: float = 30.0,
        patience: float = 60.0,
        deadline: float | None = None,
        fallback: Fallback | None = None,
        script: Script | None = None,
        keys: str = "",
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self._patience, self._lateness = patience, Lateness(deadline, fallback, script)
        self._line = Line(endpoint, keys, context)
        self.session = Session(name, drives, lease, world, f"rookery {RELEASE}, Python {platform.python_version()}")
        self._request: ObservedStep | None = None
        """What was asked and not answered."""
        self._shown = ObservedStep({}, {}, ())
        """What was to be asked last."""
        self._earned: dict[str, float] = {}
        """Rewards that no `observe` has told yet."""
        self._late = 0
        self._begun: Begun | None = None
        self._acted: Acted | None = None
        """What answered while something else was waited for."""
        self._heard_at = self._asked_at = 0.0
        """When the actor said something last, and when it was last asked something."""
        self.reconnects = 0

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if fault is None else f"{type(fault).__name__}: {fault}"[:1000])

    @property
    def world(self) -> World:
        """The agents and spaces of the run."""
        if self.session.world is None:
            raise ConfigurationError("simulator_not_connected")
        return self.session.world

    def connect(self) -> None:
        """Asks until it is let in. SimulatorFault if it never will be, RunOver if the run is, Timeout if nobody
        answers."""
        end, refused, elsewhere = time.monotonic() + self._patience, "", False
        while True:
            self._check_run()
            self._line.open(_ASK_EVERY, elsewhere)
            elsewhere = True  # unless it is known who answers
            self._line.send(self.session.hello())
            answer_by = time.monotonic() + _ASK_EVERY
            while self.session.admitted is None and (left := answer_by - time.monotonic()) > 0:
                event = self._receive(left)
                if isinstance(event, Over):
                    raise RunOver(event.reason)
                if isinstance(event, Wrong) and event.code != "unknown":  # that answers what was said before hello
                    refused, elsewhere = event.again(), event.code == "full"
            if self.session.admitted is not None and self.session.cast is not None:
                self._lateness.agree(self.session.admitted, self.session.cast)
                return
            if time.monotonic() >= end:
                if self._line.refused and not refused:
                    raise Timeout("keys_not_accepted", peer=self._line.address, seconds=self._patience)
                silent = f"no actor answered at {self._line.address}" if self._line.address else "no actor serves yet"
                raise Timeout("simulator_not_admitted", reason=refused or silent, seconds=self._patience)

    def act(
        self,
        observation: Any,
        reward: float = 0.0,
        *,
        mask: Any = None,
        agent: str = "",
        elements: Sequence[str] = (),
        clock: float = 0.0,
    ) -> Any:
        """The action of one agent (of the world's only one, if none is named) for what it sees at `clock`, seconds of
        its own; `reward` is what its last action earned. None where the deadline passed and there is no fallback.
        RunOver when there will be no more."""
        name = agent or self._only()
        acted = self.act_all({name: observation}, {name: reward}, {name: mask}, elements=elements, clock=clock)
        return None if acted is None else acted.get(name)

    def act_all(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, float] | None = None,
        masks: Mapping[str, Any] | None = None,
        *,
        elements: Sequence[str] = (),
        clock: float = 0.0,
    ) -> dict[str, Any] | None:
        """The actions of all agents that are named, in one message; see `act`."""
        self.ask(observations, rewards, masks, elements=elements, clock=clock)
        return self.answer()

    def ask(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, float] | None = None,
        masks: Mapping[str, Any] | None = None,
        *,
        elements: Sequence[str] = (),
        clock: float = 0.0,
    ) -> None:
        """First half of `act_all`, which does not wait: for whoever drives many simulators at once. What was asked
        before and came too late is what `answer` gives instead."""
        if rewards:
            earned = self._earned
            for name, reward in rewards.items():
                earned[name] = earned.get(name, 0.0) + reward
        self._shown = shown = ObservedStep(observations, masks or {}, elements, clock)
        if self._request is None:
            self._ask(shown)
        else:
            self._late += 1

    def answer(self) -> dict[str, Any] | None:
        """Second half of `act_all`."""
        acted = self._answer(self._lateness.deadline)
        return self._lateness.fill(acted, self._shown)

    def end_episode(
        self,
        reward: float = 0.0,
        *,
        truncated: bool = False,
        observation: Any = None,
        agent: str = "",
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """The last action ended the episode and earned `reward`; cut by hand or a time limit it is `truncated`, and
        `observation` is what was seen last. Each number and truth in `info` becomes a curve, `info/NAME`: at most 30,
        by names of at most 48 characters; EnvironmentFault for anything else."""
        name = agent or self._only()
        infos = {name: info} if info else None
        self.end_all({name: reward}, truncated=truncated, observations={name: observation}, infos=infos)

    def end_all(
        self,
        rewards: Mapping[str, float],
        *,
        truncated: bool = False,
        observations: Mapping[str, Any] | None = None,
        over: bool = True,
        infos: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """The episode ended for these agents; `over`: for everybody. `infos`: by agent, as `info` of `end_episode`."""
        if self._request is not None:
            self._answer(None)
        if not self.session.playing:  # it was cut when the connection was lost
            self._earned.clear()
            return
        total = {name: reward + self._earned.pop(name, 0.0) for name, reward in rewards.items()}
        self._line.send(self.session.end(total, truncated, observations, over, infos))
        if over:
            self._earned.clear()

    def begin(self) -> int:
        """For one that does not drive: waits until it is told to begin an episode; the seed."""
        end = time.monotonic() + self._patience
        while self._begun is None:
            self._attend(end)
        begun, self._begun = self._begun, None
        return begun.seed

    def ping(self) -> str:
        """Keeps the lease while nothing is asked; `waiting` if no actions are given for now, else `going`."""
        self._line.send(self.session.ping())
        while (event := self._receive(0.0)) is not None:
            self._heed(event)
        return self.session.pace

    def close(self, reason: str = "") -> None:
        """Says farewell; what is going on counts as cut."""
        if self.session.admitted is not None:
            self._line.send(self.session.bye(reason))
        self._line.close()

    def _only(self) -> str:
        cast = self.session.cast
        if cast is None or len(cast.names) != 1:
            raise ConfigurationError("agent_not_named")
        return cast.names[0]

    def _ask(self, shown: ObservedStep) -> None:
        earned = self._earned
        rewards = {name: earned.pop(name) for name in shown.observations if name in earned} if earned else earned
        late, self._late = self._late, 0
        frames = self.session.observe(shown, rewards if any(rewards.values()) else {}, late)
        self._request = shown
        self._asked_at = self._heard_at = time.monotonic()
        self._line.send(frames)

    def _answer(self, deadline: float | None) -> dict[str, Any] | None:
        """Actions for what was asked; None if they did not come in time."""
        end = time.monotonic() + (self._patience if deadline is None else deadline)
        while self._acted is None:
            event = self._attend(end, quietly=deadline is not None)
            if event is None and deadline is not None and time.monotonic() >= end:
                return None
        acted, self._acted, self._request = self._acted, None, None
        return acted.actions

    def _attend(self, end: float, quietly: bool = False) -> Event | None:
        """The next thing that the actor says; asks it whether it lives if it says nothing. `quietly`: that nothing came
        by `end` is no error, unless it has been silent for longer than the patience."""
        now = time.monotonic()
        if now >= (self._heard_at + self._patience if quietly else end):
            raise Timeout("actor_silent", peer=self._line.address, seconds=self._patience)
        event = self._receive(max(0.0, min(_ASK_EVERY, end - now)))
        if event is not None:
            self._heed(event)
        elif time.monotonic() - max(self._heard_at, self._asked_at) > 0.9 * _ASK_EVERY:
            self._asked_at = time.monotonic()
            self._line.send(self.session.ping())
            self._check_run()
            if self._line.moved:
                self._rejoin()
        return event

    def _heed(self, event: Event) -> None:
        """What concerns the conversation itself."""
        match event:
            case Acted():
                self._acted = event
            case Over(reason):
                raise RunOver(reason)
            case Begun():
                self._begun = event
            case Wrong(code="unknown"):
                self._rejoin()
            case Wrong(code, _, reason):
                self._request = None
                raise SimulatorFault("simulator_refused", code=code, reason=reason)

    def _rejoin(self) -> None:
        """The actor does not know this simulator (any more): in again, as at the start of another episode."""
        self.reconnects += 1
        self._earned.clear()
        request, self._request, self._acted = self._request, None, None
        self.connect()
        if not self.session.drives:
            raise EpisodeCut
        if request is not None:
            self._ask(request)

    def _check_run(self) -> None:
        if self._line.over:
            raise RunOver("the run has ended")

    def _receive(self, seconds: float) -> Event | None:
        frames = self._line.receive(seconds)
        if frames is None:
            return None
        self._heard_at = time.monotonic()
        return self.session.take(frames)
