"""Whole runs with a central critic on a joint observation, and what leaves them (I2, X10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from protocol.errors import EnvironmentFault
from tests.faults import kinds_in, raises, words_in
from tests.flows import runs
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.tools.export import export


def together(**environment: Any) -> dict[str, Any]:
    """A small treasure hunt whose critics see what both agents see, stepped by processes."""
    data = runs.config(algorithm={**runs.PPO, "central_critic": True, "normalize_observation": True}, steps=1_600)
    data["environment"] |= {"central_state": "joint", "processes": 2, "async_factor": 2, **environment}
    return data


def test_critics_learn_from_what_all_see_and_actors_travel_alone_I2_X10(tmp_path: Path, memory_dir: Path) -> None:
    """Over TCP and in one process: tests/flows/test_any_space.py."""
    result = runs.train(together(), tmp_path)
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert sum(summary["segments"]["dropped"].values()) == 0
    assert runs.files(memory_dir) == []
    export(tmp_path / "run", "agent_1", "safetensors", tmp_path / "a.safetensors", "newest")
    assert all(name.startswith("actor.") for name in load_file(tmp_path / "a.safetensors"))
    frozen = ExportedPolicy.load(tmp_path / "a.safetensors")
    assert list(frozen.inputs) == ["observation.own"]
    assert frozen.manifest.withheld == ("observation.central.others.0", "observation.central.there")
    seen = {"observation.own": np.zeros((2, 6, 5, 5), np.uint8)}
    assert frozen.act(seen)["action"].shape == (2,)
    with raises(EnvironmentFault, "input_withheld_from_policy"):
        frozen.act({**seen, "observation.central.others.0": np.zeros((2, 6, 5, 5), np.uint8)})


def test_without_anything_more_to_see_a_run_is_refused_at_once_with_the_remedy(tmp_path: Path) -> None:
    result = runs.train(together(central_state=None), tmp_path)
    assert result.returncode == 2
    assert kinds_in(result.stderr) == ["agent_not_learnable"]
    assert {"'agent_0'", "central_critic", "environment.central_state", "joint"} <= words_in(result.stderr)
    assert "Traceback" not in result.stderr
