"""The mailbox: whole weights or none, whatever the writer does."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from protocol.errors import SharedMemoryError
from protocol.memory import futex
from protocol.memory.shared_file import sweep
from protocol.weights.manifest import NOTHING, Version
from protocol.weights.shared_snapshot import SharedSnapshot
from tests.faults import raises
from tests.protocol.parts import line, python

HASH = "0123456789abcdef"
MODES = pytest.mark.parametrize("mode", ["double_buffer", "snapshot"])
Mode = Literal["double_buffer", "snapshot"]

HOSTILE = """
import sys
from pathlib import Path
import numpy as np
from protocol.weights.shared_snapshot import SharedSnapshot
from protocol.weights.manifest import Version
mailbox = SharedSnapshot.attach(Path(sys.argv[1]), sys.argv[2])
words = np.empty(mailbox.nbytes // 8, np.uint64)
version = mailbox.version.version
print("ready", flush=True)
while True:
    version += 1
    words.fill(version * 2654435761)
    words[-1] = version
    mailbox.write(words.view(np.uint8), Version(1, version))
"""

READER = """
import json, sys, time
from pathlib import Path
import numpy as np
from protocol.weights.shared_snapshot import SharedSnapshot
from protocol.weights.manifest import NOTHING
mailbox = SharedSnapshot.attach(Path(sys.argv[1]), sys.argv[2])
out = np.empty(mailbox.nbytes, np.uint8)
words = out.view(np.uint64)
reads = torn = backwards = 0
versions, last, end = set(), NOTHING, time.monotonic() + float(sys.argv[4])
while (reads < int(sys.argv[3]) or len(versions) < 500 or mailbox.retries < 10) and time.monotonic() < end:
    version = mailbox.read(out, 30.0)
    if version is None:
        break
    reads += 1
    torn += int(words[-1]) != version.version or not (words[:-1] == words[0]).all()
    torn += int(words[0]) != version.version * 2654435761
    backwards += version < last
    last = version
    versions.add(version.version)
print(json.dumps(dict(reads=reads, torn=torn, backwards=backwards, versions=len(versions), retries=mailbox.retries)))
"""

KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from protocol.weights.shared_snapshot import SharedSnapshot
from protocol.weights.manifest import Version

class Halfway:
    "Weights that kill their writer when half of them are copied."
    dtype, shape = np.dtype(np.uint8), None
    def __init__(self, mailbox):
        self.shape, self.mailbox = (mailbox.nbytes,), mailbox
    def __array__(self, *_, **__):
        half = self.mailbox._copies[(int(self.mailbox._header[1]) + 1) % len(self.mailbox._copies)]
        half[: half.size // 2] = 99
        os.kill(os.getpid(), signal.SIGKILL)

mailbox = SharedSnapshot.attach(Path(sys.argv[1]), sys.argv[2])
mailbox.write(Halfway(mailbox), Version(1, 2))
"""


def _weights(nbytes: int, value: int) -> np.ndarray:
    return np.full(nbytes, value, np.uint8)


def _path(mailbox: SharedSnapshot) -> Path:
    assert mailbox.path is not None
    return mailbox.path


@MODES
def test_C1_C2_what_is_published_is_read_into_a_copy_of_ones_own(memory_dir: Path, mode: Mode) -> None:
    """C1, C2: both modes; the reader's copy does not change with the next publication."""
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 1000, HASH, mode)
    reader = SharedSnapshot.attach(_path(mailbox), HASH, 1000)
    out = np.zeros(1000, np.uint8)
    assert reader.read(out, 0.01) is None  # nothing was published
    assert reader.version == Version(0, 0)
    assert reader.nonce == mailbox.nonce
    for number in range(1, 6):
        mailbox.write(_weights(1000, number), Version(1, number))
        assert reader.version == Version(1, number)
        assert reader.read(out) == Version(1, number)
        assert (out == number).all()
    mailbox.write(_weights(1000, 77), Version(2, 6))
    assert (out == 5).all()
    reader.close()
    mailbox.remove()


