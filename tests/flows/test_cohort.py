"""Cohorts: two policies in one learner process, computed as one, which is killed; and many that would do better so."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows import runs
from tests.flows.test_deaths import finished, killed, log_of


def test_all_members_of_a_killed_cohort_resume_from_their_checkpoints_G1(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(
        tmp_path,
        3_200,
        pause=0.008,
        checkpoint_interval=0.5,
        learners={"both": ["agent_0", "agent_1"]},
        cohort="stacked",
    )
    names = ("agent_0", "agent_1")
    saved = [tmp_path / "run" / "checkpoints" / name for name in names]
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: all(list(folder.glob("[0-9]*")) for folder in saved), what="checkpoints")
        killed(tmp_path, "learner-both", at=400, of=3)
        summary = finished(tmp_path, worker, memory_dir, {"learner-both": 1}, 3_200)
    log = log_of(tmp_path, "learner-both")
    assert "event=stacked policies=agent_0,agent_1" in log
    assert "event=acting_stacked policies=agent_0,agent_1" in log_of(tmp_path, "actor-0")
    for name, folder in zip(names, saved, strict=True):
        (resumed,) = [line for line in log.splitlines() if f"event=resumed policy={name} " in line]
        assert "from=checkpoint" in resumed
        assert int(resumed.rpartition("train_steps=")[2].split()[0]) > 0
        assert summary["train_steps"][name] > 0
        newest = max(folder.iterdir(), key=lambda path: int(path.name))
        assert json.loads((newest / "manifest.json").read_text())["policy"] == name


@pytest.fixture
def one_core() -> Iterator[None]:
    """What is started meanwhile has no other, whatever else the machine does."""
    before, starters = os.sched_getaffinity(0), {0, (runs.forge and runs.forge.pid) or 0}
    for starter in starters:
        os.sched_setaffinity(starter, {min(before)})
    yield
    for starter in starters:
        os.sched_setaffinity(starter, before)


@pytest.mark.usefixtures("one_core")
def test_on_a_core_alike_policies_share_a_learner_unless_it_is_said_otherwise_and_that_is_told(tmp_path: Path) -> None:
    data = runs.config(steps=4_000, environment={"id": "synthetic", "settings": {"agents": 4}})
    with runs.training(data, tmp_path) as worker:
        assert worker.wait() == 0, worker.said
    assert "4 policies share a learner process: " in worker.said
    assert [path.name for path in (tmp_path / "run" / "counters").glob("learner*")] == ["learner-agent_0.1"]
    assert min(runs.summary_of(tmp_path)["train_steps"].values()) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_learners_that_wait_for_actors_that_wait_for_a_processor_are_told_so(tmp_path: Path) -> None:
    """More actors, as of old, would gain nothing."""
    data = runs.config(
        steps=10**9, environment={"id": "synthetic", "settings": {"agents": 4}}, learners="process", seconds=2.5
    )
    with runs.training(data, tmp_path) as worker:
        assert worker.wait() == 0, worker.said
    assert len(runs.summary_of(tmp_path)["train_steps"]) == 4
    assert runs.summary_of(tmp_path)["verdict"] == "processor-bound"
