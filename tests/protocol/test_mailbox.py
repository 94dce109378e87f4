"""The mailbox: whole weights or none, whatever the writer does."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from protocol.errors import SharedMemoryError
from protocol.mailbox import Mailbox
from protocol.memory import sweep
from protocol.version import Version
from tests.protocol.parts import line, python

HASH = "0123456789abcdef"
MODES = pytest.mark.parametrize("mode", ["double_buffer", "snapshot"])
Mode = Literal["double_buffer", "snapshot"]

HOSTILE = """
import sys
from pathlib import Path
import numpy as np
from protocol.mailbox import Mailbox
from protocol.version import Version
mailbox = Mailbox.attach(Path(sys.argv[1]), sys.argv[2])
words = np.empty(mailbox.nbytes // 8, np.uint64)
version = mailbox.version.version
print("ready", flush=True)
while True:
    version += 1
    words.fill(version * 2654435761)
    words[-1] = version
    mailbox.write(words.view(np.uint8), Version(1, version))
"""

KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from protocol.mailbox import Mailbox
from protocol.version import Version

class Halfway:
    "Weights that kill their writer when half of them are copied."
    dtype, shape = np.dtype(np.uint8), None
    def __init__(self, mailbox):
        self.shape, self.mailbox = (mailbox.nbytes,), mailbox
    def __array__(self, *_, **__):
        half = self.mailbox._copies[(int(self.mailbox._header[1]) + 1) % len(self.mailbox._copies)]
        half[: half.size // 2] = 99
        os.kill(os.getpid(), signal.SIGKILL)

mailbox = Mailbox.attach(Path(sys.argv[1]), sys.argv[2])
mailbox.write(Halfway(mailbox), Version(1, 2))
"""


def _weights(nbytes: int, value: int) -> np.ndarray:
    return np.full(nbytes, value, np.uint8)


@MODES
def test_C1_C2_what_is_published_is_read_into_a_copy_of_ones_own(memory_dir: Path, mode: Mode) -> None:
    """C1, C2: both modes; the reader's copy does not change with the next publication."""
    mailbox = Mailbox.create(memory_dir / "rookery-r-w", 1000, HASH, mode)
    reader = Mailbox.attach(mailbox.path, HASH, 1000)
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
    mailbox = Mailbox.create(memory_dir / "rookery-r-w", 100, HASH, mode)
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
    mailbox = Mailbox.create(memory_dir / "rookery-r-w", nbytes, HASH, mode)
    copies = 2 if mode == "double_buffer" else 1
    assert os.stat(mailbox.path).st_size == 4096 + copies * nbytes
    mailbox.remove()


@MODES
def test_C4_no_torn_read_from_a_hostile_publisher(memory_dir: Path, mode: Mode) -> None:
    """C4, U3: at least 10,000 whole reads against a process that never pauses; versions never go back (C3)."""
    nbytes = 200_000
    mailbox = Mailbox.create(memory_dir / "rookery-r-w", nbytes, HASH, mode)
    out = np.empty(nbytes, np.uint8)
    words = out.view(np.uint64)
    reads = torn = backwards = 0
    versions: set[int] = set()
    last = Version(0, 0)
    with python(HOSTILE, mailbox.path, HASH) as process:
        assert line(process) == "ready"
        end = time.monotonic() + 25
        while reads < 10_000 or len(versions) < 1_000 or mailbox.retries < 20:  # until copies were overtaken
            assert time.monotonic() < end, f"only {reads} reads of {len(versions)} versions in time"
            version = mailbox.read(out, 5.0)
            assert version is not None
            reads += 1
            torn += int(words[-1]) != version.version or not (words[:-1] == words[0]).all()
            torn += int(words[0]) != version.version * 2654435761
            backwards += version < last
            last = version
            versions.add(version.version)
    mailbox.remove()
    assert torn == 0
    assert backwards == 0


@MODES
def test_a_writer_killed_in_mid_write_blocks_nobody_and_the_next_one_recovers(memory_dir: Path, mode: Mode) -> None:
    mailbox = Mailbox.create(memory_dir / "rookery-r-w", 1000, HASH, mode)
    mailbox.write(_weights(1000, 1), Version(1, 1))
    with python(KILLED, mailbox.path, HASH) as process:
        assert process.wait(10) == -9
    out = np.zeros(1000, np.uint8)
    started = time.monotonic()
    found = mailbox.read(out, 0.2)
    assert time.monotonic() - started < 2
    if mode == "double_buffer":  # the other copy is whole
        assert found == Version(1, 1)
        assert (out == 1).all()
    else:
        assert found is None
    assert mailbox.version == Version(1, 1)
    again = Mailbox.attach(mailbox.path, HASH)
    for number in (2, 3):
        again.write(_weights(1000, number), Version(2, number))
        assert mailbox.read(out, 0.2) == Version(2, number)
        assert (out == number).all()
    again.close()
    mailbox.remove()


def test_the_mailbox_of_another_network_is_refused_and_let_go(memory_dir: Path) -> None:
    mailbox = Mailbox.create(memory_dir / "rookery-r-w", 100, HASH, "snapshot")
    for manifest, nbytes in (("f" * 16, 100), (HASH, 99)):
        with pytest.raises(SharedMemoryError, match="weights of another network; start all workers with the same"):
            Mailbox.attach(mailbox.path, manifest, nbytes)
    mailbox.close()
    assert sweep() == [memory_dir / "rookery-r-w"]  # nobody holds a lock any more


@pytest.mark.parametrize(
    ("word", "value"), [(0, 0), (1, 1), (1, 2**40), (2, 10**9), (2, 2**63), (3, 0), (3, 3), (3, 2**63)]
)
def test_a_damaged_mailbox_is_refused_in_a_sentence(memory_dir: Path, word: int, value: int) -> None:
    path = memory_dir / "rookery-r-w"
    Mailbox.create(path, 100, HASH, "snapshot").close()
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(value.to_bytes(8, "little"))
    with pytest.raises(SharedMemoryError, match="remove it with `rookery clean`"):
        Mailbox.attach(path, HASH)
    assert sweep() == [path]


def test_a_file_shorter_than_a_page_is_no_mailbox(memory_dir: Path) -> None:
    path = memory_dir / "rookery-r-w"
    path.write_bytes(b"ROOKMAIL")
    with pytest.raises(SharedMemoryError, match="is no mailbox"):
        Mailbox.attach(path, HASH)
    path.unlink()
