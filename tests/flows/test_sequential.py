"""The sequential reference: one process, the same folder and summary, and the same bits for the same seed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.config_loader import load
from protocol.config.run import parse_run
from tests.faults import kinds_in
from tests.flows import runs
from tests.learning.greedy import make_run


def weights(folder: Path) -> dict[str, bytes]:
    """Every file of tensors in each policy's last checkpoint: which others there are depends on how long one takes."""
    policies = (folder / "run" / "checkpoints").iterdir()
    last = [
        max((one for one in policy.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name))
        for policy in policies
    ]
    places = sorted(place for folder in last for place in folder.glob("*.safetensors"))
    return {str(place.relative_to(folder)): place.read_bytes() for place in places}


def finished(folder: Path, data: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """The summary of a sequential run that reached its end."""
    folder.mkdir()
    result = runs.train(data, folder, "--sequential", *arguments)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


BY_PRIORITY = {**runs.SAC, "name": "dqn", "priority_alpha": 0.6, "noisy": True, "anneal_learning_rate": True}


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(runs.PPO, marks=pytest.mark.slow), pytest.param(runs.IQN, marks=pytest.mark.slow), BY_PRIORITY],
    ids=["ppo", "iqn", "by priority"],
)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others_A9(
    tmp_path: Path, memory_dir: Path, algorithm: dict[str, Any]
) -> None:
    """Checkpoints (weights, optimiser, replay) compare byte by byte; the summary has every key of a distributed run."""
    data = runs.config(algorithm, steps=2_000)
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    summary = finished(first, data)
    assert summary.keys() >= runs.SUMMARY
    assert summary["agent_steps"] == 2_000
    assert runs.balanced(summary["segments"], stream=algorithm["name"] == "ppo"), summary["segments"]
    assert min(summary["train_steps"].values()) > 0
    finished(second, data)
    finished(other, data, "--seed", "1")
    files = 2 if algorithm is runs.PPO else 3  # weights, optimiser, and replay where there is one
    assert len(weights(first)) == 2 * files
    assert weights(first) == weights(second)
    changed = weights(other)
    assert all(changed.get(name) != content for name, content in weights(first).items())
    for name in ("config.yaml", "summary.json", "metrics.jsonl", "tensorboard", "logs"):
        assert (first / "run" / name).exists()
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_returns_belong_to_the_steps_that_earned_them_however_fast_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at in every turn and only at the end, the last 5 % of the run are the same 5 %."""
    told: list[dict[str, float]] = []
    for name, seconds in (("often", 0.0), ("never", 1e6)):
        monkeypatch.setattr("workers.sequential._OBSERVE_EVERY", seconds)
        make_run(load("cartpole", steps=20_000), tmp_path / name)
        told.append(*json.loads((tmp_path / name / "summary.json").read_text())["returns"].values())
    assert told[0] == pytest.approx(told[1], rel=0.1)
    assert told[1]["last"] > 3 * told[1]["first"]


def test_the_source_documents_key_means_the_same_and_what_a_world_prints_disturbs_nothing_A9_I6_X24(
    tmp_path: Path,
) -> None:
    """In its first turn nobody acts, which is a turn."""
    (tmp_path / "late_world.py").write_text(
        "import os\n\n"
        "from workers.environments.base import Turn\n"
        "from workers.environments.worlds.treasure_hunt import TreasureHunt\n\n\n"
        "class Late(TreasureHunt):\n"
        "    def reset(self, seed):\n"
        "        self.first = super().reset(seed)\n"
        "        return Turn(())\n\n"
        "    def step(self, actions):\n"
        "        print('[1, 2]\\n{\"health\": 1}', 'hello', flush=True)\n"
        "        os.write(1, b'\\xff\\xfe' + b'.' * 4_000)\n"
        "        turn, self.first = self.first or super().step(actions), None\n"
        "        return turn\n\n\n"
        "def make(copies):\n"
        "    return Late(copies, width=9, height=9, turns=20)\n"
    )
    world = {"id": "late_world:make", "copies": 8}
    result = runs.train(runs.config(steps=1_600, environment=world, multiprocessing={"enabled": False}), tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "run" / "logs" / "sequential.out").read_bytes().count(b"hello") > 100
    summary = json.loads(result.stdout)
    assert (summary["complete"], summary["agent_steps"]) == (True, 1_600)
    assert (tmp_path / "run" / "logs" / "sequential.log").exists()
    assert not (tmp_path / "run" / "coordinator.json").exists()


@pytest.mark.parametrize("stop", [False, True], ids=["a step", "a step and the order to stop"])
def test_a_world_that_hangs_is_told_with_its_place_and_what_was_trained_is_kept(tmp_path: Path, stop: bool) -> None:
    (tmp_path / "hanging_world.py").write_text(
        "import os, signal, time\n\n"
        "from workers.environments.worlds.treasure_hunt import TreasureHunt\n\n\n"
        "class Hanging(TreasureHunt):\n"
        "    made = 0\n\n"
        "    def step(self, actions):\n"
        "        self.made += 1\n"
        "        if self.made == 100:\n"
        "            self.hang()\n"
        "        return super().step(actions)\n\n"
        "    def hang(self):\n"
        f"        if {stop}:\n"
        "            os.kill(os.getppid(), signal.SIGINT)\n"
        "        while True:\n"
        "            time.sleep(600)\n\n\n"
        "def make(copies):\n"
        "    return Hanging(copies, width=9, height=9, turns=20)\n"
    )
    limits = {"stall_timeout": 600, "learner_timeout": 2} if stop else {"stall_timeout": 0.5}
    data = runs.config(steps=100_000, environment={"id": "hanging_world:make", "copies": 8}, **limits)
    result = runs.train(data, tmp_path, "--sequential")
    assert kinds_in(result.stderr) == ([] if stop else ["sequential_run_failed"])
    assert "it hangs in hang (hanging_world.py:19)" in result.stderr
    summary = runs.summary_of(tmp_path)
    assert (result.returncode, summary["complete"]) == (1, False)
    last = max(summary["train_steps"].values())
    assert last > 0
    assert list((tmp_path / "run" / "checkpoints").glob(f"*/{last}"))


OUTSIDE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

SPACES = {
    "box": Box(-1, 1, (2,)),
    "whole": Box(0, 10, (2,), np.int64),
    "part": Dict(near=Box(-1, 1, (2,)), far=Box(-900, 900, (2,))),
}


class World(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, kind):
        self.kind, self.observation_space, self.steps = kind, SPACES[kind], 0

    def reset(self, *, seed=None, options=None):
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), 0.0, False, self.steps % 10 == 0, {}

    def look(self):
        numbers = np.full(2, 300 if self.steps >= 5 else 1)
        if self.kind == "part":
            return {"near": numbers.astype(np.float32), "far": numbers.astype(np.float32)}
        return numbers.astype(self.observation_space.dtype)
"""


@pytest.mark.parametrize("kind", ["box", "whole", "part"])
def test_what_lies_outside_its_space_is_found_as_in_a_run_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "outside_worlds.py").write_text(OUTSIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    world = {"id": "outside_worlds:World", "copies": 8, "settings": {"kind": kind}}
    make_run(parse_run(runs.config(steps=400, environment=world)), tmp_path / "run")
    (found,) = [
        one for one in runs.summary_of(tmp_path)["health"]["findings"] if one["finding"] == "observation_outside"
    ]
    assert (found["agent"], found["value"], found["step"]) == ("agent", 300.0, 4)


def test_an_interrupt_ends_it_in_order_G4(tmp_path: Path) -> None:
    data = runs.config(steps=1_000_000_000)
    with runs.training(data, tmp_path, "--sequential") as worker:
        runs.until(lambda: runs.agent_steps(tmp_path), what="it acts")
        worker.popen.send_signal(2)
        assert worker.wait() == 1
    assert runs.summary_of(tmp_path)["complete"] is False
    assert "Traceback" not in worker.said
