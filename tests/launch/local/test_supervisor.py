"""A run that was stopped when all its steps were made is gone on with by its coordinator alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launch.local import supervisor
from protocol.errors import Refused
from tests.faults import raises


def client(kind: str) -> Any:
    """A client whose coordinator refuses it."""

    def join(_seconds: float) -> None:
        raise Refused(kind, limit=1)

    return SimpleNamespace(join=join)


def test_a_coordinator_with_nothing_left_to_do_needs_no_workers() -> None:
    assert supervisor._join(client("run_has_ended")) is None


@pytest.mark.parametrize("kind", ["run_is_ending", "nothing_left_to_do", "share_spent"])
def test_any_other_refusal_is_told(kind: str) -> None:
    with raises(Refused, kind):
        supervisor._join(client(kind))
