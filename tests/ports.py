"""Loopback ports that a test may bind: ten in a row, below those of outgoing connections, so that none takes one
before it is bound. Each of the processes that test side by side has a share of its own."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Collection
from contextlib import ExitStack

_PORTS = range(20_000, 32_000, 10)


def choose_block(taken: Collection[int] = ()) -> int | None:
    """The base of ten consecutive loopback ports that are free now and not in taken; None if there are none."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ours = _PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    bases = random.SystemRandom().sample(ours, len(ours))
    return next((base for base in bases if base not in taken and _free(base)), None)


def _free(base: int) -> bool:
    with ExitStack() as stack:
        for port in range(base, base + 10):
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
