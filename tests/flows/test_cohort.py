"""Two policies as a cohort in one learner process of their own, computed as one, which is killed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.flows import runs
from tests.flows.test_deaths import finished, killed, log_of


def test_all_members_of_a_killed_cohort_resume_from_their_checkpoints_G1(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(
        tmp_path,
        6_400,
        pause=0.004,
        checkpoint_interval=0.5,
        learners={"both": ["agent_0", "agent_1"]},
        cohort="stacked",
    )
    names = ("agent_0", "agent_1")
    saved = [tmp_path / "run" / "checkpoints" / name for name in names]
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: all(list(folder.glob("[0-9]*")) for folder in saved), what="checkpoints")
        killed(tmp_path, "learner-both", of=3)
        summary = finished(tmp_path, worker, memory_dir, {"learner-both": 1})
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
