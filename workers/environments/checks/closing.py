"""How what a user wrote is closed: all of it, and what that raises hides nothing that was raised before.

In flow: environments. Out flow: a line of the log where one cannot be closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from protocol.errors import EnvironmentFault
from protocol.errors.origin import blame, is_users

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


@contextmanager
def closed_on_failure(world: str, close: Callable[[], object]) -> Iterator[None]:
    """Whatever fails in here leaves nothing open."""
    try:
        yield
    except BaseException:
        close_logged(world, close)
        raise


@contextmanager
def made_copies(world: str, make_one: Callable[[], Any], copies: int) -> Iterator[list[Any]]:
    """`copies` environments, each from `make_one`, which are closed if anything fails in here."""
    made: list[Any] = []
    with closed_on_failure(world, lambda: close_all(made)):
        for _ in range(copies):
            made.append(make_one())
        yield made
