"""Whole runs whose world is played by programs of their own: they connect, are given actions and are trained on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.flows import runs
from tests.tools import ROOT

EXAMPLE = str(ROOT / "protocol" / "clients" / "python" / "cartpole.py")


def config(steps: int, copies: int = 2, **keys: Any) -> dict[str, Any]:
    """A run that waits for cart-poles."""
    settings = {"world": "gymnasium:CartPole-v1", **keys.pop("settings", {})}
    policy = {"segment_length": 16, **keys.pop("policy", {})}
    environment = {"id": "external", "copies": copies, "settings": settings}
    return runs.config(steps=steps, policy=policy, **keys) | {"environment": environment}


def test_two_simulators_drive_and_every_step_is_accounted_for_I8_J5(tmp_path: Path, memory_dir: Path) -> None:
    """I8 J5: they ask when they want, are told when the run is over, and end by themselves."""
    with runs.training(config(1_500), tmp_path) as worker, ExitStack() as stack:
        command = [runs.PYTHON, EXAMPLE, str(tmp_path / "run")]
        simulators = [stack.enter_context(runs.started([*command, name], tmp_path, name)) for name in ("left", "right")]
        assert worker.wait() == 0, worker.said
        assert [one.wait(30) for one in simulators] == [0, 0], [one.said for one in simulators]
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert 1_500 <= summary["agent_steps"] < 1_502
    played = [int(one.said.split()[1]) for one in simulators]
    assert min(played) > 200
    assert summary["agent_steps"] - 2 <= sum(played) <= summary["agent_steps"]
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["unexplained"] == 0
    assert runs.files(memory_dir) == []
