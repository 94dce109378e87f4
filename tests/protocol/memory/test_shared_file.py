"""Shared memory as files: reserved, locked by the living, swept once nobody is left."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from protocol.errors import SharedMemoryError
from protocol.experience.receipt_log import ReceiptLog
from protocol.memory import shared_file
from protocol.memory.shared_file import PREFIX, Counters, SharedFile, files, memory_dir, sweep
from tests.faults import kinds_in, raises
from tests.protocol.parts import line, python
from tests.tools import ROOT, require, skip_or_fail

HOLD = """
import sys
from pathlib import Path
from protocol.memory.shared_file import SharedFile
path, way = Path(sys.argv[1]), sys.argv[2]
file = SharedFile.create(path, 4096) if way == "create" else SharedFile.attach(path)
if way == "create":
    file.buffer[:5] = b"hello"
print("ready", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(path: Path, way: str = "create") -> Iterator[subprocess.Popen[str]]:
    """An unrelated process that holds the file."""
    with python(HOLD, path, way) as process:
        assert line(process) == "ready"
        yield process


def test_a_new_file_is_zero_of_the_size_asked_and_reserved(memory_dir: Path) -> None:
    file = SharedFile.create(memory_dir / "rookery-r-a", 10_000)
    assert bytes(file.buffer) == bytes(10_000)
    assert os.stat(file.path).st_blocks * 512 >= 10_000
    assert os.stat(file.path).st_mode & 0o777 == 0o600
    file.remove()
    assert not file.path.exists()


def test_attaching_shows_the_same_memory_and_creates_nothing(memory_dir: Path) -> None:
    path = memory_dir / "rookery-r-a"
    with raises(SharedMemoryError, "shared_memory_unopenable", file=path):
        SharedFile.attach(path)
    assert not path.exists()
    first = SharedFile.create(path, 100)
    second = SharedFile.attach(path)
    first.buffer[7] = 42
    assert second.buffer[7] == 42
    first.remove()
    assert path.exists()  # the other still holds it
    second.remove()
    assert not path.exists()


def test_a_file_that_no_memory_can_hold_or_that_shrinks_as_it_is_mapped_is_refused(memory_dir: Path) -> None:
    path = memory_dir / "rookery-r-a"
    path.touch()
    os.truncate(path, 1 << 50)
    with raises(SharedMemoryError, "shared_memory_unopenable", file=path):
        SharedFile.attach(path)
    over = threading.Event()

    def breathe() -> None:
        while not over.is_set():
            os.truncate(path, 1 << 20)
            os.truncate(path, 1)

    other = threading.Thread(target=breathe)
    other.start()
    try:
        for _ in range(1000):
            with suppress(SharedMemoryError):
                SharedFile.attach(path).close()
    finally:
        over.set()
        other.join()
        path.unlink()


def test_B10_a_name_in_use_is_refused_even_within_one_process(memory_dir: Path) -> None:
    """B10: two buffers of one process never share a name."""
    path = memory_dir / "rookery-r-a"
    first = SharedFile.create(path, 100)
    first.buffer[0] = 1
    with raises(SharedMemoryError, "shared_memory_in_use", file=path):
        SharedFile.create(path, 100)
    assert first.buffer[0] == 1
    assert path.exists()
    first.remove()


def test_B10_the_leftover_of_a_killed_process_is_replaced_by_fresh_memory(memory_dir: Path) -> None:
    """B10: names are unique against leftovers of a dead process."""
    path = memory_dir / "rookery-r-a"
    with holder(path) as process:
        with raises(SharedMemoryError, "shared_memory_in_use", file=path):
            SharedFile.create(path, 100)
        process.kill()
        process.wait(60)
    assert path.exists()
    mine = SharedFile.create(path, 100)
    assert bytes(mine.buffer) == bytes(100)
    mine.remove()


def test_B11_a_sweep_takes_what_the_dead_left_and_nothing_of_the_living(memory_dir: Path) -> None:
    """B11, U14: only who gets the exclusive lock unlinks, and then all files go."""
    dead, alive, foreign = (memory_dir / f"rookery-{name}" for name in ("r-dead", "r-alive", "s-dead"))
    with holder(dead) as first, holder(alive), holder(foreign) as third:
        assert sweep() == []
        for process in (first, third):
            process.kill()
            process.wait(60)
        assert sweep("r") == [dead]
        assert list(files()) == [alive, foreign]
        assert sweep() == [foreign]
        assert sweep() == []
        mine = SharedFile.attach(alive)
        assert bytes(mine.buffer[:5]) == b"hello"
        mine.close()
    assert sweep() == [alive]


def test_B12_a_stranger_that_attaches_and_exits_leaves_the_memory_alive(memory_dir: Path) -> None:
    """B12, U12."""
    file = SharedFile.create(memory_dir / "rookery-r-a", 4096)
    file.buffer[:5] = b"still"
    with holder(file.path, "attach") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    assert file.path.exists()
    again = SharedFile.attach(file.path)
    assert bytes(again.buffer[:5]) == b"still"
    again.close()
    file.remove()


def test_closing_twice_is_harmless_and_gives_up_the_lock_though_a_view_lives(memory_dir: Path) -> None:
    file = SharedFile.create(memory_dir / "rookery-r-a", 100)
    view = file.buffer
    file.close()
    file.close()
    assert view[0] == 0
    assert sweep() == [file.path]
    file.remove()
    del view


def test_a_sweep_never_removes_a_file_that_took_the_place_of_the_one_it_looked_at(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = memory_dir / "rookery-r-a"
    SharedFile.create(path, 100).close()
    real = fcntl.flock
    swapped: list[SharedFile] = []

    def late(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and not swapped:
            path.unlink()  # between opening and locking, another one swept and a new owner came
            swapped.append(SharedFile.create(path, 100))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert sweep() == []
    assert path.exists()
    swapped[0].remove()


def test_creating_and_sweeping_at_once_never_loses_a_living_file(memory_dir: Path) -> None:
    path, ending, swept = memory_dir / "rookery-r-a", threading.Event(), []

    def sweeper() -> None:
        while not ending.is_set():
            swept.extend(sweep())

    threads = [threading.Thread(target=sweeper) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 1.0
        while time.monotonic() < end or (not swept and time.monotonic() < end + 60):
            file = SharedFile.create(path, 100)
            other = SharedFile.attach(path)  # would fail had a sweep taken it
            other.close()
            file.close()  # from here on it is the sweepers'
    finally:
        ending.set()
        for thread in threads:
            thread.join(60)
    assert swept
    sweep()


def test_a_lock_that_is_never_given_up_costs_a_bounded_time(memory_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file, "_LOCK_SECONDS", 0.1)
    path = memory_dir / "rookery-r-a"
    SharedFile.create(path, 100).close()
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    started = time.monotonic()
    with raises(SharedMemoryError, "shared_memory_locked", file=path):
        SharedFile.attach(path)
    assert 0.05 < time.monotonic() - started < 60
    os.close(descriptor)
    sweep()


NO_FILES = {
    "fifo": "shared_memory_not_plain_file",
    "folder": "shared_memory_unopenable",
    "symlink": "shared_memory_unopenable",
    "empty": "shared_memory_just_removed",
    "nul": "shared_memory_unopenable",
    "device": "shared_memory_not_plain_file",
    "long": "shared_memory_unopenable",
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_plain_file_is_refused_in_a_sentence(memory_dir: Path, kind: str) -> None:
    path = memory_dir / "rookery-r-x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "symlink":
        (memory_dir / "other").write_bytes(b"x" * 100)
        path.symlink_to(memory_dir / "other")
    elif kind == "empty":
        path.touch()
    elif kind == "device":
        path = Path("/dev/null")
    else:
        path = Path("rookery-\0x") if kind == "nul" else memory_dir / ("rookery-" + "x" * 300)
    with raises(SharedMemoryError, NO_FILES[kind], file=path):
        SharedFile.attach(path)
    if kind in ("fifo", "empty", "symlink"):
        path.unlink()
    if kind == "folder":
        path.rmdir()


def test_a_full_file_system_is_told_in_one_sentence_and_leaves_nothing(memory_dir: Path) -> None:
    """Asks for more than there is, so that the real reservation fails."""
    free = os.statvfs(memory_dir)
    path = memory_dir / "rookery-r-a"
    size = free.f_blocks * free.f_frsize + 2**30
    with raises(SharedMemoryError, "no_room_for_shared_memory", file=memory_dir, size=size / 2**20) as caught:
        SharedFile.create(path, size)
    assert "ROOKERY_MEMORY" in str(caught.value)
    assert not path.exists()


FULL = """
import sys
from pathlib import Path
from protocol.memory.shared_file import Counters
from protocol.errors import SharedMemoryError
from protocol.experience.layout import Field, Layout
from protocol.experience.receipt_log import ReceiptLog
from protocol.memory.shared_file import SharedFile
from protocol.experience.ring_buffer import Ring
folder = Path(sys.argv[1])
makers = {
    "file": lambda path: SharedFile.create(path, 1 << 20),
    "ring": lambda path: Ring.create(path, Layout((Field("a", "<f4", (4096,)),), 64), 4),
    "ledger": ReceiptLog,
    "counters": lambda path: Counters(path, [f"{'x' * 200}.{i}" for i in range(1000)]),
}
(folder / "filler").write_bytes(bytes(40_000))
for name, make in makers.items():
    try:
        make(folder / name)
        print(name, "was made", flush=True)
    except SharedMemoryError as fault:
        print(name, fault.coded, flush=True)
(folder / "filler").unlink()
whole = Counters(folder / "whole", ["n"])
(folder / "filler").write_bytes(bytes(48_000))
whole.set("n", 5)
print(sorted(path.name for path in folder.iterdir()), whole["n"], flush=True)
"""


def test_a_full_file_system_is_a_sentence_for_every_mapped_file_and_never_a_bus_error(tmp_path: Path) -> None:
    """A real one, of 64 KiB: rings, ledgers and counters are refused when they are made, not when they are written."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    small = tmp_path / "small"
    small.mkdir()
    own = f'mount -t tmpfs -o size=64k small "{small}" && exec "{sys.executable}" -c "$1" "{small}"'
    command = [require("unshare"), "--mount", "sh", "-c", own, "sh", FULL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    if "permission denied" in done.stderr.lower() or "not permitted" in done.stderr.lower():
        skip_or_fail("no mount namespaces", done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    *told, last = done.stdout.splitlines()
    for name, sentence in zip(("file", "ring", "ledger", "counters"), told, strict=True):
        assert sentence.startswith(f"{name} {small} ")
        assert kinds_in(sentence) == ["no_room_for_shared_memory"]
        remedy = "enlarge it, set ROOKERY_MEMORY" if name in ("file", "ring") else "free some or give another --run-dir"
        assert remedy in sentence
    assert last == "['filler', 'ledger', 'whole'] 5"


def test_ledgers_and_counters_have_their_room_reserved(tmp_path: Path) -> None:
    ReceiptLog(tmp_path / "ledger")
    Counters(tmp_path / "counters", [f"{'x' * 60}.{i}" for i in range(500)])
    for path in tmp_path.iterdir():
        status = path.stat()
        assert status.st_blocks * 512 >= status.st_size > 4096


def test_other_faults_of_the_file_system_are_not_disguised(memory_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="Input/output"):
        SharedFile.create(memory_dir / "rookery-r-a", 100)
    assert list(files()) == []


def test_the_folder_is_the_one_named_or_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROOKERY_MEMORY", str(tmp_path))
    assert memory_dir() == tmp_path
    monkeypatch.setenv("ROOKERY_MEMORY", str(tmp_path / "no"))
    with raises(SharedMemoryError, "memory_folder_missing", file=str(tmp_path / "no"), key="ROOKERY_MEMORY"):
        memory_dir()
    monkeypatch.delenv("ROOKERY_MEMORY")
    if not os.access("/dev/shm", os.W_OK):
        skip_or_fail("/dev/shm cannot be written")
    folder = memory_dir()
    assert folder == Path(f"/dev/shm/rookery.{os.geteuid()}")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert PREFIX == "rookery-"


def test_where_there_is_no_dev_shm_files_lie_in_the_temporary_folder_and_are_reserved_by_writing(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    reachable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/dev/shm" and reachable(path, mode))
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delenv("ROOKERY_MEMORY")
    monkeypatch.setattr(tempfile, "tempdir", str(memory_dir))
    folder = memory_dir / f"rookery.{os.geteuid()}"
    assert shared_file.memory_dir() == folder
    folder.chmod(0o755)
    with raises(SharedMemoryError, "memory_folder_of_others", file=folder, mode=0o755):
        shared_file.memory_dir()
    folder.chmod(0o700)
    size = (1 << 20) + 5_000
    made = SharedFile.create(memory_dir / "rookery-r-a", size)
    seen = SharedFile.attach(made.path)
    made.buffer[-1] = 7
    assert (seen.size, seen.buffer[-1], made.path.stat().st_blocks * 512 >= size) == (size, 7, True)
    seen.close()
    made.remove()
    assert list(files()) == []
