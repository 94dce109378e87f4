"""What grows is seen, what has filled up is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import Course, Held, Look, grown, soak, watch


def test_growth_after_the_warm_up_is_measured_and_growth_before_it_is_not() -> None:
    filling = Course([(t / 10, min(t, 30) * 5.0) for t in range(100)])
    assert filling.slope == 0.0
    assert filling.ends == (150.0, 150.0)
    growing = Course([(t / 10, 100.0 + 0.2 * t + (t % 2)) for t in range(100)])
    assert growing.slope == pytest.approx(2.0, abs=0.05)
    assert growing.ends[1] > growing.ends[0]


def test_a_run_that_never_began_is_a_finding_and_no_traceback() -> None:
    held, said = Held(), list[str]()
    held.note(0.1, [Look({"launcher": (47.0, 10, 5)}, 0.0, 0)])
    held.note(0.2, [Look({"launcher": (0.0, 10, 5)}, 0.0, 0)])
    assert grown(held, said.append) == ["there never was shared memory: no actor and learner came together"]
    assert any(line.startswith("| launcher |") for line in said)


def test_what_comes_and_goes_is_not_held_and_one_more_that_stays_is() -> None:
    """The same in the first and in the last windows."""

    def held(last: int) -> Held:
        course = Held()
        for window in range(40):
            extra = last if window >= 35 else 0
            busy = [extra + (look % 5 == window % 5 and window > 30) for look in range(9)]
            course.note(window / 12, [Look({"worker": (50.0, 29 + more, 8 + more)}, 1.5, 6 + more) for more in busy])
        return course

    assert grown(held(0), lambda _: None) == []
    assert grown(held(1), lambda _: None) == [
        "worker had 29 descriptors at first and 30 at last",
        "worker had 8 threads at first and 9 at last",
        "files of shared memory grew from 6 to 7",
    ]


@pytest.mark.parametrize("minutes", [5, 60])
def test_a_descriptor_a_minute_is_found_however_many_come_and_go_beside_it_G8(minutes: int) -> None:
    """G8: two of every three looks see three more, and a window now and then sees nothing else."""
    held = Held()
    for window in range(12 * minutes):
        leaked = window // 12
        busy = [3 if window % 17 == 0 or look % 3 else 0 for look in range(9)]
        held.note(window / 12, [Look({"worker": (50.0, 29 + leaked + more, 8)}, 1.5, 6) for more in busy])
    (found,) = grown(held, lambda _: None)
    assert found.startswith("worker had ")
    assert "descriptors at first" in found


LEAKY = """
import os, sys, threading, time
kept = []
for number in range(10**6):
    open(os.path.join(sys.argv[1], str(number)), "wb").write(bytes(9))
    kept.append(os.open(os.devnull, os.O_RDONLY))
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    time.sleep(0.1)
"""


def test_a_process_that_leaks_descriptors_threads_and_files_is_found_G8(tmp_path: Path) -> None:
    """G8: each of the three."""
    held = Held()
    with subprocess.Popen([sys.executable, "-c", LEAKY, str(tmp_path)]) as popen:
        try:
            watch(popen.pid, tmp_path, held, lambda: len(held.files.points) >= 8, 120.0, window=0.3)
        finally:
            popen.kill()
    found = " ".join(grown(held, print))
    for what in ("descriptors at first", "threads at first", "files of shared memory grew"):
        assert what in found


@pytest.mark.slow
def test_a_short_soak_is_flat_G8_L3(memory_dir: Path) -> None:
    """G8, L3: descriptors, threads and shared memory; a minute is too short for the memory of processes."""
    found = soak(1.0, "hunt", print)
    assert [one for one in found if "MiB a minute" not in one] == []
