"""What grows is seen, what has filled up is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import Course, soak


def test_growth_after_the_warm_up_is_measured_and_growth_before_it_is_not() -> None:
    filling = Course([(t / 10, min(t, 30) * 5.0) for t in range(100)])
    assert filling.slope == 0.0
    assert filling.ends == (150.0, 150.0)
    growing = Course([(t / 10, 100.0 + 0.2 * t + (t % 2)) for t in range(100)])
    assert growing.slope == pytest.approx(2.0, abs=0.05)
    assert growing.ends[1] > growing.ends[0]


def test_what_was_there_for_one_look_is_no_leak_and_what_stays_is() -> None:
    assert Course([(t / 10, 30.0 + (t == 98)) for t in range(100)]).ends == (30.0, 30.0)
    assert Course([(t / 10, 30.0 + (t >= 70)) for t in range(100)]).ends == (30.0, 31.0)


@pytest.mark.slow
def test_a_short_soak_is_flat_G8_L3(memory_dir: Path) -> None:
    """G8, L3: descriptors, threads and shared memory; a minute is too short for the memory of processes."""
    found = soak(1.0, "hunt", print)
    assert [one for one in found if "MiB a minute" not in one] == []
