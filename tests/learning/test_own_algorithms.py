"""The document's algorithms from outside learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from tests.flows.test_own_algorithms import written
from tests.learning.greedy import greedy_returns, make_run
from tests.trial import Trial


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "least"), [("spo", 450.0), ("munchausen", 400.0), ("horizons", 450.0)])
def test_an_algorithm_from_outside_learns_to_balance(
    name: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    data: dict[str, Any] = written(tmp_path)[name]
    monkeypatch.chdir(tmp_path)
    run = parse_run({**data, "steps": trial.steps(data["steps"]), "seed": trial.seed, "baseline_episodes": 0})
    make_run(run, tmp_path / "run")
    (earned,) = greedy_returns(tmp_path / "run").values()
    trial.reaches(earned, least, name)
