"""`rookery doctor` on whole short runs, of sound worlds and of broken ones; and what a run says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs
from workers.tools.preflight import CHECKS

WORLDS = """
import gymnasium
import numpy as np


class World(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, fault, size):
        self.fault, self.turn = fault, 0
        self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (size,), np.float32)
        self.made = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self.look(), {}

    def step(self, action):
        self.turn += 1
        reward = 0.0 if self.fault == "zero" else float(action)
        return self.look(), reward, self.turn == 20, False, {}

    def look(self):
        seen = self.made.normal(size=self.observation_space.shape).clip(-9, 9).astype(np.float32)
        return {"zero": 0 * seen, "shape": seen[None] if self.turn > 3 else seen}.get(self.fault, seen)


def make(fault="", size=4):
    return World(fault, size)
"""


def config(folder: Path, fault: str) -> dict[str, Any]:
    """A run of a world with `fault`."""
    (folder / "worlds_of_this_test.py").write_text(WORLDS)
    world = {"id": "worlds_of_this_test:make", "copies": 8, "settings": {"fault": fault}}
    return runs.config(environment=world, steps=10**6)


def doctor(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines."""
    ended = runs.rookery("doctor", *arguments, cwd=folder, seconds=90)
    return ended.returncode, ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("fault", "code", "lines"),
    [
        pytest.param("", 0, ["policy agent", "  data         ok", "  sharing      ok"], marks=pytest.mark.slow),
        ("zero", 1, ["policy agent", "  data         FAILS      every observation is all zeros; "]),
        pytest.param(
            "shape",
            1,
            ["policy agent", "  data         ok", "  sharing      ok", "  shape        FAILS      actor-0: "],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_short_run_tells_the_layer_that_fails_H1(tmp_path: Path, fault: str, code: int, lines: list[str]) -> None:
    path = runs.write(config(tmp_path, fault), tmp_path)
    ended, said = doctor(tmp_path, str(path), "--seconds", "3", "--run-dir", str(tmp_path / "run"))
    assert ended == code, said
    machine = said.index("policy agent")
    assert [line.split()[0] for line in said[:machine]] == list(CHECKS)
    said = said[machine:]
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=False)), said
    assert doctor(tmp_path, str(tmp_path / "run")) == (ended, said)


def test_a_run_tells_its_findings_once_and_in_its_summary_H1_H2(tmp_path: Path) -> None:
    ended = runs.train({**config(tmp_path, "zero"), "steps": 6_000, "log_interval": 1}, tmp_path)
    assert ended.returncode == 0
    assert ended.stderr.replace("\n", " ").count("fault in the data of agent: every observation is all zeros;") == 1
    health = runs.summary_of(tmp_path)["health"]
    assert health["batches_checked"]["agent"] > 10
    assert health["findings"][0]["finding"] == "observation_zero"
    log = (tmp_path / "run" / "logs" / "learner-agent.log").read_text()
    assert log.count("event=health layer=data policy=agent finding=observation_zero ") == 1
    rows = [json.loads(line)["agent"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    measured = next(row for row in rows if "observation_max" in row)
    assert measured["observation_max"] == 0
    told = {"loss", "grad_norm", "weight_delta", "version", "adoption_lag", "queue_segments"}
    assert told <= set().union(*rows), "an actor that has left lags no more"
