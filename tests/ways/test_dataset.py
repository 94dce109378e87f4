"""A dataset: recorded, learned from by behaviour cloning, a sweep over that, and pictures of all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ways.terminal import Terminal
from tests.workers.coordination.dashboard.browser import browser

pytestmark = pytest.mark.slow

CLONE = """
environment: {id: "gymnasium:CartPole-v1"}
actors: 0
policy:
  algorithm: bc
  dataset: {path: runs/expert/datasets, newest: 50000}
"""
RATES = """
run: clone.yaml
seeds: [0, 1]
settings: {policy.learning_rate: [0.0001, 0.003]}
steps: 100000
"""
SHOWN = "Curves.panels.filter((one) => one.place?.closest('figure').hidden === false).map((one) => one.title)"
"""Titles of the panels that there is something for."""


def test_what_a_run_recorded_is_cloned_compared_and_drawn(cloned: Path, shell: Terminal) -> None:
    told = shell.run("rookery train cartpole --steps 300000 --set policy.record=true --run-dir runs/expert")
    (row,) = [line.replace("│", " ").split() for line in told.splitlines() if line.startswith("│")]
    assert float(row[4]) > 150, "there is something to clone"
    (cloned / "clone.yaml").write_text(CLONE)
    told = shell.run("rookery train clone.yaml --steps 300000 --run-dir runs/cloned")
    (row,) = [line.replace("│", " ").split() for line in told.splitlines() if line.startswith("│")]
    assert int(row[-2].replace(",", "")) - 50_000 in range(64), "whole segments"
    assert "`rookery evaluate` with the run folder" in told
    told = shell.run("rookery evaluate runs/cloned --episodes 20")
    (row,) = [line.replace("│", " ").split() for line in told.splitlines() if line.startswith("│")]
    assert float(row[-4]) > 150
    assert "rows trained in" in shell.run("rookery status runs/cloned")

    (cloned / "rates.yaml").write_text(RATES)
    assert "[sweep_without_scores]" in shell.run("rookery sweep rates.yaml", code=2)
    (cloned / "clone.yaml").write_text(CLONE + "evaluation: {every_steps: 20000, episodes: 10}\n")
    told = shell.run("rookery sweep rates.yaml", seconds=300)
    assert "learning_rate=" in told
    found = json.loads((cloned / "sweeps" / "rates" / "sweep.json").read_text())
    assert [(one["score"], one["runs"], one["of"]) for one in found] == [("evaluation", 2, 2)] * 2
    assert found[0]["iqm"] < found[1]["iqm"], "of so few rows a small rate learns less"
    shell.run("rookery plot runs/cloned sweeps/rates/*/seed-? -o curves.png")
    assert (cloned / "curves.png").stat().st_size > 10_000

    shell.type("rookery page runs/cloned")
    with browser(cloned.parent, 1_300) as window:
        window.open("http://" + shell.shows("http://").partition(" ")[0])
        window.until(
            f"const shown = {SHOWN}; return ['loss', 'rows trained per second'].every((one) => shown.includes(one))"
        )
        assert {"return", "steps per second"} & set(window.do(f"return {SHOWN}")) == set(), "nobody played"
        assert window.text("made").endswith("of 300,000")
        assert window.complaints() == []
    shell.press("C-c")
    shell.ended()
