"""Counters: exact, and there after any death."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from protocol.memory.shared_file import Counters, read_counters
from tests.protocol.parts import line, python
from tests.waiting import until

WRITER = """
import sys
from pathlib import Path
from protocol.memory.shared_file import Counters
counters = Counters(Path(sys.argv[1]), ["steps", "big"], ["waited"])
counters.set("big", 2**62)
for _ in range(1000):
    counters.add("steps", 3)
    counters.add("waited", 0.5)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_counters_survive_kill_9_of_their_worker(tmp_path: Path) -> None:
    path = tmp_path / "counters" / "actor-0.1"
    with python(WRITER, path) as process:
        assert line(process) == "ready"
        assert read_counters(path)["steps"] == 3000  # of a living one
        process.kill()
        process.wait(60)
    assert read_counters(path) == {"steps": 3000, "big": 2**62, "waited": 500.0}


@pytest.mark.parametrize("to_file", [True, False])
def test_B2_whole_numbers_are_exact_beyond_32_and_53_bits(tmp_path: Path, to_file: bool) -> None:
    """B2: counters are 64-bit."""
    counters = Counters(tmp_path / "c" if to_file else None, ["n"], ["s"])
    counters.set("n", 2**53)
    counters.add("n")
    assert counters["n"] == 2**53 + 1
    counters.set("n", 2**63 - 1)
    assert counters.snapshot() == {"n": 2**63 - 1, "s": 0.0}
    counters.add("s", 0.1)
    counters.set("s", counters["s"] + 0.2)
    assert counters["s"] == pytest.approx(0.3)
    with pytest.raises(KeyError):
        counters.add("other")


@pytest.mark.parametrize("to_file", [True, False])
def test_more_names_come_behind_those_there_are_and_no_number_is_lost(tmp_path: Path, to_file: bool) -> None:
    """Whoever reads the page sees at no time less than was counted."""
    path = tmp_path / "c" if to_file else None
    counters = Counters(path, ["n"], ["s"])
    counters.set("n", 2**62)
    counters.add("s", 0.5)
    for number in range(300):  # more than a page of names
        counters.extend([f"{number}{'x' * 60}"])
        counters.add(f"{number}{'x' * 60}", -number)
        if number % 100 == 0 and path is not None:
            assert read_counters(path) == counters.snapshot()
    counters.add("n")
    told = {"n": 2**62 + 1, "s": 0.5, **{f"{number}{'x' * 60}": float(-number) for number in range(300)}}
    assert counters.snapshot() == told
    assert [*counters.names] == [*told]
    assert path is None or read_counters(path) == told


def test_many_names_take_more_than_a_page(tmp_path: Path) -> None:
    names = [f"{'x' * 60}.{i}" for i in range(500)]
    counters = Counters(tmp_path / "c", names, ["s"])
    for i, name in enumerate(names):
        counters.add(name, i)
    assert read_counters(tmp_path / "c") == {**{n: i for i, n in enumerate(names)}, "s": 0.0}


def test_a_page_that_can_be_found_can_be_read(tmp_path: Path) -> None:
    """A coordinator lists the folder while workers start."""
    ending, faults, seen = threading.Event(), [], 0

    def reader() -> None:
        nonlocal seen
        while not ending.is_set():
            for path in tmp_path.glob("actor*.*"):
                try:
                    read_counters(path)
                    seen += 1
                except FileNotFoundError:
                    pass  # the test removed it
                except Exception as fault:
                    faults.append(fault)

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        for number in range(400):
            Counters(tmp_path / f"actor-0.{number}", ["n"])
            (tmp_path / f"actor-0.{number - 1}").unlink(missing_ok=True)
        until(lambda: seen or faults, what="a page was read")
    finally:
        ending.set()
        thread.join(60)
    assert faults == []


def test_a_new_page_starts_at_zero_and_leaves_one_file(tmp_path: Path) -> None:
    Counters(tmp_path / "c", ["n"]).add("n", 5)
    Counters(tmp_path / "c", ["n"])
    assert read_counters(tmp_path / "c") == {"n": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
