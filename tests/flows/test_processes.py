"""Whole runs whose worlds are stepped in processes of their own, in groups that take turns with inference."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from tests.flows import runs


def config(folder: Any, steps: int, pause: float = 0.0, **environment: Any) -> dict[str, Any]:
    """A treasure hunt of eight copies in two processes, unless told otherwise."""
    data = runs.paced(folder, steps, pause=pause) if pause else runs.config(steps=steps)
    data["environment"] |= {"processes": 2, **environment}
    return data


@pytest.mark.parametrize("algorithm", [pytest.param(runs.PPO, marks=pytest.mark.slow), runs.IQN])
def test_groups_of_copies_take_turns_and_every_step_is_accounted_for_K1_K2_K10(tmp_path, memory_dir, algorithm):
    data = config(tmp_path, 3_200, processes=1, async_factor=2)
    data["policy"]["algorithm"] = dict(algorithm)
    ended = runs.train(data, tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["agent_steps"] == 3_200
    assert summary["env_steps"] == 1_600 - 4  # nobody waits for the last step of the group that had the last actions
    assert runs.balanced(summary["segments"], stream=algorithm is runs.PPO)
    assert summary["segments"]["unexplained"] == summary["segments"]["torn"] == 0
    assert summary["environment_restarts"] == 0
    assert runs.files(memory_dir) == []


def test_a_killed_world_is_started_again_and_the_run_goes_on(tmp_path, memory_dir):
    """kill -9 of one of the actor's processes: counted, told, nothing else ends."""
    data = config(tmp_path, 3_200, pause=0.009)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path) >= 320, runs.PATIENCE, what="the run is on")
        actor = psutil.Process(runs.workers_of(tmp_path)["actor-0"])
        steppers = [child for child in actor.children() if "workers.environments.process_main" in child.cmdline()]
        assert len(steppers) == 2
        steppers[0].kill()
        assert worker.wait() == 0, worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["agent_steps"] == 3_200
    assert summary["environment_restarts"] == 1
    assert summary["restarts"] == {}
    assert runs.balanced(summary["segments"])
    assert runs.files(memory_dir) == []
