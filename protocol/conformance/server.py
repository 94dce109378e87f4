"""Checks an actor that serves simulators (a policy service): plays by the rules, then breaks each.

In flow: an address. Out flow: a Finding for each check, as it is made.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from protocol.conformance.exchange import Talk
from protocol.conformance.findings import Finding, Flaw
from protocol.conformance.server_checks import CHECKS
from protocol.transport.sockets import open_context

__all__ = ["check_server"]


class _Server:
    """The actor at `address`, to be met in new connections."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, patience: float) -> None:
        self._context, self._address, self._patience = context, address, patience
        self._group, self._count = f"conform-{secrets.token_hex(3)}", 0

    @contextmanager
    def met(self, name: str = "") -> Iterator[Talk]:
        """A connection that has said nothing yet."""
        self._count += 1
        talk = Talk(self._context, self._address, name or f"{self._group}-{self._count}", self._patience)
        try:
            yield talk
        finally:
            talk.close()


def check_server(address: str, keys: str = "", patience: float = 30.0) -> Iterator[Finding]:
    """All checks; `patience`: seconds in which an answer must come, and a copy of the world be free."""
    context = open_context(keys, "simulator")
    try:
        server = _Server(context, address, patience)
        for check in CHECKS:
            holds = (check.__doc__ or "").strip().rstrip(".")
            try:
                check(server)
                yield Finding(holds)
            except Flaw as flaw:
                yield Finding(holds, flaw.coded, flaw.section)
    finally:
        context.destroy(linger=500)
