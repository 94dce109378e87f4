"""Interquartile means and bootstrap intervals: known numbers, and how often the truth lies within."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from protocol.control.wording import shown, shown_interval
from protocol.intervals import interquartile_mean, interval
from tests.tools import ROOT, require


def test_interquartile_mean_leaves_the_lowest_and_highest_quarter_out() -> None:
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == pytest.approx(3.5)
    assert interquartile_mean(np.array([9.0, 1, 2])) == pytest.approx(4), "of three scores none is left out"
    curves = np.array([[0.0, 9], [1, 1], [2, 2], [3, 3]])
    np.testing.assert_allclose(interquartile_mean(curves), [1.5, 2.5])


def test_a_single_score_has_no_interval() -> None:
    found = interval(np.array([3.0]))
    assert found.value == 3
    assert np.isnan([found.low, found.high]).all()


def test_intervals_hold_the_truth_about_as_often_as_they_say_and_are_the_same_again() -> None:
    source = np.random.default_rng(1)
    held = 0
    for _ in range(30):
        scores = source.normal(5, 2, 60)
        found = interval(scores)
        held += bool(found.low <= 5 <= found.high)
        assert found.low < found.value < found.high
    assert held >= 25, "95 % of 30 are 28 or 29"
    assert interval(scores) == found


SHOWN = {
    0.03: "0.03",
    -0.03: "-0.03",
    0.0021: "0.0021",
    0.00012: "0.00012",
    0.66049: "0.6605",
    5.0: "5",
    22.964: "22.96",
    153.24: "153.2",
    999.4: "999.4",
    1234.4: "1,234",
    27_974.3: "27,974",
    1e7: "10,000,000",
    0.0: "0",
}


def test_a_number_is_shown_with_four_digits_that_mean_something_however_small_it_is() -> None:
    assert {value: shown(value) for value in SHOWN} == SHOWN
    assert [shown(value, 2) for value in (0.034, 0.0034, 34.2, 0.999)] == ["0.034", "0.0034", "34", "1"]
    assert [shown(value) for value in (None, float("nan"), float("inf"))] == ["–", "–", "∞"]
    assert [shown_interval(None, 1.0), shown_interval(0.01, 0.0312)] == ["–", "0.01 to 0.0312"]


def test_the_page_shows_numbers_in_the_same_way() -> None:
    """The one function of it that formats them, run by itself."""
    script = (ROOT / "workers/coordination/dashboard/assets/dashboard.js").read_text(encoding="utf-8")
    function = script[(start := script.index("function number(")) : script.index("\n}\n", start) + 3]
    told = f"{function} console.log(JSON.stringify({json.dumps([*SHOWN])}.map((value) => number(value))))"
    said = subprocess.run([require("node"), "-e", told], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(said.stdout) == [*SHOWN.values()]


def test_curves_are_drawn_run_by_run() -> None:
    """Two runs: every draw is one of them or their middle, at all points alike."""
    found = interval(np.array([[0.0, 10], [2.0, 14]]), interquartile_mean)
    np.testing.assert_allclose(found.value, [1, 12])
    np.testing.assert_allclose(found.low, [0, 10])
    np.testing.assert_allclose(found.high, [2, 14])
