"""Blocks that travel together: fewer messages for the same segments, and nothing waits for what may not come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.experience import flow_control, sender
from protocol.experience.flow_control import Block, CreditWindow, SendCoalescer
from tests.protocol.parts import BLOCK, POLICY, Actor, Learner, closing
from tests.waiting import until

PATHS = pytest.mark.parametrize("inline", [False, True], ids=["memory", "inline"])
RING = "rookery-run1-actor-0.1-gem.ring"


def _held(
    written: int, nbytes: int = 1, seconds: float = 0.0, pause: float = 0.0, alone: bool = False
) -> tuple[CreditWindow, SendCoalescer]:
    """`written` blocks of two segments that took `seconds` each, `pause` apart; none was sent but the first sixteen."""
    credit = CreditWindow(60, 50, 1, "stream", "block")
    held = SendCoalescer(credit, 2, nbytes, alone)
    for i in range(written):
        index = credit.take()
        assert index is not None
        slots = slice(2 * index, 2 * index + 2)
        now = 10.0 + i * (seconds + pause)
        held.begin(slots, now)
        credit.finish(index, 2)
        held.finish(slots, now + seconds)
        held.add(credit.announce())
        if i < 16:
            assert not held.waits
            held.runs()
    return credit, held


@pytest.mark.parametrize(("written", "waits"), [(16, True), (17, True), (23, True), (24, False), (28, False)])
def test_quick_blocks_wait_behind_sixteen_others_until_they_are_eight(written: int, waits: bool) -> None:
    _, held = _held(written)
    assert held.waits is waits
    assert len(held) == written - 16


def test_a_block_that_took_long_or_came_late_is_not_held() -> None:
    assert not _held(18, seconds=0.0011)[1].waits
    assert not _held(18, pause=0.0011)[1].waits
    assert _held(18, seconds=0.0004, pause=0.0004)[1].waits


def test_eight_megabytes_travel_together_at_most() -> None:
    assert [_held(18, nbytes)[1].waits for nbytes in (2**21, 2**22, 2**23, 2**30)] == [True, False, False, False]
    _, held = _held(16 + 5, nbytes=2**22)
    assert [(a.index, b.index) for a, b in held.runs()] == [(16, 17), (18, 19), (20, 20)]


def test_four_megabytes_travel_together_at_most_where_columns_travel_too() -> None:
    _, held = _held(16 + 5, nbytes=2**20)
    held.travel(inline=True)
    assert [(a.index, b.index) for a, b in held.runs()] == [(16, 19), (20, 20)]
    held.travel(inline=False)
    held.add([Block(index, 2 * index + 1, 2 * index + 2) for index in range(5)])
    assert [(a.index, b.index) for a, b in held.runs()] == [(0, 4)]


def test_who_travels_alone_is_never_held() -> None:
    _, held = _held(18, alone=True)
    assert not held.waits
    assert all(first == last for first, last in held.runs())


def test_acknowledgements_that_leave_less_than_sixteen_in_flight_end_the_wait() -> None:
    credit, held = _held(18)
    assert held.waits
    credit.acknowledge(2)
    assert not held.waits


def test_whole_blocks_side_by_side_share_a_message_and_no_others() -> None:
    credit = CreditWindow(60, 50, 1, "stream", "block")
    held = SendCoalescer(credit, 2, 1, False)
    blocks = [Block(3, 1, 2), Block(4, 3, 4), Block(6, 5, 6), Block(7, 7, 7), Block(8, 8, 9), Block(0, 10, 11)]
    held.add(blocks)
    assert [(a.index, b.index) for a, b in held.runs()] == [(3, 4), (6, 6), (7, 7), (8, 8), (0, 0)]
    assert not held.runs()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, every block counts as a quick one; what seems lost is missed sooner."""
    monkeypatch.setattr(flow_control, "_QUICK", 1e9)
    monkeypatch.setattr(sender, "_RESEND_AFTER", 0.3)


def _sent(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many segments were in each message since."""
    outlet, counts, send = actor.sender._outlet, [], sender.send_nowait
    assert outlet is not None
    mine = outlet.socket

    def counted(socket: Any, frames: list[Any], copy: bool) -> None:
        if socket is mine:
            counts.append(len(frames[1]) // 64)
        send(socket, frames, copy)

    monkeypatch.setattr(sender, "send_nowait", counted)
    return counts


def _take_in(learner: Learner) -> None:
    learner.use()


@PATHS
@pytest.mark.usefixtures("endless")
def test_L4_many_blocks_in_few_messages_arrive_whole_in_order_and_once(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    actor, learner = Actor(memory_dir / RING, blocks=50, credits=40), Learner(pool=100)
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        sent = _sent(actor, monkeypatch)
        for _ in range(5):  # round the ring, so that a run is cut at its end
            actor.write(31)
            assert actor.counters[f"flight.{POLICY}"] == 31 * BLOCK
            assert actor.sender.drain(10, lambda: _take_in(learner))
        assert sent[:20] == [BLOCK] * 16 + [8 * BLOCK, 7 * BLOCK, BLOCK, BLOCK]
        assert sum(sent) == 5 * 31 * BLOCK
        assert [number for _, _, number in learner.got] == list(range(1, 5 * 31 * BLOCK + 1))
        assert learner.wrong == 0
        assert not any(learner.counters.snapshot().values())
        assert actor.counters[f"resent.{POLICY}"] == 0


@PATHS
@pytest.mark.usefixtures("endless")
def test_a_wait_for_credit_sends_what_is_held(memory_dir: Path, inline: bool) -> None:
    """Else writer and learner might wait for each other."""
    actor, learner = Actor(memory_dir / RING, blocks=22, credits=20), Learner(pool=40)
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        actor.write(21)  # the last one in the backlog
        assert len(actor.sender._held) == 4
        held: list[int] = []

        def on_wait() -> None:
            held.append(len(actor.sender._held))
            _take_in(learner)

        actor.sender.take(on_wait)
        assert held[0] == 0
        until(lambda: learner.uses(20 * BLOCK))
        assert learner.wrong == 0


@pytest.mark.usefixtures("endless")
def test_a_learner_that_is_found_anew_gets_what_was_held(memory_dir: Path) -> None:
    actor, first, second = Actor(memory_dir / RING, blocks=30, credits=24), Learner(), Learner(incarnation=2)
    with closing(actor, first, second):
        actor.sender.route(first.route, inline=False)
        actor.write(19)
        assert len(actor.sender._held) == 3
        actor.sender.route(second.route, inline=False)
        assert len(actor.sender._held) == 0
        until(lambda: second.uses(19 * BLOCK))
        assert [number for _, _, number in second.got] == list(range(1, 19 * BLOCK + 1))
