"""Code of the user runs where it may end, or hang, the process that it is in: never in the coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import kinds_in
from tests.flows import runs
from tests.tools import ROOT

WORLD = """
import ctypes
import os
import pathlib
import time

import numpy as np
import psutil

from workers.environments.worlds.treasure_hunt import TreasureHunt

HERE = pathlib.Path(__file__).parent


def seen(what):
    with (HERE / "pids").open("a") as file:
        file.write(f"{what} {os.getpid()}\\n")


seen("import")
BESIDE = "workers.coordinator" in psutil.Process(os.getppid()).cmdline()
FAULTS = {
    "hang": lambda: time.sleep(600),
    "os._exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
}


class Odd(TreasureHunt):
    fault = ""

    def step(self, actions):
        seen("step")
        if BESIDE:
            FAULTS[self.fault]()
        return super().step(actions)


def make(copies, turn_mode=None, fault="", **settings):
    world = Odd(copies, turn_mode, **settings)
    world.fault = fault
    return world


class Player:
    def __init__(self, place, streams, generator):
        seen("player")

    def __call__(self, present):
        return np.zeros(len(present.observation), np.int64)
"""


@pytest.mark.parametrize(
    "fault", ["segfault", *(pytest.param(one, marks=pytest.mark.slow) for one in ("hang", "os._exit", "abort"))]
)
def test_no_code_of_the_user_runs_in_the_coordinator_and_a_complete_run_is_a_success(
    tmp_path: Path, memory_dir: Path, fault: str
) -> None:
    """Whatever a world does where random players play it beside training."""
    (tmp_path / "odd_worlds.py").write_text(WORLD)
    settings = {"width": 9, "height": 9, "turns": 20, "fault": fault}
    data = runs.config(
        steps=2_000,
        baseline_episodes=200,
        environment={"id": "odd_worlds:make", "copies": 8, "settings": settings},
        policies={"agent_1": {"algorithm": {"name": "scripted", "entry": "odd_worlds:Player"}}},
    )
    result = runs.train(data, tmp_path)
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["restarts"] == {}
    assert summary["baselines"] == {"agent_0": {}, "agent_1": {}}
    assert summary["baselines_missing"]
    coordinator = json.loads((tmp_path / "run" / "coordinator.json").read_text())["pid"]
    ran = [line.split() for line in (tmp_path / "pids").read_text().splitlines()]
    assert {what for what, _ in ran} == {"import", "step", "player"}
    assert str(coordinator) not in {pid for _, pid in ran}


@pytest.mark.parametrize("command", ["train", "train --sequential", "coordinator --bind 127.0.0.1:0"])
def test_a_module_that_cannot_be_compiled_is_told_by_its_own_line_alone(tmp_path: Path, command: str) -> None:
    (tmp_path / "uncompiled.py").write_text("import os\n\ndef make(:\n    pass\n")
    source = str(runs.write(runs.config(environment={"id": "uncompiled:make"}), tmp_path))
    verb, *options = command.split()
    result = runs.rookery(verb, source, "--run-dir", "run", *options, cwd=tmp_path)
    assert result.returncode == 2
    assert kinds_in(result.stderr) == ["module_import_failed"]
    shown = [line.strip() for line in result.stderr.splitlines() if line.startswith("  File ")]
    assert shown == [f'File "{tmp_path / "uncompiled.py"}", line 3']
    assert "    def make(:" in result.stderr.splitlines()
    assert str(ROOT) not in result.stderr
