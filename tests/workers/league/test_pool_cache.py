"""Members of the library on a node whose actors do not see the run's folder: fetched once, shared, let go of (J7)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import Refused, Timeout
from protocol.memory.shared_file import PREFIX, Counters, sweep
from tests.faults import raises
from tests.waiting import until
from workers.league.policy_pool import PoolEntry, checksum
from workers.league.pool_cache import PoolCache

FILES = {number: bytes([number]) * 5_000 for number in range(3)}
ENTRIES = [PoolEntry("main", number, checksum(data)) for number, data in FILES.items()]


class Fetch:
    """In place of a coordinator: notes who was asked for; `gate` may keep the answer back, `fault` be raised."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def __call__(self, member: str, _checksum: str, _seconds: float, _stop: threading.Event) -> bytes:
        self.asked.append(member)
        assert self.gate.wait(60)
        if self.fault is not None:
            raise self.fault
        return FILES[int(member.partition("/")[2])]


@contextmanager
def shelves(fetch: Fetch, count: int) -> Iterator[tuple[list[PoolCache], list[Counters]]]:
    """Of as many actors of one node."""
    counters = [Counters(None, ["league_fetched"]) for _ in range(count)]
    made = [PoolCache("run1", fetch, each, 5.0) for each in counters]
    try:
        yield made, counters
    finally:
        fetch.gate.set()
        for one in made:
            one.close()


def taken(shelf: PoolCache, entry: PoolEntry) -> Path:
    return until(lambda: shelf.get(entry), what="the member is at hand")


def test_a_member_is_fetched_once_for_a_node_and_gone_when_the_last_lets_go_of_it_J7(memory_dir: Path) -> None:
    fetch = Fetch()
    fetch.gate.clear()
    with shelves(fetch, 3) as (all_of_them, counters):
        assert [one.get(ENTRIES[0]) for one in all_of_them] == [None] * 3  # nobody waits
        until(lambda: fetch.asked, what="one of them asks")
        fetch.gate.set()
        paths = {taken(one, ENTRIES[0]) for one in all_of_them}
        assert len(paths) == 1
        path = paths.pop()
        assert path.read_bytes() == FILES[0]
        assert path.parent == memory_dir
        assert path.name.startswith(f"{PREFIX}run1-")
        assert sweep("run1") == []  # it is held
        for one in all_of_them[:2]:
            one.release(ENTRIES[0])
        assert path.exists()
        all_of_them[2].release(ENTRIES[0])
        assert not path.exists()
        assert taken(all_of_them[0], ENTRIES[0]) == path  # and is fetched again
        assert fetch.asked == ["main/0", "main/0"]
        assert sum(each["league_fetched"] for each in counters) == 2
    assert list(memory_dir.iterdir()) == []


def test_what_was_left_half_written_is_fetched_again_and_a_fault_is_told_J7(memory_dir: Path) -> None:
    fetch = Fetch()
    (memory_dir / f"{PREFIX}run1-.library-{ENTRIES[1].checksum}").write_bytes(b"half")
    with shelves(fetch, 1) as ((shelf,), _):
        assert taken(shelf, ENTRIES[1]).read_bytes() == FILES[1]
        fetch.fault = Timeout("library_part_silent", peer="tcp://10.0.0.1:5600", member="main/2", seconds=5.0)
        assert shelf.get(ENTRIES[2]) is None
        until(lambda: len(fetch.asked) == 2, what="it was asked for")
        fetch.fault = None
        assert taken(shelf, ENTRIES[2]).read_bytes() == FILES[2]
        fetch.fault = Refused("library_member_missing", member="main/0", checksum="0" * 32, choices=["main/1"])

        def told() -> bool:
            try:
                return shelf.get(ENTRIES[0]) is not None
            except Refused:
                return True

        until(told, what="the fault is told")
        with raises(Refused, "library_member_missing", member="main/0"):
            shelf.get(ENTRIES[0])
    assert list(memory_dir.iterdir()) == []


def test_what_a_killed_actor_left_goes_with_the_next_that_ends_and_what_others_hold_does_not_J7(
    memory_dir: Path,
) -> None:
    left = memory_dir / f"{PREFIX}run1-.library-{ENTRIES[2].checksum}"
    left.write_bytes(FILES[2])
    left.with_name(f"{left.name}.lock").write_bytes(b"")
    ring = memory_dir / f"{PREFIX}run1-actor-0.1-main.ring"
    ring.write_bytes(b"finished, and not taken yet")
    with shelves(Fetch(), 2) as ((first, second), _):
        held = taken(first, ENTRIES[0])
        second.close()
        assert {*memory_dir.iterdir()} == {held, ring}
        ring.unlink()
