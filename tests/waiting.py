"""How a test waits for what other threads and processes do: until it is so, with a deadline that no load reaches."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds after which what has not come is said to hang; a loaded machine is slow, not wrong."""


def until(ready: Callable[[], Any], seconds: float = PATIENCE, what: str = "", every: float = 0.01) -> Any:
    """The first true answer, asked for `every` so many seconds; AssertionError that says `what` did not come."""
    end = time.monotonic() + seconds
    while not (answer := ready()):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds:g} s still not: {what or _source(ready)}")
        time.sleep(every)
    return answer


def _source(ready: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(ready).split())
    except (OSError, TypeError):  # a bound method of something built in, say
        return repr(ready)
