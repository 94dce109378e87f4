"""Runs whose agents see something in common, with shared memory and without, and through a death in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs


def mapped(folder: Path, steps: int, **keys: Any) -> dict[str, Any]:
    """A treasure hunt whose agents see the whole grid beside what is around them."""
    data = runs.paced(folder, steps, pause=0.002, **keys)
    data["environment"]["settings"]["map"] = True
    return data


@pytest.mark.parametrize(
    ("algorithm", "transport"),
    [
        pytest.param(runs.PPO, "auto", id="ppo-auto", marks=pytest.mark.slow),
        pytest.param(runs.IQN, "tcp", id="iqn-tcp"),
        pytest.param(runs.PPO, "tcp", id="ppo-tcp", marks=pytest.mark.slow),
        pytest.param(runs.IQN, "auto", id="iqn-auto", marks=pytest.mark.slow),
    ],
)
def test_what_all_see_in_common_is_trained_on_to_the_last_segment_J9(
    tmp_path: Path, memory_dir: Path, transport: str, algorithm: dict[str, Any]
) -> None:
    """Nothing is damaged, refused or announced in vain; the books are exact."""
    result = runs.train(mapped(tmp_path, 1_600, transport=transport, algorithm=algorithm), tmp_path)
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"], stream=algorithm["name"] == "ppo"), summary["segments"]
    assert sum(summary["segments"]["dropped"].values()) == 0
    assert runs.files(memory_dir) == []
    assert "message_refused" not in "".join(p.read_text() for p in (tmp_path / "run" / "logs").iterdir())


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("victim", ["actor-0", "learner-agent_1"])
def test_a_run_with_something_in_common_survives_a_death_G1_G2_J9(
    tmp_path: Path, memory_dir: Path, transport: str, victim: str
) -> None:
    """kill -9; whoever comes back finds, or is sent, what the segments refer to."""
    with runs.training(mapped(tmp_path, 6_400, transport=transport), tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path) >= 800 and len(runs.workers_of(tmp_path)) == 4, what="it is on")
        runs.kill(runs.workers_of(tmp_path)[victim])
        assert worker.wait() == 0, worker.said
    assert "Traceback" not in worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["restarts"] == {victim: 1}
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert runs.files(memory_dir) == []
