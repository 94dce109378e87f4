"""An auxiliary in real runs: a learner of its own, whose weights others consult, and without which they go on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from tests.faults import kinds_in, words_in
from tests.flows import runs
from workers.policies.checkpoint import list_steps, load_newest
from workers.sequential import Sequential


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    """What the metrics say of a policy or auxiliary, line after line."""
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


def test_it_trains_beside_the_policies_which_consult_it_and_its_books_are_exact_J1(
    tmp_path: Path, memory_dir: Path
) -> None:
    """A learner process of its own; all it is told of 3,600 steps is trained on."""
    algorithm = {**runs.curious(), "gamma": 0.9}  # its episodes last 20 turns
    data = runs.config(algorithm, steps=3_600, auxiliaries={"novelty": runs.NOVELTY}, log_interval=10)
    result = runs.train(data, tmp_path, "--no-progress")
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    segments = summary["segments"]
    assert runs.balanced(segments), segments
    assert segments["unexplained"] == segments["lost_in_learner"] == segments["torn"] == 0
    assert segments["received"] == segments["trained"] + segments["held"]
    assert summary["versions"]["novelty"] > 5
    assert summary["health"]["batches_checked"]["novelty"] > 5
    assert summary["health"]["findings"] == []
    assert sorted(summary["returns"]) == ["agent_0", "agent_1"]
    assert (tmp_path / "run" / "counters" / "learner-novelty.1").exists()
    assert list_steps(tmp_path / "run" / "checkpoints" / "novelty")
    log = (tmp_path / "run" / "logs" / "learner-agent_0.log").read_text()
    assert "intrinsic_mean=" in log
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_one_process_for_all_learners_and_two_actors_do_the_same(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.config(runs.curious(), auxiliaries={"novelty": runs.NOVELTY}, num_learner_processes=1, actors=2)
    result = runs.train(data, tmp_path, "--no-progress")
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert runs.balanced(summary["segments"])
    assert summary["versions"]["novelty"] > 5
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_over_sockets_alone_and_in_a_fraction_it_does_the_same(tmp_path: Path, memory_dir: Path) -> None:
    auxiliary = {**runs.NOVELTY, "fraction": 0.25, "observes": ["agent_0", "agent_1"]}
    data = runs.config(runs.curious(), steps=8_000, auxiliaries={"novelty": auxiliary}, transport="tcp")
    result = runs.train(data, tmp_path, "--no-progress")
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    segments = summary["segments"]
    assert runs.balanced(segments)
    assert segments["produced"] == pytest.approx(1.25 * 8_000 / 8, rel=0.1)
    assert summary["versions"]["novelty"] > 3
    assert any(line.get("intrinsic_version", 0) > 1 for line in told(tmp_path, "agent_0"))


def sequential(folder: Path, coefficient: float | None) -> dict[str, Any]:
    """The summary of a short run in this process, with an auxiliary unless the coefficient is None."""
    if coefficient is None:
        data = runs.config(steps=1_600)
    else:
        data = runs.config(runs.curious(coefficient), steps=1_600, auxiliaries={"novelty": runs.NOVELTY})
    run = Sequential(parse_run(data), folder)
    run.finish(run.run())
    return dict(json.loads((folder / "summary.json").read_text()))


def test_in_one_process_it_does_the_same_and_a_bonus_without_weight_changes_nothing_J1(tmp_path: Path) -> None:
    """Those who are watched act, train and send the same to the last bit; with weight they do not."""
    folders = {name: tmp_path / name for name in ("alone", "watched", "curious")}
    for folder in folders.values():
        (folder / "counters").mkdir(parents=True)
    alone, watched, rewarded = (
        sequential(folders[name], weight) for name, weight in (("alone", None), ("watched", 0.0), ("curious", 0.5))
    )
    assert watched["segments"]["produced"] == 2 * alone["segments"]["produced"]
    assert runs.balanced(rewarded["segments"])
    weights = {}
    for name, folder in folders.items():
        path = folder / "checkpoints" / "agent_0"
        manifest = json.loads((path / str(list_steps(path)[-1]) / "manifest.json").read_text())
        found = load_newest(path, manifest["weights_hash"])
        assert found is not None
        weights[name] = found.weights
    same = [all(bool((weights["alone"][k] == weights[n][k]).all()) for k in weights["alone"]) for n in folders]
    assert same == [True, True, False]
    assert rewarded["train_steps"]["novelty"] > 0


@pytest.mark.slow
@pytest.mark.chaos
def test_a_killed_auxiliary_stops_nobody_and_comes_back_from_where_it_was_G1_J1(
    tmp_path: Path, memory_dir: Path
) -> None:
    """kill -9 of its learner: the policies go on with its last weights, and it resumes, never from random."""
    data = runs.paced(tmp_path, 10_000_000, pause=0.004, auxiliaries={"novelty": runs.NOVELTY}, log_interval=10)
    data["policy"]["algorithm"] = runs.curious()
    log = tmp_path / "run" / "logs" / "learner-novelty.log"

    def newest() -> int:
        return int(told(tmp_path, "novelty")[-1]["version"])

    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path) >= 1_600 and len(runs.workers_of(tmp_path)) == 5)
        runs.kill(runs.workers_of(tmp_path)["learner-novelty"])
        before, trained = newest(), told(tmp_path, "agent_0")[-1]["train_steps"]
        runs.until(lambda: "event=resumed" in log.read_text(), what="it is back")
        runs.until(lambda: newest() > before + 5, what="it learns on")
        assert told(tmp_path, "agent_0")[-1]["train_steps"] > trained
        runs.kill(worker.popen.pid, signal.SIGINT)
        assert worker.wait() == 1, worker.said
    assert "Traceback" not in worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["restarts"] == {"learner-novelty": 1}
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert min(*summary["segments"]["dropped"].values(), summary["segments"]["lost_in_learner"]) >= 0
    (resumed,) = [line for line in log.read_text().splitlines() if "event=resumed" in line]
    assert int(resumed.rpartition("version=")[2].split()[0]) > 1
    mine = (tmp_path / "run" / "logs" / "learner-agent_0.log").read_text()
    ages = [float(age) for age in re.findall(r"intrinsic_age=([\d.e+-]+)", mine)]
    assert max(ages) > 0.2, "while it was away its last weights served on"
    assert runs.files(memory_dir) == []


def test_what_cannot_work_is_said_at_the_start_in_one_sentence(tmp_path: Path) -> None:
    data = runs.config(runs.curious())
    result = runs.rookery("train", str(runs.write(data, tmp_path)), "--run-dir", str(tmp_path / "run"), cwd=tmp_path)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert kinds_in(last) == ["unknown_auxiliary"]
    assert "'novelty'" in words_in(last)
    assert "Traceback" not in result.stderr
