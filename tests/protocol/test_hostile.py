"""Whoever sends a learner what it should not is refused, counted and told once; everybody else is served."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from protocol.experience import policy_inbox
from protocol.experience.ack_publisher import ack_topic
from protocol.experience.proof import ProofCheck, proof_of
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.ring_buffer import Ring
from protocol.experience.validation import ActionCheck
from protocol.memory.shared_file import PREFIX, memory_dir
from protocol.messages.codec import decode, encode
from protocol.messages.core import Ack
from tests.faults import kinds_in
from tests.protocol.golden_vectors import LAYOUT, PROOF, RUN, SECRET, WORLD, columns, messages, record
from tests.protocol.parts import Learner
from tests.waiting import until

POLICY = "gem"


class Stranger:
    """Sends changed golden segments to a learner whose policy has two actions and a pool of two slots."""

    def __init__(self) -> None:
        self.learner = Learner(layout=LAYOUT)
        self.receiver = self.learner.receiver
        self.receiver._proven = ProofCheck(SECRET, RUN)
        self.receiver.add_policy(POLICY, LAYOUT, ReceiptLog(None), 2, ActionCheck(WORLD.places[0]))
        self._push = self.learner.context.socket(zmq.PUSH)
        self._push.connect(self.learner.addresses[1])

    @property
    def refused(self) -> int:
        return int(self.learner.counters["quarantined_messages"])

    def send(
        self, number: int = 1, actor: str = "actor-0", incarnation: int = 1, proof: str = PROOF, **changes: Any
    ) -> None:
        who = {"actor": actor, "incarnation": incarnation, "proof": proof}
        header = messages()["segments-inline"][0].model_copy(update={"policy": POLICY, **who})
        one = record()
        one["number"] = number
        found = columns()
        for name, value in changes.items():
            found[name][0] = value
        self._push.send_multipart([encode(header), one.tobytes(), *(column.tobytes() for column in found.values())])

    def announces(self, ring: Ring, number: int, proof: str = PROOF) -> None:
        """One segment in memory."""
        where = {"inline": False, "ring": str(ring.path), "nonce": ring.nonce, "proof": proof}
        one = record()
        one["number"], one["slot"] = number, 0
        header = messages()["segments-inline"][0].model_copy(update={"policy": POLICY, **where})
        self._push.send_multipart([encode(header), one.tobytes()])

    def receives(self) -> int:
        """Takes in what comes, once something does."""
        until(lambda: self.learner.ports.sockets[1].poll(0))
        return self.receiver.receive()

    def close(self) -> None:
        self._push.close(linger=0)
        self.learner.close()


@pytest.fixture
def stranger(memory_dir: object) -> Iterator[Stranger]:
    made = Stranger()
    yield made
    made.close()


def test_Z4_what_cannot_be_is_refused_and_the_next_segment_taken_H1(
    stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    """Z4: the log says once of each what was wrong and where it came from."""
    caplog.set_level(logging.WARNING)
    wrong: list[dict[str, Any]] = [{"action": [1, 2, 0]}, {"action": [1, 2, 0]}]
    for changes in wrong:
        stranger.send(**changes)
        assert stranger.receives() == 0
    stranger.send(action=[1, 0, np.iinfo(np.int64).min])  # the last row holds no action
    assert stranger.receives() == 1
    assert stranger.refused == 2
    (action,) = (entry.message for entry in caplog.records if "event=message_refused" in entry.message)
    assert action.startswith("event=message_refused host=127.0.0.1 reason=")
    assert kinds_in(action) == ["segment_action_outside_space"]
    assert "0..1" in action


def test_a_number_beyond_what_an_actor_can_have_made_does_not_make_its_own_ones_old(stranger: Stranger) -> None:
    stranger.receiver.add_policy(POLICY, LAYOUT, ReceiptLog(None), 2, ActionCheck(WORLD.places[0]), most=40)
    stranger.send(41)
    assert (stranger.receives(), stranger.refused) == (0, 1)
    assert set(stranger.learner.receiver._guard.refusals.counters()) == {
        "refusals.message_refused.segment_number_too_large"
    }
    stranger.send(1)
    assert stranger.receives() == 1
    stranger.send(40)
    assert (stranger.receives(), stranger.refused) == (1, 1)


@pytest.mark.parametrize(
    ("actor", "incarnation", "proof"),
    [
        ("actor-1", 1, PROOF),  # that of another actor
        ("actor-0", 2, PROOF),  # an incarnation before it is granted
        ("actor-0", 2, PROOF.replace("1.", "2.", 1)),
        ("actor-0", 1, "1.00"),
        ("actor-0", 1, "\u00b2." + PROOF[2:]),
        ("actor-0", 1, "9" * 128),
    ],
)
def test_nobody_announces_in_anothers_name(
    stranger: Stranger, caplog: pytest.LogCaptureFixture, actor: str, incarnation: int, proof: str
) -> None:
    """Not even under a number that would make all that the other one sends a repetition."""
    stranger.send(1)
    assert stranger.receives() == 1
    stranger.send(10**9, actor, incarnation, proof)
    assert stranger.receives() == 0
    assert kinds_in(caplog.text) == ["segments_not_proven"]
    assert stranger.receiver._intakes[POLICY].announced == {("actor-0", 1): 1}
    stranger.send(2)
    assert stranger.receives() == 1


def test_whoever_comes_after_an_actor_may_send_what_that_one_left(stranger: Stranger) -> None:
    stranger.send(1, "actor-0", 1, proof_of(SECRET, RUN, "actor-0", 3))
    assert stranger.receives() == 1


def test_of_an_incarnation_that_is_gone_nothing_is_kept_but_what_was_settled(stranger: Stranger) -> None:
    """However many there were, each with a reason and with what it had in flight."""
    for incarnation in (1, 2):
        stranger.send(1, "actor-0", incarnation, proof_of(SECRET, RUN, "actor-0", 2))
        stranger.receives()
        stranger.send(2, "actor-0", incarnation, proof_of(SECRET, RUN, "actor-0", 2), action=[1, 2, 0])
        stranger.receives()
    acks = stranger.receiver._acks
    assert {key for _, key in acks._refused} == {("actor-0", 1), ("actor-0", 2)}
    stranger.receiver.living({("actor-0", 2)})
    assert {key for _, key in acks._refused} == {("actor-0", 2)}
    assert stranger.receiver._intakes[POLICY].announced == {("actor-0", 1): 1, ("actor-0", 2): 1}


def test_a_refused_actor_learns_why_and_not_of_what_others_sent_in_its_name(stranger: Stranger) -> None:
    acks = stranger.learner.context.socket(zmq.SUB)
    acks.subscribe(ack_topic(POLICY, "actor-0", 1))
    acks.connect(stranger.learner.addresses[3])
    until(lambda: stranger.learner.listen() or acks.poll(0))
    for _ in range(2):
        stranger.send(1, action=[1, 2, 0])
        stranger.receives()
    stranger.send(1, "actor-0", 1, "1.guessed", action=[1, 2, 0])
    stranger.receives()
    stranger.send(1)
    assert stranger.receives() == 1
    stranger.learner.receiver._acks.send(POLICY, ("actor-0", 1))
    found: list[Ack] = []

    def heard() -> bool:
        ack, _ = decode(acks.recv_multipart()[1:])
        assert isinstance(ack, Ack)
        found.append(ack)
        return ack.announced == 1

    until(heard)
    acks.close(linger=0)
    assert found[0].refused == 0
    assert found[0].reason == ""
    assert found[-1].refused == 2
    assert kinds_in(found[-1].reason) == ["segment_action_outside_space"]
    assert stranger.refused == 3


def test_segments_far_beyond_the_credit_are_refused_before_memory_ends(stranger: Stranger) -> None:
    """They were not announced then, so that an honest sender would announce them again."""
    for number in range(1, 21):
        stranger.send(number)
        stranger.receives()
    assert stranger.refused == 20 - 2 - 9  # in the pool, waiting for room until there are more than four pools
    taken = stranger.receiver.arrivals(POLICY).popleft()
    stranger.receiver.release(POLICY, taken.records["slot"])
    stranger.send(12)
    stranger.receives()
    stranger.send(12)
    stranger.receives()
    assert stranger.receiver._intakes[POLICY].announced == {("actor-0", 1): 12}


def test_one_actor_has_a_few_rings_attached_however_many_it_names(stranger: Stranger) -> None:
    """Each takes descriptors, of which a process has a thousand; those that nobody copies from make room again."""
    inbox = stranger.receiver._intakes[POLICY]
    inbox.check = None
    rings = [Ring.create(memory_dir() / f"{PREFIX}{RUN}-{number}.ring", LAYOUT, 1) for number in range(10)]
    for ring in rings:
        ring.columns["final_row"][:] = -1
    for number in range(1, 101):
        stranger.announces(rings[number % 10], number)
        stranger.receives()
    assert len(inbox.left) + len(inbox.rings) == policy_inbox._RINGS
    assert set(stranger.receiver._guard.refusals.counters()) == {"refusals.message_refused.rings_too_many"}
    stranger.receiver.living({("actor-0", 1)})
    inbox.arrivals.clear()
    stranger.receiver.let_go(POLICY, lambda _: False)
    stranger.announces(rings[1], 101)
    assert stranger.receives() == 1
    for ring in rings:
        ring.remove()


def test_who_announces_what_is_refused_in_memory_is_not_heard_either(stranger: Stranger) -> None:
    """What is only repeated may be a relay's, for many actors."""
    ring = Ring.create(memory_dir() / f"{PREFIX}{RUN}-1.ring", LAYOUT, 1)
    ring.columns["final_row"][:] = -1
    stranger.receiver._intakes[POLICY].check = None

    def muted() -> bool:
        for _ in range(20):
            stranger.announces(ring, 1, "1.guessed")
        stranger.receiver.receive()
        return "refusals.connection_muted.in_vain" in stranger.learner.ports.guard.refusals.counters()

    until(muted)
    ring.remove()
