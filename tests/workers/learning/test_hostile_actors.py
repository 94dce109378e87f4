"""One actor that is buggy or hostile spoils its own segments alone: they are refused under its name, whatever way they
came, and those of others are trained on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zmq

from protocol.config.run import IQN, PPO, Run
from protocol.errors import TrainingFault
from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.memory.shared_file import PREFIX, Counters
from protocol.messages.core import Route
from protocol.transport.sockets import Ports
from protocol.weights.manifest import Version, pack, unpack
from tests.faults import kinds_in, raises, words_in
from tests.protocol.parts import RUN, SECRET, identity
from tests.waiting import until
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import COPIES, run_of
from workers.learning.buffers.segment_check import LARGEST
from workers.learning.lockstep_learner import LockstepLearner
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.report import LearnerReport
from workers.metrics.diagnostics import findings_of
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.rollout.report import ActorReport

LENGTH, ROUNDS = 4, 8
STREAM = PPO(epochs=1, minibatches=1, segments=2 * COPIES, normalize_return=False)
REPLAY = IQN(batch_size=8, learning_starts=8, buffer_capacity=1_000, replay_ratio=8.0, n_step=1)
FUTURE = np.uint64(pack(Version(1, 10**9)))
Spoil = Callable[[Ring, int], None]
"""What becomes of a segment before it is announced."""


def put(name: str, value: Any, row: Any = slice(0, LENGTH)) -> Spoil:
    """Writes `value` to rows of a column."""

    def spoil(ring: Ring, slot: int) -> None:
        ring.columns[name][slot, row] = value

    return spoil


def made(oldest: int, newest: int) -> Spoil:
    """Says that rows were made by such versions."""

    def spoil(ring: Ring, slot: int) -> None:
        ring.table["version_min"][slot], ring.table["version_max"][slot] = oldest, newest

    return spoil


HERE = pack(Version(1, 1))


def rows_of_the_future(ring: Ring, slot: int) -> None:
    """Though the record says nothing of it."""
    made(HERE - 1, HERE)(ring, slot)
    put("version", FUTURE)(ring, slot)


THEN = "{}.{}".format(*unpack(int(FUTURE)))
SPOILT: dict[str, tuple[Spoil, str, set[str]]] = {
    "cut without its last observation": (put("truncated", True, 1), "segment_last_observation_missing", set()),
    "huge reward": (put("reward", 3e38), "segment_field_too_large", {"'reward'", "3e+38", f"{LARGEST:g}"}),
    "huge observation": (
        put("observation", -3e38, 2),
        "segment_field_too_large",
        {"'observation'", "3e+38", f"{LARGEST:g}"},
    ),
    "no number": (put("value", np.nan), "segment_field_not_finite", {"'value'"}),
    "from the future": (made(HERE, int(FUTURE)), "segment_version_not_published", {THEN, "1.1"}),
    "with rows from the future": (rows_of_the_future, "segment_version_not_published", {THEN, "1.1"}),
    "older than its oldest row": (made(HERE, HERE - 1), "segment_versions_reversed", set()),
}
"""And the kind and facts of why it is refused: the field, the value and the limit."""


class Hand:
    """In place of an actor's sender: spoils the second segment of each block before it is finished."""

    def __init__(self, sender: ExperienceSender, spoil: Spoil | None) -> None:
        self.sender, self.ring, self._spoil = sender, sender.ring, spoil

    def take(self, on_wait: Callable[[], None]) -> slice:
        return self.sender.take(on_wait)

    def finish(self, slots: slice, valid: Any, before: Any) -> None:
        if self._spoil is not None:
            self._spoil(self.ring, slots.start + 1)
        self.sender.finish(slots, valid, before)


