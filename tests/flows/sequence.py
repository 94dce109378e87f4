"""What a user does with a run, one command after another: train, Ctrl-C, the same command, evaluate, watch, export."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launch.config_loader import load
from protocol.simulator.connection import ended
from tests.faults import kinds_in
from tests.flows import runs

__all__ = ["sequence"]

EXTERNAL = "external"
"""The preset whose worlds are programs that a user starts."""
LONG = 900.0
"""Seconds in which a shortened run of any preset ends, on a busy machine too."""
_PARTS = {"herd": 10, "matrix-game-qmix": 10, "pendulum": 10}
"""Preset -> which part of its steps, where a fortieth makes no batch."""


@contextmanager
def simulators(preset: str, folder: Path) -> Iterator[None]:
    """Those that a run of `external` needs; one that comes before an old run goes on is told that it has ended."""
    with ExitStack() as stack:
        if preset == EXTERNAL:
            runs.until(lambda: not ended(folder / "run"), what="the run goes on")
        for number in range(8 if preset == EXTERNAL else 0):
            command = ["simulate", "cartpole", "--connect", "run", "--name", f"sim-{number}", "--patience", "600"]
            stack.enter_context(runs.started(command, folder, f"sim-{number}"))
        yield


def interrupted(command: Sequence[str], preset: str, folder: Path) -> bool:
    """Whether Ctrl-C came before the run had reached its end."""
    with runs.started(command, folder, "train") as worker, simulators(preset, folder):
        runs.until(lambda: runs.agent_steps(folder) or worker.popen.poll() is not None, what="the run is on")
        if worker.popen.poll() is None:
            worker.popen.send_signal(signal.SIGINT)
        code = worker.wait()
        assert code in (0, 1), worker.said
        assert "Traceback" not in worker.said
    return code == 1


def sequence(preset: str, folder: Path, steps: int = 0, *settings: str) -> None:
    """All of it, in a part of the preset's steps where none are given: a league needs many until it begins, and replay
    or many streams until there is a batch. A run that was over before it was interrupted is tried again with more."""
    run = load(preset)
    steps = steps or run.steps // (2 if run.league is not None else _PARTS.get(preset, 40))
    for attempt in range(4):
        place = folder / str(attempt)
        place.mkdir()
        command = ["train", preset, "--run-dir", "run", "--steps", str(steps), "--no-progress"]
        command += [word for setting in ("monitor_period=0.2", *settings) for word in ("--set", setting)]
        if interrupted(command, preset, place):
            break
        steps *= 4
    else:
        pytest.fail(f"{preset} made {steps} steps before it could be interrupted")
    made = runs.summary_of(place)["agent_steps"]
    assert made > 0
    with runs.started(command, place, "again") as worker, simulators(preset, place):
        assert worker.wait(LONG) == 0, worker.said
    summary = runs.summary_of(place)
    assert (summary["complete"], summary["agent_steps"] >= max(made, steps)) == (True, True)
    assert runs.balanced(summary["segments"], stream=False)

    policies = summary["returns"].keys() & summary["versions"].keys()  # auxiliaries and fixed ones are none of them
    told = runs.rookery("evaluate", "run", "--episodes", "2", "--json", cwd=place)
    if preset == EXTERNAL:
        assert (told.returncode, kinds_in(told.stderr)) == (2, ["external_simulators_not_evaluable"])
    else:
        assert told.returncode == 0, told.stderr
        assert {row["policy"] for row in json.loads(told.stdout)} >= policies
    told = runs.rookery("watch", "run", "-o", "film.gif", "--turns", "4", cwd=place)
    if told.returncode:
        assert told.returncode == 2, told.stderr
        assert kinds_in(told.stderr) in (["world_without_picture"], ["external_simulators_not_evaluable"]), told.stderr
    else:
        assert (place / "film.gif").stat().st_size > 0
    for policy in policies:
        told = runs.rookery("export", "run", "--policy", policy, "--out", f"{policy}.safetensors", cwd=place)
        assert told.returncode == 0, told.stderr
        assert (place / f"{policy}.safetensors").stat().st_size > 0
