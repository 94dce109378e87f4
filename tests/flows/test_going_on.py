"""A run that had reached its end goes on with more steps, other numbers of workers and another learning rate; one that
goes on, or starts from another, outlives a learner that is killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.flows.test_deaths import finished, killed, log_of
from tests.flows.test_start import weights_in


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
    wider = runs.rookery(
        "train", str(folder), "--steps", "9000", "--set", "environment.settings.radius=3", cwd=tmp_path
    )
    assert (wider.returncode, kinds_in(wider.stderr)) == (2, ["run_configuration_differs"]), wider.stderr
    assert "environment.settings.radius" in words_in(wider.stderr)
    assert json.loads((folder / "summary.json").read_text())["agent_steps"] == 4_000
    options = ["--steps", "9000", "--set", "actors=2", "--set", "policy.learning_rate=0.001"]
    options += ["--set", "environment.settings.turns=10"]
    longer = runs.rookery("train", str(folder), *options, cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    assert {"9,000", "4,000"} <= {*longer.stderr.split("the run goes on")[1].splitlines()[0].replace(";", " ").split()}
    summary = runs.summary_of(tmp_path)
    assert 9_000 <= summary["agent_steps"] < 9_100
    assert summary["restarts"] == {}, "nobody died"
    books = summary["segments"]
    assert books["unexplained"] == books["duplicates"] == books["in_flight"] == 0
    assert books["produced"] == books["received"] == books["trained"] + books["held"] + books["lost_in_learner"]
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert (kept["steps"], kept["schedule_steps"], kept["actors"]) == (9_000, 4_000, 2)
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    told = {line["key"]: (line["agent_steps"], line["old"], line["new"]) for line in history}
    assert told["steps"] == (4_000, 4_000, 9_000)
    assert told["policy.learning_rate"] == (4_000, 0.0005, 0.001)
    assert told["environment.settings.turns"] == (4_000, 20, 10)
    assert 10 <= summary["episode_length"]["agent_0"] < 20
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_a_run_and_a_copy_of_its_folder_go_on_at_once(tmp_path: Path, memory_dir: Path) -> None:
    assert runs.train(runs.paced(tmp_path, 1_000), tmp_path).returncode == 0
    more = ["--steps", "4000", "--set", "environment.settings.pause=0.01"]
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy / "run")
    with runs.started(["train", str(tmp_path / "run"), *more], tmp_path, "first") as first:
        runs.until(lambda: runs.agent_steps(tmp_path) > 1_000, what="the first goes on")
        again = runs.rookery("train", str(copy / "run"), "--steps", "2000", cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert first.popen.poll() is None, "they went on at once"
        assert first.wait() == 0, first.said
    assert [runs.summary_of(folder)["agent_steps"] for folder in (tmp_path, copy)] == [4_000, 2_000]


FIRST, LONGER = 1_600, 4_800
STEADY = {**runs.PPO, "anneal_learning_rate": False}


def killed_learner(
    folder: Path, memory: Path, policy: dict[str, Any], at: int = 800, steps: int = LONGER
) -> tuple[dict[str, Any], str]:
    """The summary and the learner's log of a run of `steps`, or to which one in `folder/run` goes on, whose learner of
    agent_0 is killed when it has made `at` and has a checkpoint."""
    keys: dict[str, Any] = {"policy": {"algorithm": STEADY, **policy}, "checkpoint_interval": 0.1}
    keys |= {"schedule_steps": FIRST} if at > FIRST else {}
    data = runs.paced(folder, steps, pause=0.004, **keys)
    saved = folder / "run" / "checkpoints" / "agent_0"
    with runs.training(data, folder) as worker:
        runs.until(lambda: saved.is_dir() and any(path.name.isdigit() for path in saved.iterdir()), what="is saved")
        killed(folder, "learner-agent_0", at=at)
        summary = finished(folder, worker, memory, {"learner-agent_0": 1}, steps)
    return summary, log_of(folder, "learner-agent_0")


def an_earlier_run(folder: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """Its folder, and what agent_0 has learned there."""
    (folder / "earlier").mkdir()
    assert runs.train(runs.config(steps=FIRST), folder / "earlier", "--sequential", "--no-progress").returncode == 0
    return str(folder / "earlier" / "run"), weights_in(folder / "earlier" / "run", "agent_0")


def moved(before: dict[str, torch.Tensor], folder: Path) -> set[str]:
    """Weights of agent_0 that are others now, in the run in `folder`."""
    after = weights_in(folder / "run", "agent_0")
    return {name for name in after if not torch.equal(before[name], after[name])} - {"returns.count"}  # has its bound


HIDDEN = {"layer_0_weight", "layer_0_bias"}


@pytest.mark.chaos
def test_a_run_with_a_frozen_start_goes_on_and_its_learner_is_killed(tmp_path: Path, memory_dir: Path) -> None:
    """Its start is applied once in three lives, its books are exact, and what is frozen stays to the bit."""
    path, before = an_earlier_run(tmp_path)
    policy = {"start": {"path": path, "freeze": "hidden"}}
    data = runs.paced(tmp_path, FIRST, pause=0.004, policy={"algorithm": STEADY, **policy})
    assert runs.train(data, tmp_path, "--set", "checkpoint_interval=0.1").returncode == 0
    _, log = killed_learner(tmp_path, memory_dir, policy, at=FIRST + 800)
    assert log.count("event=start policy=agent_0") == 1
    assert log.count("event=resumed policy=agent_0 from=checkpoint") == 2
    assert moved(before, tmp_path) == before.keys() - HIDDEN - {"returns.count"}


@pytest.mark.slow
@pytest.mark.chaos
def test_a_run_that_goes_on_outlives_its_learner(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(tmp_path, FIRST, pause=0.004, policy={"algorithm": STEADY})
    assert runs.train(data, tmp_path, "--set", "checkpoint_interval=0.1").returncode == 0
    _, log = killed_learner(tmp_path, memory_dir, {}, at=FIRST + 800)
    assert log.count("event=resumed policy=agent_0 from=checkpoint") == 2


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("freeze", "stays"), [(None, set()), ("hidden", HIDDEN), ({"only": "hidden", "steps": 10**6}, HIDDEN)]
)
def test_a_learner_that_is_killed_takes_its_start_once_and_keeps_what_is_frozen(
    tmp_path: Path, memory_dir: Path, freeze: Any, stays: set[str]
) -> None:
    path, before = an_earlier_run(tmp_path)
    summary, log = killed_learner(tmp_path, memory_dir, {"start": {"path": path, "freeze": freeze}})
    assert log.count("event=start policy=agent_0") == 1
    assert log.count("event=resumed policy=agent_0 from=checkpoint") == 1
    assert moved(before, tmp_path) == before.keys() - stays - {"returns.count"}
    assert summary["starts"]["agent_0"]["frozen"] == sorted(stays, reverse=True)
