"""How what a user wrote is closed: all of it, and what that raises hides nothing that was raised before.

In flow: environments. Out flow: a line of the log where one cannot be closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from protocol.errors import EnvironmentFault
from protocol.errors.origin import blame, is_users

__all__ = ["close_all", "close_logged"]

log = logging.getLogger(__name__)


def close_all(made: list[Any]) -> None:
    """Closes and forgets all environments that can be closed, though some may raise."""
    with ExitStack() as closing:
        while made:
            closing.callback(getattr(made.pop(), "close", lambda: None))


def close_logged(world: str, close: Callable[[], object]) -> None:
    """Closes; what that raises is logged with its place, as a run has lost nothing by it."""
    try:
        close()
    except BaseException as fault:
        if not is_users(fault):
            raise
        raised = EnvironmentFault("environment_raised", environment=world, method="close", **blame(fault))
        told = fault if isinstance(fault, EnvironmentFault) else raised
        log.warning("event=close_raised environment=%s error=%s", world, told.coded)
