"""What a long life must not cost: memory, descriptors, threads and shared memory stay where they were."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path

import psutil
import pytest

from protocol.weights.manifest import Version
from tests.flows import runs
from tests.protocol.parts import BLOCK, Actor, Learner
from tests.protocol.weights.test_publisher import MAILBOX, Publisher, Subscriber
from tests.waiting import until

MIB = 1 << 20


def levels(memory: Path) -> tuple[int, int, int]:
    """Descriptors and threads of this process, and bytes of shared memory."""
    gc.collect()
    used = sum(path.stat().st_blocks * 512 for path in memory.iterdir())
    return psutil.Process().num_fds(), threading.active_count(), used


def test_a_thousand_publications_and_batches_leave_memory_where_it_was_G8(memory_dir: Path) -> None:
    """After the first 200, which fill caches and touch every page once."""
    actor, learner = Actor(memory_dir / "rookery-run1-actor-0.1-gem.ring"), Learner()
    publisher, subscriber = Publisher(memory_dir / MAILBOX), Subscriber()
    actor.sender.route(learner.route, False)
    subscriber.subscriber.route(publisher.route)
    before, was, cycles = (0, 0, 0), 0, 1_000
    for cycle in range(1, cycles + 201):
        publisher.publish(cycle)
        subscriber.get(publisher, Version(1, cycle))
        actor.write()
        until(lambda: learner.uses(BLOCK))
        until(lambda: _idle(actor))
        learner.got.clear()
        learner.columns.clear()
        if cycle == 200:
            before, was = levels(memory_dir), psutil.Process().memory_info().rss
    grown = psutil.Process().memory_info().rss - was
    assert levels(memory_dir) == before
    assert learner.wrong == 0
    assert grown < 2 * MIB, f"{grown / cycles:.0f} bytes a cycle"
    for end in (actor, learner, subscriber, publisher):
        end.close()
    for path in memory_dir.iterdir():
        path.unlink()


def _idle(actor: Actor) -> bool:
    """Whether all that it sent is acknowledged, after it has looked."""
    actor.sender.pump()
    return actor.sender._credit.idle


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_that_start_and_stop_leave_nothing_behind_G8(tmp_path: Path, memory_dir: Path) -> None:
    """Half of them are stopped in the middle. The leak guard looks at each run of the others' tests."""
    before, children = levels(memory_dir), psutil.Process().children(recursive=True)
    for time in range(20):
        folder = tmp_path / str(time)
        folder.mkdir()
        if time % 2:

            def steps(at: Path = folder) -> int:
                return runs.agent_steps(at)

            with runs.training(runs.config(steps=100_000_000), folder) as worker:
                runs.until(steps, what="the run is on")
                worker.popen.send_signal(signal.SIGTERM)
                worker.wait()
        else:
            assert runs.train(runs.config(steps=1_000), folder).returncode == 0
        assert levels(memory_dir) == before
        assert psutil.Process().children(recursive=True) == children
