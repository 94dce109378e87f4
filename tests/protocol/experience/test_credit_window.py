"""Credit: a state machine that never loses a segment, nor hands out one that travels."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.errors import ConfigurationError
from protocol.experience.flow_control import Block, Bounds, CreditWindow, blocks_of
from protocol.transport.sockets import HIGH_WATER
from tests.faults import raises

Flow = Literal["block", "drop_oldest", "drop_newest"]
Mode = Literal["stream", "replay"]


class Books(RuleBasedStateMachine):
    """Plays a writer and a learner against `CreditWindow` and keeps books of its own."""

    @initialize(
        spare=st.integers(0, 4),
        credits=st.integers(1, 5),
        writers=st.integers(1, 3),
        segments=st.integers(1, 3),
        mode=st.sampled_from(["stream", "replay"]),
        flow=st.sampled_from(["block", "drop_oldest", "drop_newest"]),
    )
    def start(self, spare: int, credits: int, writers: int, segments: int, mode: Mode, flow: Flow) -> None:
        blocks = writers + credits + spare
        self.credit = CreditWindow(blocks, credits, writers, mode, flow)
        self.blocks, self.credits, self.writers = blocks, credits, writers
        self.segments, self.flow, self.mode = segments, flow, mode
        self.next = 1
        self.writing: set[int] = set()
        self.backlog: list[Block] = []
        self.flight: list[Block] = []
        self.acknowledged = 0
        self.dropped = 0
        self.settled = 0
        self.settled_at_finish: dict[int, int] = {}
        self.bounds = self.credit.bounds(segments)

    @precondition(lambda self: len(self.writing) < self.writers)
    @rule()
    def take(self) -> None:
        index = self.credit.take()
        if index is None:
            assert self.flow == "block"  # the others never wait
            assert len(self.flight) == self.credits or self.backlog
            return
        assert 0 <= index < self.blocks
        assert index not in self.writing
        assert index not in {block.index for block in self.flight}
        lost = [block for block in self.backlog if block.index == index]
        if lost:
            assert self.flow != "block"
            assert lost == [self.backlog[0 if self.flow == "drop_oldest" else -1]]
            self.backlog.remove(lost[0])
            self.dropped += lost[0].segments
        self.writing.add(index)

    @precondition(lambda self: self.writing)
    @rule(choice=st.integers(0, 5))
    def finish(self, choice: int) -> None:
        index = sorted(self.writing)[choice % len(self.writing)]
        self.writing.remove(index)
        block = Block(index, self.next, self.next + self.segments - 1)
        self.next += self.segments
        self.credit.finish(index, self.segments)
        self.backlog.append(block)
        self.settled_at_finish[block.last] = self.acknowledged

    @rule()
    def announce(self) -> None:
        before = self.flight[-1].last if self.flight else 0
        going = self.credit.announce()
        assert [(b.index, b.first, b.last) for b in going] == [
            (b.index, b.first, b.last) for b in self.backlog[: len(going)]
        ]
        assert [b.after for b in going] == [before, *(b.last for b in going)][: len(going)]
        del self.backlog[: len(going)]
        self.flight += going
        assert len(self.flight) <= self.credits
        assert not self.backlog or len(self.flight) == self.credits

    @rule(settled=st.integers(0, 60))
    def acknowledge(self, settled: int) -> None:
        settled = min(settled, self.credit.next - 1)  # a learner may have read in memory what was not announced
        while self.backlog and self.backlog[0].last <= settled:
            self.flight.append(self.backlog.pop(0))
        done = [block for block in self.flight if block.last <= settled]
        assert self.credit.acknowledge(settled) == len(done)
        self.flight = self.flight[len(done) :]
        self.settled = max(self.settled, settled)
        for block in done:
            assert self.acknowledged - self.settled_at_finish[block.last] <= self.bounds.behind
            self.acknowledged += block.segments

    @rule(beyond=st.integers(0, 60))
    def again(self, beyond: int) -> None:
        """Announced once more, in order, and such that a learner that knows what is settled, or nothing, takes all."""
        again = self.credit.again(beyond)
        assert [(b.index, b.last) for b in again] == [(b.index, b.last) for b in self.flight if b.last > beyond]
        if len(again) == len(self.flight):
            for known in {0, self.settled}:
                for block in again:
                    assert block.after <= known
                    known = block.last

    @rule()
    def acknowledge_everything(self) -> None:
        self.acknowledge(self.next - 1)

    @invariant()
    def every_finished_segment_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "credit"):
            return
        flight = self.credit.travelling
        assert flight == sum(block.segments for block in self.credit.flight) <= self.bounds.flight
        assert len(self.flight) <= self.bounds.messages
        assert self.credit.newest == (self.flight[-1].last if self.flight else 0)
        assert flight + self.credit.backlog + self.segments * len(self.writing) <= self.bounds.ring
        dropped = sum(self.credit.dropped.values())
        assert self.credit.flight == tuple(self.flight)
        assert self.credit.backlog == sum(block.segments for block in self.backlog)
        assert dropped == self.dropped
        assert self.credit.backlog + flight + self.acknowledged + dropped == self.next - 1
        assert self.credit.idle == (not self.backlog and not self.flight)
        if self.flow == "block":
            assert dropped == 0

    @invariant()
    def as_long_as_acknowledgements_come_it_goes_on(self) -> None:
        """No state is a dead end: a writer that waits gets a block after all that travels was settled."""
        if not hasattr(self, "credit") or len(self.writing) == self.writers:
            return
        twin = copy.deepcopy(self.credit)
        for _ in range(self.blocks + 1):
            twin.announce()
            if twin.take() is not None:
                return
            twin.acknowledge(twin.newest)
        raise AssertionError("a writer waits for ever")

    @invariant()
    def only_the_cause_of_the_flow_is_counted(self) -> None:
        if not hasattr(self, "credit"):
            return
        cause = {"block": None, "drop_oldest": "overwritten", "drop_newest": "no_credit"}[self.flow]
        assert all(count == 0 for name, count in self.credit.dropped.items() if name != cause)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def _run(credit: CreditWindow, count: int) -> list[int]:
    """Writes and announces `count` blocks of one segment; the numbers that were announced."""
    announced = []
    for _ in range(count):
        index = credit.take()
        if index is None:
            break
        credit.finish(index, 1)
        announced += [block.first for block in credit.announce()]
    return announced


def test_flow_block_waits_when_all_credits_travel_and_goes_on_when_one_returns() -> None:
    credit = CreditWindow(4, 2, 1, "stream", "block")
    assert _run(credit, 9) == [1, 2]
    assert credit.take() is None
    assert credit.backlog == 1
    assert credit.acknowledge(1) == 1
    assert [block.first for block in credit.announce()] == [3]
    assert credit.take() is not None
    assert credit.dropped == {"overwritten": 0, "no_credit": 0}


@pytest.mark.parametrize(
    ("flow", "announced", "cause"), [("drop_oldest", [8, 9], "overwritten"), ("drop_newest", [3, 9], "no_credit")]
)
def test_the_dropping_flows_never_wait_and_count_what_they_drop(flow: Flow, announced: list[int], cause: str) -> None:
    credit = CreditWindow(4, 2, 1, "stream", flow)
    assert _run(credit, 9) == [1, 2]
    credit.acknowledge(2)
    assert [block.first for block in credit.announce()] == announced
    assert credit.dropped[cause] == 5


def test_a_block_without_a_segment_is_free_again_and_takes_no_number() -> None:
    credit = CreditWindow(4, 2, 1, "stream", "block")
    assert credit.take() == 0
    credit.finish(0, 0)
    assert (credit.take(), credit.idle, credit.next) == (0, True, 1)


def test_an_acknowledgement_within_a_block_frees_nothing() -> None:
    credit = CreditWindow(4, 2, 1, "stream", "block")
    credit.take()
    credit.finish(0, 4)
    credit.announce()
    assert credit.acknowledge(3) == 0
    assert credit.acknowledge(4) == 1
    assert credit.acknowledge(4) == 0


def test_B2_replay_overwrites_its_oldest_block() -> None:
    """B2: and only once every other one was used, so that as much as possible can be sampled."""
    credit = CreditWindow(6, 1, 1, "replay", "block")
    order = []
    for number in range(1, 15):
        index = credit.take()
        assert index is not None
        order.append(index)
        credit.finish(index, 1)
        credit.announce()
        credit.acknowledge(number)
    assert order == [*range(6), *range(6), 0, 1]


@pytest.mark.parametrize(
    ("blocks", "credits", "writers"), [(1, 1, 1), (3, 2, 3), (3, 3, 1), (4, 0, 1), (4, -1, 1), (0, 1, 0)]
)
def test_U6_sizes_that_would_deadlock_are_refused_with_the_remedy(blocks: int, credits: int, writers: int) -> None:
    """U6."""
    with raises(ConfigurationError, "credits_would_deadlock", key="policy.credits"):
        CreditWindow(blocks, credits, writers, "stream", "block")


def test_Z2_credits_that_could_fill_a_socket_are_refused_with_the_reason() -> None:
    """Z2: so no queue ever reaches the mark beyond which messages are lost."""
    CreditWindow(HIGH_WATER, HIGH_WATER - 1, 1, "stream", "block")
    with raises(ConfigurationError, "credits_exceed_socket_queue", credits=HIGH_WATER, limit=HIGH_WATER):
        CreditWindow(HIGH_WATER + 1, HIGH_WATER, 1, "stream", "block")


def test_U6_credits_are_whole_messages_or_refused() -> None:
    """U6: nobody gets fewer than asked for without a word."""
    assert blocks_of(128, 64) == 2
    with raises(ConfigurationError, "credits_not_a_multiple", credits=10, segments=64, choices=64):
        blocks_of(10, 64)
    with raises(ConfigurationError, "credits_not_a_multiple", credits=100, segments=64, choices="64 or 128"):
        blocks_of(100, 64)


def test_what_can_be_held_up_is_arithmetic() -> None:
    assert CreditWindow(5, 2, 1, "stream", "block").bounds(64) == Bounds(messages=2, flight=128, ring=320, behind=256)
