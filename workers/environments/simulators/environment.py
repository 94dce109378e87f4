"""Simulators of any kind, in any language, as the copies of a world: they connect, ask for actions and tell what these
brought, each at its own pace.

In flows: messages (protocol/messages/simulator.py), actions. Out flows: turns of those who asked, which are never
waited for longer than a moment: a turn may be empty.

A simulator that is gone leaves no episode half told: its open rows are cut, that is, truncated with what it saw last as
the last observation.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import EnvironmentFault
from protocol.messages.simulator import Reset
from protocol.spaces import World
from protocol.transport.sockets import Ports
from workers.environments.base import Environment, Turn
from workers.environments.simulators.endpoint import SimulatorEndpoint, open_ports, terms_of
from workers.environments.simulators.latency import WITHIN, LatencyHistogram
from workers.environments.simulators.launcher import SimulatorLauncher, commands_of
from workers.environments.simulators.message_validation import MessageValidator
from workers.environments.simulators.server import COUNTERS, SimulatorServer
from workers.environments.simulators.session import SimulatorSession
from workers.environments.simulators.simulator_settings import SimulatorSettings

_SHARES = {"act_p50_us": 0.5, "act_p90_us": 0.9, "act_p99_us": 0.99, "act_p999_us": 0.999}
_IDLE_MS = 50
"""Milliseconds after which a turn is empty."""
_HOLD_SECONDS = 0.05
"""A wait that is shorter is not worth a message."""
_FAREWELL_SECONDS = 1.0
_FAREWELL = "this actor has made all its steps, or was told to stop; the run is over"


class SimulatorEnvironment(Environment):
    """`copies`: the most simulators at once. Without `outside` it only says what world it is."""

    wants_preview = True
    counters = (
        *(f"simulators_{name}" for name in COUNTERS),
        "simulators_rows_cut",
        "simulators_late",
        *(f"simulators_{name}" for name in WITHIN),
    )

    def __init__(
        self, config: EnvironmentConfig, settings: SimulatorSettings, world: World, outside: SimulatorEndpoint | None
    ) -> None:
        self.world, self.copies = world, config.copies
        self._settings = settings
        self._validator = MessageValidator(world, config.copies, self._begin, self.tell)
        self._seed = 0
        self._held_at = 0.0
        self._latency = LatencyHistogram()
        self._measured: dict[str, float] = {}
        self._ports: Ports | None = None
        self._server: SimulatorServer | None = None
        self.address = ""
        """Where simulators connect."""
        if outside is not None:
            terms = terms_of(world, config.copies, settings, outside.run)
            self._ports, self.address = open_ports(outside, settings, terms.admit.largest)
            self._server = SimulatorServer(
                self._ports.sockets[0], terms, self._begin, self._truncate, guard=self._ports.guard
            )
        self._config, self._outside = config, outside
        self._launched: SimulatorLauncher | None = None

    def reset(self, seed: int) -> Turn:
        """Simulators that are told when to begin get seeds that follow from `seed` and their names."""
        self._seed = seed
        if self._settings.command is not None and self._launched is None:
            self._launch(self._settings.command)
        return self._gather()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Answers all who asked and were not answered yet, and sees who asks next."""
        self.preview_actions(actions)
        return self._gather()

    def preview_actions(self, actions: Sequence[NDArray[Any]]) -> None:
        """Answers all who asked."""
        validator, server = self._validator, self._server
        requests, validator.requests = validator.requests, []
        if not requests or server is None:
            return
        done = iter(actions)
        chosen = {number: next(done) for number, desk in enumerate(validator.desks) if desk.acting}
        now = time.monotonic()
        readings, desks, guests = validator.readings, validator.desks, server.guests
        for request in requests:
            if request.guest.route not in guests:
                continue  # it is gone, and its row is cut
            elements = request.elements
            parts = [
                readings[agent].action(chosen[agent][desks[agent].position[row]], elements)
                for agent, row in request.asks
            ]
            server.give(request.guest, request.number, request.episode, request.seen_at - request.came_at, parts)
            self._latency.add(now - request.came_at)

    def poll(self) -> None:
        """While training cannot take in more: listens, and says so to those who ask, or have waited for a while."""
        server, now = self._server, time.monotonic()
        if server is None:
            return
        if not server.waiting:
            server.waiting, self._held_at = True, now
        server.receive(0)
        if now - self._held_at > _HOLD_SECONDS:
            asked = {request.guest.route: request.guest for request in self._validator.requests}
            server.pause([guest for guest in server.guests.values() if guest.inbox or guest.route in asked])

    def metrics(self) -> dict[str, float]:
        """Totals of what simulators did; how many there are, and how long they waited for actions lately."""
        if self._server is None:
            return {}
        quantiles = self._latency.take(*_SHARES.values())
        if quantiles:
            self._measured = dict(zip(_SHARES, quantiles, strict=True))
        found = {f"simulators_{name}": float(count) for name, count in self._server.counts.items()}
        found |= {"simulators_rows_cut": self._validator.rows_cut, "simulators_late": self._validator.late}
        found |= {f"simulators_{name}": count for name, count in self._latency.counts.items()}
        return {**found, "simulators": len(self._server.guests), **self._measured}

    def close(self) -> None:
        """Says farewell."""
        if self._server is not None:
            self._server.close(_FAREWELL, _FAREWELL_SECONDS)
        if self._launched is not None:
            self._launched.close()
        if self._ports is not None:
            self._ports.close()
        self._server = self._ports = None

    def _gather(self) -> Turn:
        """Who asked, as soon as nobody else is waited for."""
        server, validator = self._server, self._validator
        if server is None:
            raise EnvironmentFault("simulators_need_actor_process", key="environment.id")
        server.resume()
        if self._launched is not None:
            self._launched.poll()
            self.restarts = self._launched.restarts
        now = time.monotonic()
        idle, due = now + _IDLE_MS / 1000, math.inf
        # nothing is left to be told of: who is to be answered next has yet to speak
        wait = 0 if validator.ended or any(guest.inbox for guest in server.guests.values()) else _IDLE_MS
        while True:
            before = len(validator.requests)
            heard = server.receive(wait, max(1, len(server.guests) - before))
            for guest in [guest for guest in server.guests.values() if guest.inbox]:
                for fault in validator.listen(guest):
                    server.report_fault(guest, fault)
            now, requests = time.monotonic(), validator.requests
            if requests and due == math.inf:
                due = now + self._settings.batch_wait / 1000
            everybody = len(requests) >= len(server.guests)
            # who says much else, or nothing but nonsense, does not hold up those who asked
            more = heard > 0 and (len(requests) > before or not requests)
            if more and not everybody and now < idle:
                wait = 0
            elif now >= idle or (requests and (everybody or now >= due)) or validator.ended:
                return self._tell()
            else:
                wait = max(1, math.ceil((min(idle, due) - now) * 1000))

    def _tell(self) -> Turn:
        told, steps = self._validator.take()
        present = tuple([one for one, _ in told if one is not None])
        return Turn(present, steps, tuple([one for _, one in told if one is not None]))

    def _truncate(self, guest: SimulatorSession) -> None:
        """One that says nothing more."""
        if self._server is not None:
            self._server.counts["faults"] += sum(1 for _ in self._validator.listen(guest))
        self._validator.cut(guest)

    def _begin(self, guest: SimulatorSession) -> None:
        """One that does not drive is told to begin."""
        if not guest.hello.drives and self._server is not None:
            guest.episode, guest.playing = guest.episode + 1, True
            seed = self._seed_of(f"{guest.name}/{guest.incarnation}/{guest.episode}")
            self._server.send(guest, Reset(episode=guest.episode, seed=seed))

    def _seed_of(self, purpose: str) -> int:
        """Less than 2^31."""
        digest = hashlib.blake2b(f"{self._seed}/{purpose}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1

    def _launch(self, command: str) -> None:
        outside, server = self._outside, self._server
        if outside is None or server is None:
            return
        logs = None if outside.folder is None else outside.folder / "logs" / "simulators"
        names = [f"{outside.name}-{number}" for number in range(self.copies)]
        commands = commands_of(command, names, self.address, self._seed_of, self._settings.machines)
        self._launched = SimulatorLauncher(commands, self._config.restarts, logs, server.dismiss_named, outside.keys)
