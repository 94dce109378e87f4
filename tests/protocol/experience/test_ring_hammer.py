"""Several readers against one writer that never stops: no torn row reaches anybody, with locks and without."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.experience.ring_buffer import Ring
from tests.protocol.experience.hammering import WIDE
from tests.protocol.parts import line, python

READERS = 2
PROCESS = "from tests.protocol.experience.hammering import main; main()"
MODES = {"lock_free": (False, None), "locked": (False, 1.0), "checksums": (True, None)}


def hammer(folder: Path, mode: str, seconds: float, segments: int) -> list[dict[str, int]]:
    """What each reader saw, in so many seconds and more than so many segments."""
    checksums, lock_timeout = MODES[mode]
    ring = Ring.create(folder / "rookery-hammer", WIDE, 6, checksums, lock_timeout)  # the writer soon comes round
    with ExitStack() as stack:
        writer = stack.enter_context(python(PROCESS, ring.path))
        enough = (seconds, segments, 0 if mode == "locked" else 3)
        readers = [stack.enter_context(python(PROCESS, ring.path, *enough)) for _ in range(READERS)]
        results = [json.loads(line(reader)) for reader in readers]
        assert writer.poll() is None  # nobody kept it waiting too long
    ring.remove()
    return results


def check(results: list[dict[str, int]], mode: str, slots: int) -> None:
    """No torn row anywhere; the writer went on, and readers were overtaken where there is no lock, but only there."""
    for result in results:
        assert result["torn"] == 0
        assert result["accepted"] > slots
        assert result["written"] > slots
        if mode == "locked":
            assert result["overtaken"] == 0
    if mode != "locked":
        assert sum(result["overtaken"] for result in results) > 5  # the test can fail


@pytest.mark.parametrize("mode", ["lock_free", "locked"])
def test_B13_no_torn_row_reaches_any_of_several_readers_U2_U3(memory_dir: Path, mode: str) -> None:
    """B13: by checksum, in lock and lock-free modes."""
    check(hammer(memory_dir, mode, 0.3, 50), mode, 50)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
def test_B13_no_torn_row_in_a_minute(memory_dir: Path, mode: str) -> None:
    """B13: 60 s of it."""
    check(hammer(memory_dir, mode, 60.0, 2000), mode, 2000)
