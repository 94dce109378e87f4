"""Code of the user runs where it may end, or hang, the process that it is in: never in the coordinator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from protocol.config.run import parse_run
from protocol.errors import EnvironmentFault
from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.learning.greedy import make_run
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


CRASHES = """
import ctypes
import os

import gymnasium
import numpy as np

FAULTS = {"segfault": (ctypes.string_at, 0), "abort": (os.abort,), "os._exit": (os._exit, 3)}


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if "ROOKERY_CRASH" in os.environ:
            call, *arguments = FAULTS[os.environ["ROOKERY_CRASH"]]
            call(*arguments)  # fault
        return np.zeros(2, np.float32), 0.0, True, False, {}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that world and a run in it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "crashes.py").write_text(CRASHES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        make_run(parse_run(runs.config(steps=128, environment={"id": "crashes:World", "copies": 8})), folder / "run")
    return folder


@pytest.mark.parametrize(
    ("command", "fault", "what"),
    [
        ("evaluate", "segfault", "SIGSEGV"),
        ("watch --heat-map map.png", "os._exit", "3"),
        pytest.param("evaluate", "os._exit", "3", marks=pytest.mark.slow),
        pytest.param("watch --heat-map map.png", "abort", "SIGABRT", marks=pytest.mark.slow),
    ],
)
def test_a_world_that_ends_the_process_that_plays_it_is_told_with_its_place(
    trained: Path, monkeypatch: pytest.MonkeyPatch, command: str, fault: str, what: str
) -> None:
    monkeypatch.setenv("ROOKERY_CRASH", fault)  # a variable that a fork is given
    line = next(number for number, text in enumerate(CRASHES.splitlines(), 1) if text.endswith("# fault"))
    verb, *options = command.split()
    result = runs.rookery(verb, "run", *options, cwd=trained)
    last = result.stderr.splitlines()[-1]
    assert (result.returncode, kinds_in(last)) == (EnvironmentFault.exit_code, ["playing_crashed"])
    assert f"crashes.py:{line})" in last
    assert what in words_in(last)


LEFT = """
import multiprocessing
import pathlib
import sys
import threading
import time

import gymnasium
import numpy as np


def begin(daemon):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=daemon)
    child.start()
    with pathlib.Path(__file__).with_name("pids").open("a") as file:
        file.write(f"{child.pid}\\n")


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what):
        if what == "streams":
            sys.stdout.close()
            sys.stderr.close()
        else:
            begin(what == "daemon")
        if what == "child":
            threading.Thread(target=time.sleep, args=(600,)).start()

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}
"""


@pytest.mark.parametrize("what", ["streams", "daemon", "child"])
def test_what_a_world_closes_or_leaves_behind_keeps_no_run_from_its_end(tmp_path: Path, what: str) -> None:
    (tmp_path / "left_worlds.py").write_text(LEFT)
    world = {"id": "left_worlds:World", "copies": 8, "settings": {"what": what}}
    result = runs.train(runs.config(steps=128, environment=world), tmp_path, "--sequential")
    assert result.returncode == 0, result.stderr
    assert runs.summary_of(tmp_path)["complete"] is True
    begun = [] if what == "streams" else [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(begun) == (0 if what == "streams" else 8)
    assert runs.alive(begun) == []


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
