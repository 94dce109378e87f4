"""The lock of a locked ring: it excludes, it ends with its owner, and nobody waits for it longer than told."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from protocol.errors import Timeout
from protocol.experience.ring_buffer import Ring
from protocol.memory.file_lock import _GATE, LOCK_COUNTERS, LOCK_SECONDS
from protocol.memory.shared_file import Counters, SharedFile, sweep
from tests.faults import raises
from tests.protocol.parts import LAYOUT, line, python
from tests.waiting import until

HOLD = """
import sys
from contextlib import ExitStack
from pathlib import Path
from protocol.experience.ring_buffer import Ring
from tests.protocol.parts import LAYOUT
ring = Ring.attach(Path(sys.argv[1]), LAYOUT)
with ExitStack() as held:
    for what in sys.argv[2:]:
        held.enter_context(ring.reading() if what == "reading" else ring._writing())
    print("ready", flush=True)
    sys.stdin.readline()
print("free", flush=True)
sys.stdin.readline()
"""


def page() -> Counters:
    """Counters for waits."""
    return Counters(None, LOCK_COUNTERS, LOCK_SECONDS)


@contextmanager
def locked(memory_dir: Path, timeout: float = 0.2) -> Iterator[tuple[Ring, Counters]]:
    """A locked ring, and what its creator waited."""
    counters = page()
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 4, lock_timeout=timeout, counters=counters)
    try:
        yield ring, counters
    finally:
        ring.remove()


def write(ring: Ring) -> None:
    """One slot, begun and finished."""
    ring.begin(slice(0, 1))
    ring.finish(slice(0, 1), [1], LAYOUT.length, 1)


@pytest.mark.parametrize("held", ["reading", "writing"])
def test_G6_a_wait_for_one_that_is_stopped_is_one_sentence_and_counted(memory_dir: Path, held: str) -> None:
    """G6: the sentence says who waits, for what, and what to do; nothing was changed, and all goes on when it does."""
    with locked(memory_dir) as (ring, counters), python(HOLD, ring.path, held) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        before = ring.table.copy()
        waits = []
        facts = {"pid": os.getpid(), "file": ring.path, "purpose": "writing", "seconds": 0.2}
        for _ in range(5):
            start = time.monotonic()
            with raises(Timeout, "region_lock_timeout", **facts) as e:
                ring.begin(slice(0, 1))
            waits.append(time.monotonic() - start)
        assert 0.2 <= min(waits) < 1.0
        assert "\n" not in str(e.value)
        assert np.array_equal(ring.table, before)
        assert counters["lock_timeouts"] == 5
        assert 5 * 0.2 <= counters["waits.lock"] <= sum(waits)
        if held == "writing":
            with raises(Timeout, "region_lock_timeout", purpose="reading"), ring.reading():
                pass
        else:
            assert ring.path is not None
            with closing(Ring.attach(ring.path, LAYOUT)) as other:
                assert not _gate_is_taken(other), "who gave up keeps others from nothing"
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert line(process) == "free"
        write(ring)
        assert counters["lock_timeouts"] == 5 + (held == "writing")


@pytest.mark.parametrize("held", ["reading", "writing"])
def test_G7_kill_9_while_holding_it_blocks_nobody_for_a_second(memory_dir: Path, held: str) -> None:
    """G7: whoever waits at that moment goes on, and so does everyone after."""
    with locked(memory_dir, timeout=10.0) as (ring, counters), python(HOLD, ring.path, held) as process:
        assert line(process) == "ready"
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.monotonic())
            process.send_signal(signal.SIGKILL)

        timer = threading.Timer(0.3, kill)
        timer.start()
        write(ring)
        assert time.monotonic() - killed[0] < 1.0
        timer.join()
        with ring.reading():
            assert ring.intact(ring.table[:1].copy()).all()
        assert counters["lock_timeouts"] == 0
        assert counters["waits.lock"] > 0.1


def _gate_is_taken(ring: Ring) -> bool:
    assert ring._lock is not None
    free = ring._lock._try(_GATE, fcntl.F_RDLCK)
    if free:
        ring._lock._unlock(_GATE)
    return not free


def test_readers_share_it_and_a_waiting_writer_comes_before_new_ones(memory_dir: Path) -> None:
    """Or readers that overlap would keep the writer out for ever."""
    with locked(memory_dir, timeout=60.0) as (ring, _), python(HOLD, ring.path, "reading") as process:
        assert line(process) == "ready"
        assert ring.path is not None
        late = Ring.attach(ring.path, LAYOUT)
        with late.reading():  # shared
            pass
        order: list[str] = []

        def begin() -> None:
            ring.begin(slice(0, 1))
            order.append("writer")

        def read() -> None:
            with late.reading():
                order.append("reader")

        writer, reader = threading.Thread(target=begin), threading.Thread(target=read)
        writer.start()
        until(lambda: _gate_is_taken(late), what="the writer waits")
        reader.start()
        time.sleep(0.2)
        assert order == []
        process.kill()
        for thread in (writer, reader):
            thread.join(60)
        assert order == ["writer", "reader"]
        late.close()


def test_it_has_nothing_to_do_with_the_lock_that_keeps_the_file_alive(memory_dir: Path) -> None:
    """U1, G6: neither hinders the other."""
    with locked(memory_dir) as (ring, counters), ring.reading():
        assert ring.path is not None
        assert sweep() == []
        other = SharedFile.attach(ring.path)
        other.close()
        assert counters["waits.lock"] == 0
        assert ring.path.exists()


def test_the_lock_is_given_up_by_whoever_fails_in_it(memory_dir: Path) -> None:
    with locked(memory_dir) as (ring, counters):
        assert ring.path is not None
        other = Ring.attach(ring.path, LAYOUT)
        with pytest.raises(IndexError):
            ring.begin(np.array([99]))
        with pytest.raises(KeyError), ring.reading():
            raise KeyError
        write(other)
        write(ring)
        assert counters["waits.lock"] == 0
        other.close()
