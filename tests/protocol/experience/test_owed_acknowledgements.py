"""Acknowledgements that are owed for a moment: nobody who waits for credit waits for one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from protocol.experience import ack_publisher
from protocol.experience.ack_publisher import Window
from tests.protocol.parts import BLOCK, POLICY, Actor, Learner, closing, write
from tests.waiting import until

RING = "rookery-run1-actor-0.1-gem.ring"
PATHS = pytest.mark.parametrize("inline", [False, True], ids=["memory", "inline"])


def _take_in(learner: Learner) -> bool:
    """Receives, copies and settles, and does nothing that tells what is owed; False, so that `until` goes on."""
    receiver = learner.receiver
    receiver.receive()
    arrivals = receiver.arrivals(POLICY)
    while arrivals:
        arrival = arrivals.popleft()
        if arrival.owned:
            receiver.release(POLICY, arrival.records["slot"])
        receiver.acknowledge(POLICY, arrival, int(arrival.records["number"][-1]), len(arrival.records))
        learner.got += [(arrival.actor, 1, int(number)) for number in arrival.records["number"]]
    return False


def _listened_to(learner: Learner) -> bool:
    acks = learner.receiver._acks
    acks.subscriptions()
    return bool(acks.listeners.get(POLICY))


def _idle(actor: Actor) -> bool:
    actor.sender.pump()
    return actor.sender._credit.idle


@pytest.mark.parametrize(("credits", "inline"), [(1, False), (1, True), (2, False), (3, True), (8, False)])
def test_an_actor_that_waits_for_credit_never_waits_for_what_is_owed(
    memory_dir: Path, inline: bool, credits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small its window is, and though the learner never gets to a beacon: each wait is ended by the
    settlement alone."""
    monkeypatch.setattr(ack_publisher, "_BEACON_SECONDS", 1e9)
    actor = Actor(memory_dir / RING, blocks=credits + 1, credits=credits)
    learner = Learner(pool=40, window=Window(credits, credits * BLOCK))
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        until(lambda: _listened_to(learner))
        end = time.monotonic() + 100

        def on_wait() -> None:
            assert time.monotonic() < end, "waits for an acknowledgement that nobody sends"
            _take_in(learner)

        for number in range(1, 40 * BLOCK, BLOCK):
            write(actor.sender, number, on_wait)
            if number % 3:
                _take_in(learner)
        until(lambda: _take_in(learner) or _idle(actor) or len(learner.got) == 40 * BLOCK)


@PATHS
def test_while_there_is_plenty_of_credit_many_settlements_are_one_acknowledgement(
    memory_dir: Path, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    actor = Actor(memory_dir / RING, blocks=24, credits=20)
    learner = Learner(pool=60, window=Window(20, 20 * BLOCK))
    with closing(actor, learner):
        acks = learner.receiver._acks
        send = acks.send

        def count(policy: str, key: tuple[str, int]) -> None:
            told.append(key[1])
            send(policy, key)

        monkeypatch.setattr(acks, "send", count)
        actor.sender.route(learner.route, inline)
        until(lambda: _listened_to(learner))
        told.clear()
        for number in range(1, 9 * BLOCK, BLOCK):
            write(actor.sender, number)
            until(lambda: _take_in(learner) or len(learner.got) == number + 1)  # noqa: B023
        assert len(told) == 0
        assert learner.receiver._intakes[POLICY].ledger.entries() == {("actor-0", 1): 9 * BLOCK}
        learner.receiver.flush_acks()
        assert len(told) == 1
        until(lambda: _idle(actor))
        learner.receiver.flush_acks()
        assert len(told) == 1
        for number in range(9 * BLOCK + 1, 19 * BLOCK, BLOCK):
            write(actor.sender, number)
            until(lambda: _take_in(learner) or len(learner.got) == number + 1)  # noqa: B023
        assert len(told) == 2, "half of the window"


@PATHS
def test_whoever_waits_until_all_is_settled_is_told_by_the_next_beacons(
    memory_dir: Path, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only by the one of the next second, which does not come here."""
    actor = Actor(memory_dir / RING, blocks=24, credits=20)
    learner = Learner(pool=60, window=Window(20, 20 * BLOCK))
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        until(lambda: _listened_to(learner))
        learner.receiver.beacon(time.monotonic())
        monkeypatch.setattr(ack_publisher, "_BEACON_SECONDS", 1e9)
        write(actor.sender, 1)
        until(lambda: _take_in(learner) or learner.receiver._acks._owed)

        def told() -> bool:
            learner.receiver.beacon(time.monotonic())
            return _idle(actor)

        until(told)
