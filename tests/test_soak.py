"""What grows is seen, what has filled up is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import Course, grown, soak


def test_growth_after_the_warm_up_is_measured_and_growth_before_it_is_not() -> None:
    filling = Course([(t / 10, min(t, 30) * 5.0) for t in range(100)])
    assert filling.slope == 0.0
    assert filling.ends == (150.0, 150.0)
    growing = Course([(t / 10, 100.0 + 0.2 * t + (t % 2)) for t in range(100)])
    assert growing.slope == pytest.approx(2.0, abs=0.05)
    assert growing.ends[1] > growing.ends[0]


def test_a_run_that_never_began_is_a_finding_and_no_traceback() -> None:
    held = {"launcher": Course([(0.1, 47.0), (0.2, 0.0)])}
    said: list[str] = []
    found = grown(held, held, held, Course(), said.append)
    assert found == ["there never was shared memory: no actor and learner came together"]
    assert any(line.startswith("| launcher |") for line in said)


@pytest.mark.slow
def test_a_short_soak_is_flat_G8_L3(memory_dir: Path) -> None:
    """G8, L3: descriptors, threads and shared memory; a minute is too short for the memory of processes."""
    found = soak(1.0, "hunt", print)
    assert [one for one in found if "MiB a minute" not in one] == []