class Scene:
    """A learner's receiver and member, and actors that reach it one way or the other."""

    def __init__(self, stack: ExitStack, memory: Path, way: str, run: Run) -> None:
        self._stack, self._memory, self._way = stack, memory, way
        self.senders: dict[str, tuple[ExperienceSender, Counters]] = {}
        self._later = time.monotonic()
        self.plan: PolicyPlan = plan_policies(run, scripted.WORLD)["one"]
        self.counters = Counters(None, *LearnerReport.names(["one"]))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        stack.callback(self._context.destroy, linger=0)
        ports = Ports(self._context, "127.0.0.1", 0)
        stack.callback(ports.close)
        addresses = ports.bind({1: zmq.PULL, 3: zmq.XPUB})
        self._route = Route(
            policy="one",
            learner="l",
            incarnation=1,
            experience=addresses[1],
            weights="tcp://127.0.0.1:1",
            acknowledgements=addresses[3],
        )
        self.receiver = ExperienceReceiver(ports.sockets[1], ports.sockets[3], RUN, SECRET, 1, self.counters)
        stack.callback(self.receiver.close)
        self.ledger = ReceiptLog(None)
        self.receiver.add_policy("one", self.plan.layout, self.ledger, 80, self.plan.check)
        context = LearnerContext(run, 1, torch.device("cpu"), self.counters, lambda *_: None)
        kind = LockstepLearner if run.lockstep else PolicyLearner
        self.member = kind(self.plan, 1.0, self.receiver, context)
        self.member.resume(None, Version(0, 0))

    def actor(self, name: str, spoil: Spoil | None = None) -> Callable[[], None]:
        """Something that plays one segment in each copy."""
        path = self._memory / f"{PREFIX}{RUN}-{name}.1-one.ring" if self._way == "memory" else None
        sender = ExperienceSender(
            ConnectionPool(self._context),
            identity(name),
            "one",
            Ring.create(path, self.plan.layout, 12 * COPIES),
            CreditWindow(12, 10, 1, "stream", "block"),
            counters := Counters(None, *ActorReport.names(["one"])),
        )
        self.senders[name] = sender, counters
        self._stack.callback(sender.ring.remove)
        self._stack.callback(sender.close)
        sender.route(self._route, inline=self._way == "tcp")
        hand: Any = Hand(sender, spoil)
        seat, turns = scripted.seat(hand, scripted.Performer(), COPIES), iter(range(1_000))
        seat.act(scripted.present(next(turns), COPIES), scripted.never)

        def play() -> None:
            for _ in range(LENGTH):
                seat.act(scripted.present(next(turns), COPIES), scripted.never)

        return play

    def tell_refusals(self) -> dict[str, float]:
        """Of each actor those that it has heard of."""
        self._later += 10
        self.receiver.beacon(self._later)
        for sender, _ in self.senders.values():
            sender.pump()
        return {name: counters["refused_messages.one"] for name, (_, counters) in self.senders.items()}

    def settle(self, count: int) -> None:
        """Receives and learns until `count` segments are settled."""

        def settled() -> bool:
            self.receiver.receive()
            while self.member.step():
                pass
            return sum(self.ledger.counts().values()) == count

        until(settled)


@pytest.fixture
def stack(memory_dir: Path) -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("way", ["tcp", "memory"])
@pytest.mark.parametrize("fault", SPOILT)
def test_whoever_spoils_segments_loses_these_alone(
    stack: ExitStack, memory_dir: Path, caplog: pytest.LogCaptureFixture, fault: str, way: str
) -> None:
    """They are settled and in the books, and the log names the actor and the reason once."""
    caplog.set_level(logging.WARNING)
    spoil, kind, facts = SPOILT[fault]
    scene = Scene(stack, memory_dir, way, run_of(STREAM))
    honest, buggy = scene.actor("honest"), scene.actor("buggy", spoil)
    for turn in range(1, ROUNDS + 1):
        buggy()
        honest()
        scene.settle(2 * COPIES * turn)
    received, refused = 2 * COPIES * ROUNDS, ROUNDS
    updates = (received - refused) // (2 * COPIES)
    count = scene.counters
    assert (count["received.one"], count["rejected.one"]) == (received, refused)
    assert (count["trained.one"], count["train_steps.one"]) == (updates * 2 * COPIES, updates)
    assert (count["held.one"], updates * 2 * COPIES) == (0, received - refused), "the last batch was whole"
    assert scene.ledger.counts() == {(name, 1): COPIES * ROUNDS for name in ("honest", "buggy")}
    told = [entry.message for entry in caplog.records if "event=segments_refused" in entry.message]
    (why,) = [line for line in told if "actor=buggy" in line]
    assert kinds_in(why) == [kind]
    assert facts <= words_in(why)
    until(lambda: scene.tell_refusals() == {"honest": 0, "buggy": ROUNDS}, what="the actor itself is told")
    assert 0 <= count["lag_max.one"] <= updates
    assert count["quarantined_messages"] == 0
    found = findings_of(["one"], {("learner", 1): count.snapshot()})
    assert "segments_refused" in {one["finding"] for one in found} <= {"segments_refused", "memory_disagrees"}