@MODES
def test_C3_versions_only_grow(memory_dir: Path, mode: Mode) -> None:
    """C3: and what is refused leaves the mailbox as it was."""
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 100, HASH, mode)
    mailbox.write(_weights(100, 5), Version(1, 5))
    out = np.zeros(100, np.uint8)
    for weights, version, reason in (
        (_weights(100, 6), Version(1, 5), "not newer"),
        (_weights(100, 6), Version(1, 4), "not newer"),
        (_weights(100, 6), Version(0, 9), "not newer"),
        (_weights(100, 6), Version(1, 2**40), "does not fit"),
        (_weights(99, 6), Version(1, 6), "expected 100 bytes"),
        (_weights(1, 6), Version(1, 6), "expected 100 bytes"),
        (np.zeros(100, np.float32), Version(1, 6), "expected 100 bytes"),
    ):
        with pytest.raises(ValueError, match=reason):
            mailbox.write(weights, version)  # type: ignore[arg-type]
        assert mailbox.read(out, 0.1) == Version(1, 5)
        assert (out == 5).all()
    mailbox.write(_weights(100, 7), Version(2, 1))
    assert mailbox.read(out, 0.1) == Version(2, 1)
    mailbox.remove()


@MODES
def test_C6_memory_is_exactly_the_copies_and_one_page(memory_dir: Path, mode: Mode) -> None:
    """C6: twice the weights for the double buffer, once for the snapshot."""
    nbytes = 1_000_000 // 64 * 64
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", nbytes, HASH, mode)
    copies = 2 if mode == "double_buffer" else 1
    assert os.stat(_path(mailbox)).st_size == 4096 + copies * nbytes
    mailbox.remove()


@MODES
def test_C7_the_inactive_copy_can_be_started_from_the_active_one(memory_dir: Path, mode: Mode) -> None:
    """C7: readers notice nothing, also one that is reading the inactive copy; a single copy has nothing to start."""
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 1000, HASH, mode)
    mailbox.warm()  # nothing is published
    out = np.zeros(1000, np.uint8)
    assert mailbox.read(out, 0) is None
    for number in (1, 2, 3):
        mailbox.write(_weights(1000, number), Version(1, number))
    copies = len(mailbox._copies)
    inactive = mailbox._copies[(int(mailbox._header[1]) + 1) % copies]
    assert (inactive == (3 if copies == 1 else 2)).all()
    before = int(mailbox._words[1 - int(mailbox._header[1])][0]) if copies == 2 else 0
    mailbox.warm()
    assert (inactive == 3).all()
    if copies == 2:
        assert int(mailbox._words[1 - int(mailbox._header[1])][0]) == before + 2
    assert mailbox.read(out, 0) == mailbox.version == Version(1, 3)
    assert (out == 3).all()
    mailbox.write(_weights(1000, 4), Version(1, 4))
    assert mailbox.read(out, 0) == Version(1, 4)
    mailbox.remove()


def _hostile(memory_dir: Path, mode: Mode, readers: int, reads: int, seconds: float) -> dict[str, int]:
    """What `readers` processes saw together that made `reads` whole reads each while another one wrote on and on."""
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 50_000, HASH, mode)
    with ExitStack() as stack:
        writer = stack.enter_context(python(HOSTILE, mailbox.path, HASH))
        assert line(writer) == "ready"
        arguments = (mailbox.path, HASH, reads, seconds)
        processes = [stack.enter_context(python(READER, *arguments)) for _ in range(readers)]
        seen = [json.loads(line(process)) for process in processes]
        assert writer.poll() is None
    mailbox.remove()
    return {key: sum(each[key] for each in seen) for key in seen[0]}


@MODES
def test_C4_no_torn_read_from_a_hostile_publisher(memory_dir: Path, mode: Mode) -> None:
    """C4, U3: at least 10,000 whole reads by two processes against one that never pauses; C3: versions only grow."""
    seen = _hostile(memory_dir, mode, readers=2, reads=5_000, seconds=150)
    assert seen["reads"] >= 10_000
    assert seen["versions"] >= 1_000
    assert seen["retries"] >= 20  # copies were overtaken
    assert seen["torn"] == seen["backwards"] == 0


SLEEPER = """
import sys, time
from pathlib import Path
from protocol.weights.shared_snapshot import SharedSnapshot
from protocol.weights.manifest import Version
mailbox = SharedSnapshot.attach(Path(sys.argv[1]), sys.argv[2])
have = mailbox.version
print("ready", flush=True)
started, spent = time.monotonic(), time.process_time()
while mailbox.version == have and time.monotonic() - started < 600:
    mailbox.wait(have, 600)
print(mailbox.version.version, time.process_time() - spent, flush=True)
"""


