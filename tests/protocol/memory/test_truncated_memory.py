"""Shared memory that another process makes shorter while it is in use is refused; reading it would end the process."""

from __future__ import annotations

from pathlib import Path

from tests.protocol.parts import python

RINGS = """
import os, sys
from pathlib import Path
from protocol.errors import SharedMemoryError
from tests.protocol.parts import BLOCK, POLICY, Actor, Learner, closing
from tests.waiting import until

path = Path(sys.argv[1]) / "rookery-run1-actor-0.1-gem.ring"
for size in (0, 4096, 6000):
    learner, actor = Learner(), Actor(path)
    with closing(learner, actor):
        actor.sender.route(learner.route, inline=False)
        actor.write(1)
        until(lambda: learner.uses(BLOCK))
        actor.write(2)
        until(lambda: learner.listen() or learner.receiver.arrivals(POLICY))
        arrival = learner.receiver.arrivals(POLICY).popleft()
        os.truncate(path, size)
        with arrival.ring.reading():
            copies = [column.copy() for column in arrival.ring.columns.values()]
        print("intact", arrival.ring.intact(arrival.records).any())
        try:
            actor.write(1)
        except SharedMemoryError as fault:
            print("writer", fault.kind)
        try:
            learner.receiver._intakes[POLICY].rings["actor-0", 1].check_whole()
        except SharedMemoryError as fault:
            print("reader", fault.kind)
"""

LEFT = """
import os, sys
from pathlib import Path
from protocol.errors import SharedMemoryError
from tests.protocol.parts import BLOCK, Actor, Learner, closing, write
from tests.waiting import until

path = Path(sys.argv[1]) / "rookery-run1-actor-0.1-gem.ring"
for size in (0, 4096, 6000):
    learner, actor = Learner(), Actor(path)
    with closing(learner, actor):
        actor.sender.route(learner.route, inline=False)
        actor.write(3)
        learner.receiver.living({("actor-0", 1)})
        until(lambda: learner.uses(3 * BLOCK))
        os.truncate(path, size)
        learner.receiver.living(set())
        print("left", learner.use(), *learner.receiver._guard.refusals.counters())
    waiting, waited = Actor(path), []
    with closing(waiting):
        waiting.write(1)

        def wait():
            assert not waited
            waited.append(os.truncate(path, size))

        try:
            write(waiting.sender, 3, wait)
        except SharedMemoryError as fault:
            print("writer", fault.kind)
"""

COMMON = """
import os, sys
from pathlib import Path
from protocol.errors import SharedMemoryError
from tests.protocol.experience.test_shared_obs import Reader, Writers, closing
from tests.waiting import until

for size in (0, 4096, 9000):
    learner, actor = Reader(), Writers(Path(sys.argv[1]))
    with closing(learner, actor):
        actor.route(learner, inline=False)
        actor.write()
        until(lambda: learner.receiver.receive() * 0 or learner.receiver.arrivals("gem"))
        arrival = learner.receiver.arrivals("gem").popleft()
        actor.write()
        os.truncate(actor.common.ring.path, size)
        moment = arrival.ring.columns["moment"][arrival.records["slot"]]
        print("there", arrival.common.rows(moment, arrival.records["stream"])[1].any())
        until(lambda: learner.receiver.receive() * 0 or learner.counters["quarantined_messages"])
        print("reader", *learner.receiver._guard.refusals.counters())
        try:
            actor.write()
        except SharedMemoryError as fault:
            print("writer", fault.kind)
"""

WEIGHTS = """
import os, sys
from pathlib import Path
from protocol.weights.manifest import Version
from tests.protocol.weights.test_publisher import Publisher, Subscriber

path = Path(sys.argv[1]) / "rookery-run1-gem.weights"
for size, mode in ((0, "snapshot"), (4096, "double_buffer"), (60_000, "snapshot")):
    learner, actor = Publisher(path, mode=mode), Subscriber("memory")
    actor.subscriber.route(learner.route)
    learner.publish(1)
    actor.get(learner, Version(1, 1))
    learner.publish(2)
    os.truncate(path, size)
    print("new", actor.sync(), actor.subscriber.wait(actor.out, 0.02, lambda: None, actor.have))
    print("learner", learner.publisher._policies["gem"].mailbox.read(actor.out, 0))
    print("told", *actor.subscriber._subscription.refusals.counters())
    for number in (3, 4):
        learner.publish(number)
        actor.get(learner, Version(1, number))
    actor.close()
    learner.close()
"""


def said(code: str, folder: Path) -> list[str]:
    """The lines of a process that does this thrice and lives."""
    with python(code, folder) as process:
        lines, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return lines.splitlines()


def test_a_ring_that_was_made_shorter_is_refused_and_kills_nobody(memory_dir: Path) -> None:
    seen = ["intact False", "writer shared_memory_truncated", "reader shared_memory_truncated"]
    assert said(RINGS, memory_dir) == 3 * seen


def test_a_ring_that_nobody_looked_at_meanwhile_kills_no_learner_and_keeps_no_actor_waiting(memory_dir: Path) -> None:
    """An actor that died of it has left it behind; of one that waits for credit its learner takes nothing more."""
    seen = ["left 0 refusals.message_refused.shared_memory_truncated", "writer shared_memory_truncated"]
    assert said(LEFT, memory_dir) == 3 * seen


def test_common_observations_that_were_made_shorter_are_refused_and_kill_nobody(memory_dir: Path) -> None:
    refused = "reader refusals.message_refused.shared_memory_truncated"
    assert said(COMMON, memory_dir) == 3 * ["there False", refused, "writer shared_memory_truncated"]


def test_weights_that_were_made_shorter_are_taken_once_their_learner_has_published_again(memory_dir: Path) -> None:
    told = "told refusals.weights_damaged.shared_memory_truncated"
    assert said(WEIGHTS, memory_dir) == 3 * ["new False None", "learner None", told]
