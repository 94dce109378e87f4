"""A run that had reached its end goes on with more steps, other numbers of workers and another learning rate."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.flows import runs


def test_a_finished_run_goes_on_with_more_steps_and_two_actors(tmp_path: Path, memory_dir: Path) -> None:
    assert runs.train(runs.config(steps=4_000), tmp_path).returncode == 0
    folder = tmp_path / "run"
    again = runs.rookery("train", str(folder), cwd=tmp_path)
    assert again.returncode == 2
    assert "[run_already_finished]" in again.stderr
    fewer = runs.rookery("train", str(folder), "--steps", "3000", cwd=tmp_path)
    assert fewer.returncode == 2
    assert "[steps_already_made]" in fewer.stderr
    assert not (folder / "config.new.yaml").exists()
    assert json.loads((folder / "summary.json").read_text())["agent_steps"] == 4_000
    options = ["--steps", "9000", "--set", "actors=2", "--set", "policy.learning_rate=0.001"]
    longer = runs.rookery("train", str(folder), *options, cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    assert {"9,000", "4,000"} <= {*longer.stderr.split("the run goes on")[1].splitlines()[0].replace(";", " ").split()}
    summary = runs.summary_of(tmp_path)
    assert 9_000 <= summary["agent_steps"] < 9_100
    books = summary["segments"]
    assert books["unexplained"] == books["duplicates"] == books["in_flight"] == 0
    assert books["produced"] == books["received"] == books["trained"] + books["held"] + books["lost_in_learner"]
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert (kept["steps"], kept["schedule_steps"], kept["actors"]) == (9_000, 4_000, 2)
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    told = {line["key"]: (line["agent_steps"], line["old"], line["new"]) for line in history}
    assert told["steps"] == (4_000, 4_000, 9_000)
    assert told["policy.learning_rate"] == (4_000, 0.00025, 0.001)
    assert runs.files(memory_dir) == []
