"""`rookery evaluate`: checkpoints of a real run play without exploring."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.flows.runs import config
from tests.learning.greedy import make_run
from workers.evaluation.scores import FILE
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.tools import evaluate as module
from workers.tools.evaluate import evaluate, main


def test_evaluate_plays_the_newest_checkpoints_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = parse_run({**config(steps=800), "seed": 3})
    make_run(run, tmp_path / "run")
    drawn: list[object] = []
    decide = ExportedPolicy.infer

    def watched(self, seen, noise, legal=None, state=None):
        drawn.append(noise)
        return decide(self, seen, noise, legal, state)

    monkeypatch.setattr(ExportedPolicy, "infer", watched)
    lines = evaluate(tmp_path / "run", 8)
    assert drawn
    assert set(drawn) == {None}
    steps = {line["policy"]: line["train_steps"] for line in lines}
    assert steps == {name: max(saved(tmp_path, name)) for name in ("agent_0", "agent_1")}
    again = evaluate(tmp_path / "run", 8, others={"agent_1": str(checkpoint(tmp_path, "agent_0"))})
    assert again[0]["mean"] != lines[0]["mean"] or again[1]["mean"] != lines[1]["mean"]
    monkeypatch.setattr(module.torch_setup, "configure_torch", lambda: None)
    told = CliRunner().invoke(main, [str(tmp_path / "run"), "--episodes", "8", "--json"])
    assert told.exit_code == 0, told.output
    assert [one["mean"] for one in json.loads(told.output)] == [one["mean"] for one in lines]
    assert len((tmp_path / "run" / FILE).read_text().splitlines()) == 2
    assert np.isfinite([line["mean"] for line in lines]).all()
    strange = CliRunner().invoke(main, [str(tmp_path / "run"), "--policy", "pilot=x"])
    assert strange.exit_code == 2
    assert kinds_in(strange.output) == ["policy_option_unused"]
    assert "'pilot'" in strange.output
    assert "agent_0, agent_1" in strange.output
    shapeless = CliRunner().invoke(main, [str(tmp_path / "run"), "--policy", "agent_0"])
    assert "is not of the form NAME=PATH" in shapeless.output


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, [str(tmp_path)])
    assert told.exit_code == 2
    assert kinds_in(told.output) == ["folder_without_config"]
    assert str(tmp_path) in told.output


@pytest.mark.parametrize(
    ("key", "kind", "episodes", "seed"), [("episodes", "episodes_too_few", -1, 0), ("seed", "value_invalid", 1, -1)]
)
def test_a_number_that_says_nothing_is_refused_before_anything_is_read(
    tmp_path: Path, key: str, kind: str, episodes: int, seed: int
) -> None:
    told = CliRunner().invoke(main, [str(tmp_path), f"--{key}", "-1"])
    assert (told.exit_code, kinds_in(told.output)) == (2, [kind])
    with raises(ConfigurationError, kind, key=key):
        evaluate(tmp_path, episodes, seed)


def saved(folder: Path, policy: str) -> list[int]:
    return [int(path.name) for path in (folder / "run" / "checkpoints" / policy).iterdir()]


def checkpoint(folder: Path, policy: str) -> Path:
    return folder / "run" / "checkpoints" / policy / str(max(saved(folder, policy)))
