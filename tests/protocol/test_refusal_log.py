"""What peers are refused costs a short log and little memory, however much of it there is."""

from __future__ import annotations

import logging

import pytest

from protocol.refusal_log import RefusalLog


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_each_reason_and_peer_is_told_once_and_then_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog()
    for _ in range(45):
        refusals.tell("join_refused", "full", "no place is left [full]", host="a")
    assert refusals.tell("join_refused", "full", "no place is left [full]", host="b")
    assert caplog.messages == [
        "event=join_refused host=a reason=no place is left [full]",
        *(f"event=join_refused host=a kind=full count={n} reason=no place is left [full]" for n in (10, 20, 30, 40)),
        "event=join_refused host=b reason=no place is left [full]",
    ]
    assert refusals.counters() == {"refusals.join_refused.full": 46}
    assert refusals.total == 46


def test_neither_ever_new_names_nor_ever_new_reasons_fill_the_log_or_memory(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog()
    for number in range(20_000):
        refusals.tell("join_refused", "full", "no", name=number)
    assert len(caplog.messages) < 150
    for number in range(1000):
        refusals.tell("message_refused", f"kind_{number}", "no", name=number)
    assert len(caplog.messages) < 500
    assert len(refusals.counters()) == 201
    assert refusals.counters()["refusals.message_refused.other"] == 801
    assert sum(map(len, refusals._peers.values())) < 500
    assert refusals.total == 21_000


def test_what_strangers_say_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog().tell("left", "bye", "tired\nevent=forged" * 1000, name="a\x1b[2J" * 1000)
    (line,) = caplog.messages
    assert len(line) < 1400
    assert line.isprintable()
