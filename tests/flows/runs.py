"""Small real runs for the flow tests: how they are configured, started, waited for and looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import yaml

from launch.local.fork_client import ForkedProcess
from tests.flows.network import Place
from tests.forge import Forge
from tests.tools import PYTHON_PATH, require
from tests.waiting import PATIENCE as PATIENCE
from tests.waiting import until as until

PYTHON = sys.executable
Popen = subprocess.Popen[str] | ForkedProcess
EXTRA_PATH = ""
"""A folder that Python looks into first, for what a test wants to be otherwise; nothing is forked then, unless it is so
in the process that forks, too."""
forge: Forge | None = None
"""Who forks the commands of this process's tests (tests/flows/conftest.py)."""
forged_path = ""
"""The folder that it looks into first."""
SUMMARY = {
    "env_steps",
    "agent_steps",
    "seconds",
    "env_steps_per_second",
    "agent_steps_per_second",
    "train_steps",
    "versions",
    "returns",
    "episode_length",
    "baselines",
    "segments",
    "lag",
    "waits",
    "restarts",
    "verdict",
}
PPO: dict[str, Any] = {"name": "ppo", "epochs": 1, "minibatches": 2}
IQN: dict[str, Any] = {
    "name": "iqn",
    "batch_size": 16,
    "buffer_capacity": 2_000,
    "learning_starts": 200,
    "replay_ratio": 0.5,
    "quantiles": 4,
    "acting_quantiles": 4,
    "cosines": 8,
}

SAC: dict[str, Any] = {
    "name": "sac",
    "batch_size": 16,
    "buffer_capacity": 2_000,
    "learning_starts": 200,
    "replay_ratio": 0.5,
}
NOVELTY: dict[str, Any] = {
    "algorithm": {"features": 8, "minibatches": 2},
    "network": {"hidden": [16]},
    "publish_interval": 1,
}
"""An auxiliary called so."""


def curious(coefficient: float = 0.5) -> dict[str, Any]:
    """PPO with a bonus for what is new to it."""
    return {**PPO, "curiosity": {"auxiliary": "novelty", "coefficient": coefficient}}


def config(algorithm: dict[str, Any] = PPO, steps: int = 4_000, **keys: Any) -> dict[str, Any]:
    """A treasure hunt so small that a run is over in a second of training; `policy` keys are merged, others replace."""
    policy = {
        "algorithm": dict(algorithm),
        "network": {"hidden": [16]},
        "segment_length": 8,
        "publish_interval": 1,
        "sync_interval": 1,
        **keys.pop("policy", {}),
    }
    world = {"copies": 8, "settings": {"width": 9, "height": 9, "turns": 20}}
    return {
        "environment": world,
        "policy": policy,
        "steps": steps,
        "monitor_period": 0.3,
        "baseline_episodes": 0,
        **keys,
    }


WORLDS = """
import os
import time

import numpy as np
import psutil

from workers.environments.worlds.treasure_hunt import TreasureHunt

ACTOR = any("workers.actor" in psutil.Process(pid).cmdline() for pid in (os.getpid(), os.getppid()))


class Paced(TreasureHunt):
    pause, after, fault, steps = 0.0, 0, "", 0

    def step(self, actions):
        self.steps += 1
        if ACTOR:
            time.sleep(self.pause)
        turn = super().step(actions)
        if self.fault and ACTOR and self.steps > self.after:
            if self.fault == "raise":
                raise ValueError("the floor gave way")
            if self.fault == "nan":
                turn.present[0].reward[:] = np.nan
            if self.fault == "hang":
                while True:
                    time.sleep(1)
        return turn


def paced(copies, turn_mode=None, pause=0.0, after=0, fault="", **settings):
    world = Paced(copies, turn_mode, **settings)
    world.pause, world.after, world.fault = pause, after, fault
    return world
"""


def paced(
    folder: Path, steps: int, *, pause: float = 0.0, fault: str = "", after: int = 0, **keys: Any
) -> dict[str, Any]:
    """The same world at a pace of `pause` seconds for each agent's turn, with a fault after some; in actors, and
    in processes of theirs, only."""
    (folder / "worlds_of_this_test.py").write_text(WORLDS)
    settings = {"width": 9, "height": 9, "turns": 20, "pause": pause, "fault": fault, "after": after}
    return config(
        steps=steps, environment={"id": "worlds_of_this_test:paced", "copies": 8, "settings": settings}, **keys
    )


