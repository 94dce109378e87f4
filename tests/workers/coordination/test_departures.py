"""The log of who comes and goes stays readable, whoever they are and however many."""

from __future__ import annotations

import logging
import re

import pytest

from protocol.messages.core import Leave
from protocol.refusal_log import RefusalLog
from workers.coordination.departures import Departures


def test_each_who_comes_and_goes_has_a_line_and_of_a_crowd_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    departures = Departures("run", RefusalLog())
    departures.joined("actor-0", 1, "a host\nof two lines", 7)
    departures.left(Leave(name="actor-0", token="t", incarnation=1), 0.0)
    departures.lost("actor-1", 1, 0.0)
    assert [re.findall(r"(?:event|worker)=\S+", line) for line in caplog.messages] == [
        [f"event={event}", f"worker={worker}"]
        for event, worker in (("joined", "actor-0"), ("left", "actor-0"), ("lease_ended", "actor-1"))
    ]
    assert all(line.isprintable() for line in caplog.messages)
    caplog.clear()
    for number in range(1000):
        departures.joined(f"actor-{number}", 2, "host", number)
    departures.sweep(10.0, salvaging=False)
    *lines, rest = caplog.messages
    assert len(lines) < 100
    assert len(lines) + int(rest.partition("event=joined more=")[2]) == 1000
    departures.joined("actor-0", 3, "host", 1)
    assert "incarnation=3" in caplog.messages[-1]
