"""A deadline ends, and says what it waited for."""

from __future__ import annotations

from protocol.errors import Timeout
from tests.faults import raises
from workers.environments.vectorized.process_handle import Deadline


def test_a_deadline_passes_when_its_time_is_up() -> None:
    now = [100.0]
    deadline = Deadline(2.5, "no answer came", clock=lambda: now[0])
    assert (deadline.left, deadline.passed) == (2.5, False)
    now[0] += 2.4
    assert 0 < deadline.left < 0.11
    deadline.check()
    now[0] += 0.2
    assert (deadline.left, deadline.passed) == (0.0, True)
    with raises(Timeout, "deadline_passed", what="no answer came", seconds=2.5):
        deadline.check()
