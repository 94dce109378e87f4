"""How a worker is, for those who look after it: is its loop alive, can it do its work.

In flow: ticks of the worker's loop, its state, its membership. Out flow: `/healthz`, `/readyz`, `/metrics`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.control.client import ControlClient
from protocol.memory.shared_file import Counters
from protocol.refusal_log import RefusalLog
from workers.runtime.http_server import HttpRequest, Response, Routes
from workers.runtime.metric_names import Identity

STUCK_SECONDS = 60.0
"""Without a turn of its loop until a worker is called stuck. What it waits for makes no turn fail to come: all waits
are short looks."""
_WORKING = ("acting", "learning", "relaying", "evaluating", "serving")
_LOOK = 0.5
"""Seconds of which shares mean something."""
_MEBIBYTE = 2.0**20 if sys.platform == "darwin" else 2.0**10
"""In the units of getrusage."""


@dataclass(slots=True)
class Usage:
    """What this process takes and makes."""

    _at: float = field(default_factory=time.monotonic)
    _cpu: float = field(default_factory=time.process_time)
    _made: float = 0.0
    _found: dict[str, float] = field(default_factory=dict)

    def look(self, counters: Mapping[str, float]) -> dict[str, float]:
        """Since the last look: `cores` used and steps or rows `per_second`; and `mebibytes`, the most it has had."""
        now, cpu = time.monotonic(), time.process_time()
        seconds = now - self._at
        if seconds < _LOOK:
            return self._found
        rows = sum(value for name, value in counters.items() if name.startswith("rows_trained."))
        made = counters.get("agent_steps", rows)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MEBIBYTE
        self._found = {"cores": (cpu - self._cpu) / seconds, "mebibytes": memory}
        if made:
            self._found["per_second"] = (made - self._made) / seconds
        self._at, self._cpu, self._made = now, cpu, made
        return self._found


@dataclass(slots=True)
class Health:
    """Written by the worker's thread, read by those that answer."""

    identity: Identity = field(default_factory=Identity)
    ticked_at: float = 0.0
    """When the loop made its last turn; 0: it does not run (yet, or any more), and cannot be stuck."""
    client: ControlClient | None = None
    """None: the worker is nobody's member."""
    state: Callable[[], str] = lambda: "starting"
    counters: Counters | None = None
    measured: Callable[[], Mapping[str, float]] = dict
    """What is no counter, POLICY last: `adopted.POLICY`, ...; must be quick and callable from any thread."""

    refusals: RefusalLog = field(default_factory=RefusalLog)
    """Of this process's own sockets."""

    def tick(self) -> None:
        """Once a turn of the worker's loop."""
        self.ticked_at = time.monotonic()

    def idle(self) -> None:
        """The loop has ended."""
        self.ticked_at = 0.0

    def bind(
        self, state: Callable[[], str], counters: Counters | None, measured: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """From now on tells these."""
        self.state, self.counters, self.measured = state, counters, measured

    @property
    def silent(self) -> float:
        """Seconds since the last turn; 0 while no loop runs."""
        return time.monotonic() - self.ticked_at if self.ticked_at else 0.0

    @property
    def at_work(self) -> bool:
        """Whether the loop turns, or is about to make its first turn."""
        return self.ticked_at > 0 or self.state() in ("starting", *_WORKING)

    @property
    def connected(self) -> bool:
        """Whether the coordinator was heard of within the lease."""
        client = self.client
        if client is None:
            return self.state() == "serving"
        if not hasattr(client, "welcome"):
            return False
        return time.monotonic() - client.heard_at <= client.welcome.lease

    def routes(self) -> Routes:
        """What every worker answers."""
        return {
            ("GET", "/healthz"): self._health,
            ("GET", "/readyz"): self._readiness,
            ("GET", "/metrics"): self._metrics,
        }

    def _health(self, _request: HttpRequest) -> Response:
        """Of this process alone: what it waits for may be dead."""
        return self._response(self.silent <= STUCK_SECONDS)

    def _readiness(self, _request: HttpRequest) -> Response:
        """A worker is at work only once it has joined and has, or has published, weights."""
        return self._response(self.connected and self.state() in _WORKING)

    def _response(self, well: bool) -> Response:
        said = {
            "ok": well,
            "role": self.identity.role,
            "worker": self.identity.worker,
            "state": self.state(),
            "connected": self.connected,
            "silent_seconds": round(self.silent, 3),
        }
        return Response(json.dumps(said).encode() + b"\n", "application/json", 200 if well else 503)

    def _metrics(self, _request: HttpRequest) -> Response:
        from workers.runtime.prometheus import render_worker_metrics  # costs a tenth of a second, and few are asked

        counters = {} if self.counters is None else self.counters.snapshot()
        counters |= self.refusals.counters() | ({} if self.client is None else self.client.refusals.counters())
        levels = {"loop_silent_seconds": self.silent, "connected": float(self.connected)}
        return render_worker_metrics(self.identity, counters, {**self.measured(), **levels})
