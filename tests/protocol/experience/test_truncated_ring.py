"""A ring that another process makes shorter while it is in use is refused; reading it would end the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.parts import python

LEARNER = """
import os, sys
from pathlib import Path
from protocol.errors import SharedMemoryError
from tests.protocol.parts import BLOCK, POLICY, Actor, Learner, closing
from tests.waiting import until

path, size = Path(sys.argv[1]), int(sys.argv[2])
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
        learner.receiver.rings(POLICY)["actor-0", 1].check_whole()
    except SharedMemoryError as fault:
        print("reader", fault.kind)
"""


@pytest.mark.parametrize("size", [0, 4096, 6000])
def test_a_ring_that_was_made_shorter_is_refused_and_kills_nobody(memory_dir: Path, size: int) -> None:
    with python(LEARNER, memory_dir / "rookery-run1-actor-0.1-gem.ring", size) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.split("\n") == [
        "intact False",
        "writer shared_memory_truncated",
        "reader shared_memory_truncated",
        "",
    ]