@pytest.mark.parametrize(("value", "rejected"), [(1e15, 0), (1e17, 1)])
def test_a_value_may_be_the_sum_of_thousands_of_rewards(
    stack: ExitStack, memory_dir: Path, value: float, rejected: int
) -> None:
    """An honest actor expects so much where others' largest rewards were learned."""
    scene = Scene(stack, memory_dir, "tcp", run_of(STREAM))
    honest, hopeful = scene.actor("honest"), scene.actor("hopeful", put("value", value))
    hopeful()
    honest()
    scene.settle(2 * COPIES)
    assert scene.counters["rejected.one"] == rejected
    assert scene.counters["train_steps.one"] == 1 - rejected


@pytest.mark.parametrize("way", ["tcp", "memory"])
def test_what_was_refused_is_never_replayed(stack: ExitStack, memory_dir: Path, way: str) -> None:
    scene = Scene(stack, memory_dir, way, run_of(REPLAY))
    honest, buggy = scene.actor("honest"), scene.actor("buggy", put("reward", -3e38))
    for turn in range(1, 3):
        buggy()
        honest()
        scene.settle(2 * COPIES * turn)
    replay, count = scene.member._replay, scene.counters
    assert replay is not None
    assert (replay.rows, count["rejected.one"]) == ((4 * COPIES - 2) * LENGTH, 2)
    assert count["received.one"] == 4 * COPIES == count["trained.one"] + count["held.one"] + count["rejected.one"]


def test_a_bound_may_be_lower_for_who_knows_the_world(stack: ExitStack, memory_dir: Path) -> None:
    scene = Scene(stack, memory_dir, "memory", run_of(STREAM, largest_number=20.0))
    play = scene.actor("honest")  # copies 2 and 3 earn 20 and more
    for turn in (1, 2):
        play()
        scene.settle(COPIES * turn)
    assert (scene.counters["rejected.one"], scene.counters["held.one"]) == (COPIES, COPIES)


def test_in_lock_step_a_segment_that_is_refused_ends_the_learner(stack: ExitStack, memory_dir: Path) -> None:
    """Its round would be waited for without end."""
    run = run_of(PPO(epochs=1, minibatches=2)).model_copy(update={"schedule": "lockstep", "act_block": COPIES})
    scene = Scene(stack, memory_dir, "memory", run)
    scene.actor("buggy", put("reward", np.inf))()
    with raises(TrainingFault, "lockstep_segment_refused", policy="one"):
        scene.settle(COPIES)


def test_a_chance_that_nobody_can_have_had_gives_a_finite_update(stack: ExitStack, memory_dir: Path) -> None:
    """How often an action is chosen now, against e^-1000000 then, is no number."""
    scene = Scene(stack, memory_dir, "memory", run_of(STREAM))
    honest, liar = scene.actor("honest"), scene.actor("liar", put("log_probability", -1e6))
    for turn in range(1, 4):
        liar()
        honest()
        scene.settle(2 * COPIES * turn)
    count = scene.counters
    assert (count["trained.one"], count["rejected.one"], count["health.loss_not_finite.one"]) == (6 * COPIES, 0, 0)
