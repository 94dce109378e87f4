"""Whole runs of a world whose agents see, do and may do things of every kind, and come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.flows.any_space import WORLD


def any_space(folder: Path, steps: int, **keys: Any) -> dict[str, Any]:
    """A policy for each of them."""
    (folder / "any_space_world.py").write_text(WORLD)
    return runs.config(steps=steps, environment={"id": "any_space_world:make", "copies": 4}, **keys)


@pytest.mark.parametrize(
    "way",
    [
        "auto",
        pytest.param("tcp", marks=pytest.mark.slow),
        "sequential",
        pytest.param("processes", marks=pytest.mark.slow),
    ],
)
def test_agents_of_every_kind_are_trained_to_the_last_segment_I1_I2_I5(
    tmp_path: Path, memory_dir: Path, way: str
) -> None:
    """In shared memory, over TCP, in one process, and stepped by processes of their own; the books are exact. The arm
    learns by SAC, of whose weights a part travels, the picker by DQN among legal actions, the others by PPO, the rover
    with a critic that sees what it does not."""
    replayed = {
        "arm": {"algorithm": dict(runs.SAC)},
        "picker": {"algorithm": {**runs.SAC, "name": "dqn", "priority_alpha": 0.6, "epsilon": 0.5}},
        "rover": {"algorithm": {**runs.PPO, "central_critic": True, "value_clip": 0.2}},
    }
    data = any_space(tmp_path, 2_400, transport="tcp" if way == "tcp" else "auto", policies=replayed)
    if way == "processes":
        data["environment"] |= {"processes": 2, "async_factor": 2}
    result = runs.train(data, tmp_path, *(["--sequential"] if way == "sequential" else []))
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["train_steps"].keys() == {"rover", "arm", "dial", "picker", "herd.cow"}
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert sum(summary["segments"]["dropped"].values()) == 0
    for policy in ("rover", "dial"):
        newest = max((tmp_path / "run" / "checkpoints" / policy).iterdir(), key=lambda step: int(step.name))
        names = load_file(newest / "weights.safetensors").keys()
        assert any(name.startswith("critic.") for name in names) == (policy == "rover")
    for masked in ("rover", "picker"):
        assert summary["returns"][masked]["last"] == pytest.approx(10), "one legal move a turn, and it was made"
    assert runs.files(memory_dir) == []


def test_an_algorithm_that_cannot_learn_an_agents_actions_says_so_at_once(tmp_path: Path, memory_dir: Path) -> None:
    data = any_space(tmp_path, 6_000, policies={"arm": {"algorithm": dict(runs.IQN)}})
    result = runs.train(data, tmp_path)
    assert result.returncode == 2
    assert kinds_in(result.stderr) == ["agent_not_learnable"]
    assert {"'arm'", "iqn", "sac", "ppo"} <= words_in(result.stderr)
    assert "Traceback" not in result.stderr