def write(data: dict[str, Any], folder: Path) -> Path:
    """`data` as a file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def rookery(*arguments: str, cwd: Path, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        popen = _start(["rookery", *arguments], cwd, output, errors)
        try:
            code = popen.wait(seconds)
        finally:
            popen.kill()
            popen.wait()
        for stream in (output, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())


def _start(
    command: Sequence[str], cwd: Path, output: IO[str], errors: IO[str], on: Place | Sequence[str] = ()
) -> Popen:
    """`rookery` or another program, in a session of its own."""
    place = on if isinstance(on, Place) else None
    if command[0] == "rookery" and forge is not None and (place or not on):
        forked = forge.start(command[1:], cwd, environment(forked=True), output, errors, place)
        if forked is not None:
            return forked
    words = on.words if isinstance(on, Place) else on
    return subprocess.Popen(
        [*words, require("rookery"), *command[1:]] if command[0] == "rookery" else [*words, *command],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        text=True,
        start_new_session=True,
    )


def environment(forked: bool = False) -> dict[str, str]:
    """This process's, with the repository importable from any working directory; for a command that is `forked`."""
    root = PYTHON_PATH
    if not EXTRA_PATH:
        return {**os.environ, "PYTHONPATH": root}
    own = {"PYTHONPATH": f"{EXTRA_PATH}{os.pathsep}{root}"}
    return {**os.environ, **own} if forked and forged_path == EXTRA_PATH else {**os.environ, **own, "ROOKERY_FORK": "0"}


def train(
    data: dict[str, Any], folder: Path, *arguments: str, seconds: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """`rookery train` in `folder`, whose run lies in `folder/run`."""
    path = write(data, folder)
    return rookery(
        "train", str(path), "--run-dir", str(folder / "run"), "--json", *arguments, cwd=folder, seconds=seconds
    )


def summary_of(folder: Path) -> dict[str, Any]:
    """What `folder/run/summary.json` says."""
    return dict(json.loads((folder / "run" / "summary.json").read_text()))


def balanced(segments: dict[str, Any], stream: bool = True) -> bool:
    """Whether the identities of the accounting hold."""
    dropped = sum(segments["dropped"].values())
    first = segments["produced"] == segments["received"] - segments["duplicates"] + segments["in_flight"] + dropped
    parts = ("trained", "duplicates", "rejected", "held", "lost_in_learner")
    return bool(first and (not stream or segments["received"] == sum(segments[part] for part in parts)))


def files(memory: Path) -> list[str]:
    """What lies in the memory folder."""
    return sorted(path.name for path in memory.iterdir())


@dataclass
class Worker:
    """A process that a test started by hand."""

    popen: Popen
    output: Path

    @property
    def said(self) -> str:
        """Everything it wrote."""
        return self.output.read_text()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        return self.popen.wait(seconds)


@contextmanager
def started(command: Sequence[str], cwd: Path, name: str, on: Place | Sequence[str] = ()) -> Iterator[Worker]:
    """`rookery` (or another program, by its path) in the background, `on` another machine; killed at the end if it
    still runs."""
    output = cwd / f"{name}.txt"
    words = command if os.path.isabs(command[0]) else ["rookery", *command]
    with output.open("w") as stream:
        popen = _start(words, cwd, stream, stream, on)
    try:
        yield Worker(popen, output)
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait()


@contextmanager
def training(data: dict[str, Any], folder: Path, *arguments: str) -> Iterator[Worker]:
    """`rookery train` in the background."""
    path = write(data, folder)
    command = ["train", str(path), "--run-dir", str(folder / "run"), "--no-progress", *arguments]
    with started(command, folder, "train") as worker:
        yield worker


def workers_of(folder: Path) -> dict[str, int]:
    """Name -> pid of the living members, as the coordinator last wrote them down; with the coordinator's own."""
    try:
        state = json.loads((folder / "run" / "state.json").read_text())
        coordinator = json.loads((folder / "run" / "coordinator.json").read_text())
    except (OSError, ValueError):
        return {}
    found = {member["name"]: member["pid"] for member in state["members"] if member["role"] in ("actor", "learner")}
    return {**found, "coordinator": coordinator["pid"]}


def agent_steps(folder: Path) -> int:
    """Steps made so far, from the newest line of the metrics."""
    try:
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["agent_steps"]) if lines else 0
    except (OSError, ValueError):
        return 0


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal."""
    os.kill(pid, number)


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found