@pytest.mark.skipif(not futex.AVAILABLE, reason="futexes are missing")
def test_U16_another_process_sleeps_until_it_is_woken(memory_dir: Path) -> None:
    """U16: no polling: it spends no time on waiting, and is there at once."""
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 100, HASH, "double_buffer")
    mailbox.write(_weights(100, 1), Version(1, 1))
    with python(SLEEPER, mailbox.path, HASH) as process:
        assert line(process) == "ready"
        time.sleep(0.5)
        started = time.monotonic()
        mailbox.write(_weights(100, 2), Version(1, 2))
        version, spent = line(process).split()
        assert time.monotonic() - started < 60
        assert int(version) == 2
        assert float(spent) < 0.1
    mailbox.remove()


@pytest.mark.skipif(not futex.AVAILABLE, reason="futexes are missing")
def test_a_sleep_ends_with_its_time_and_does_not_begin_when_news_are_there(memory_dir: Path) -> None:
    mailbox = SharedSnapshot.create(None, 100, HASH, "snapshot")
    started = time.monotonic()
    mailbox.wait(NOTHING, 0.2)
    assert 0.15 < time.monotonic() - started < 60
    mailbox.write(_weights(100, 1), Version(1, 1))
    started = time.monotonic()
    mailbox.wait(NOTHING, 600)
    assert time.monotonic() - started < 60
    mailbox.close()


@pytest.mark.skipif(not futex.AVAILABLE, reason="futexes are missing")
def test_a_sleep_on_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="futex"):
        futex.sleep(8, 0, 0.1)


@MODES
def test_a_writer_killed_in_mid_write_blocks_nobody_and_the_next_one_recovers(memory_dir: Path, mode: Mode) -> None:
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 1000, HASH, mode)
    mailbox.write(_weights(1000, 1), Version(1, 1))
    with python(KILLED, mailbox.path, HASH) as process:
        assert process.wait(60) == -9
    out = np.zeros(1000, np.uint8)
    started = time.monotonic()
    found = mailbox.read(out, 0.2)
    assert time.monotonic() - started < 60
    if mode == "double_buffer":  # the other copy is whole
        assert found == Version(1, 1)
        assert (out == 1).all()
    else:
        assert found is None
    assert mailbox.version == Version(1, 1)
    again = SharedSnapshot.attach(_path(mailbox), HASH)
    for number in (2, 3):
        again.write(_weights(1000, number), Version(2, number))
        assert mailbox.read(out, 0.2) == Version(2, number)
        assert (out == number).all()
    again.close()
    mailbox.remove()


def test_the_mailbox_of_another_network_is_refused_and_let_go(memory_dir: Path) -> None:
    mailbox = SharedSnapshot.create(memory_dir / "rookery-r-w", 100, HASH, "snapshot")
    for manifest, nbytes in (("f" * 16, 100), (HASH, 99)):
        with raises(SharedMemoryError, "mailbox_of_another_network", file=_path(mailbox)):
            SharedSnapshot.attach(_path(mailbox), manifest, nbytes)
    mailbox.close()
    assert sweep() == [memory_dir / "rookery-r-w"]  # nobody holds a lock any more


def test_a_damaged_mailbox_is_refused_in_a_sentence(memory_dir: Path) -> None:
    """One test, as what an error holds of its mailbox is let go by a whole collection of garbage."""
    path = memory_dir / "rookery-r-w"
    for word, value in ((0, 0), (1, 1), (1, 2**40), (2, 10**9), (2, 2**63), (3, 0), (3, 3), (3, 2**63)):
        SharedSnapshot.create(path, 100, HASH, "snapshot").close()
        with path.open("r+b") as file:
            file.seek(8 * word)
            file.write(value.to_bytes(8, "little"))
        with raises(SharedMemoryError, "not_a_mailbox" if word == 0 else "mailbox_damaged", file=path):
            SharedSnapshot.attach(path, HASH)
        assert sweep() == [path], (word, value)


def test_a_file_shorter_than_a_page_is_no_mailbox(memory_dir: Path) -> None:
    path = memory_dir / "rookery-r-w"
    path.write_bytes(b"ROOKMAIL")
    with raises(SharedMemoryError, "not_a_mailbox"):
        SharedSnapshot.attach(path, HASH)
    path.unlink()
