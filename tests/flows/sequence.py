"""What a user does with a run, one command after another: train, Ctrl-C, the same command, evaluate, watch, export."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from launch.config_loader import load
from protocol.simulator.connection import ended
from tests.faults import kinds_in
from tests.flows import runs

__all__ = ["extended", "sequence"]

EXTERNAL = "external"
"""The preset whose worlds are programs that a user starts."""
LONG = 900.0
"""Seconds in which a shortened run of any preset ends, on a busy machine too."""
_PARTS = {"herd": 10, "matrix-game-qmix": 10, "pendulum": 10}
"""Preset -> which part of its steps, where a fortieth makes no batch."""


@contextmanager
def simulators(preset: str, folder: Path, name: str = "run") -> Iterator[None]:
    """Those that a run of `external` needs; one that comes before an old run goes on is told that it has ended."""
    with ExitStack() as stack:
        if preset == EXTERNAL:
            runs.until(lambda: (folder / name).is_dir() and not ended(folder / name), what="the run goes on")
        for number in range(8 if preset == EXTERNAL else 0):
            command = ["simulate", "cartpole", "--connect", name, "--name", f"sim-{number}", "--patience", "600"]
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


def ended_well(command: Sequence[str], preset: str, place: Path, name: str = "run") -> dict[str, Any]:
    """The summary of the run in `place`/`name`, which `command` has made or gone on with to its end."""
    with runs.started(command, place, "again") as worker, simulators(preset, place, name):
        assert worker.wait(LONG) == 0, worker.said
    summary: dict[str, Any] = json.loads((place / name / "summary.json").read_text())
    assert summary["complete"] is True
    assert runs.balanced(summary["segments"], stream=False)
    return summary


def learned(summary: dict[str, Any]) -> set[str]:
    """Its policies that learn: auxiliaries and fixed ones are none of them."""
    return summary["returns"].keys() & summary["versions"].keys()


def extended(preset: str, place: Path, steps: int, *settings: str) -> None:
    """The run in `place`/run, which has made `steps`, goes on with a quarter more, as what it was, and another begins
    with all the weights that it has learned."""
    more = steps + steps // 4
    summary = ended_well(["train", "run", "--steps", str(more), "--no-progress"], preset, place)
    assert summary["agent_steps"] >= more
    told = [json.loads(line) for line in (place / "run" / "history.jsonl").read_text().splitlines()]
    assert ("steps", more) in [(line["key"], line["new"]) for line in told]
    command = ["train", preset, "--run-dir", "next", "--steps", str(steps), "--no-progress"]
    command += [word for one in ("monitor_period=0.2", "policy.start=run", *settings) for word in ("--set", one)]
    starts = ended_well(command, preset, place, "next")["starts"]
    assert starts.keys() >= learned(summary)
    assert {name: (start["new"], start["unused"]) for name, start in starts.items()} == dict.fromkeys(starts, ({}, []))


def sequence(preset: str, folder: Path, steps: int = 0, *settings: str) -> tuple[Path, int]:
    """All of it, in a part of the preset's steps where none are given: a league needs many until it begins, and replay
    or many streams until there is a batch. A run that was over before it was interrupted is tried again with more.
    Where the run is, and how many steps it was to make."""
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
    summary = ended_well(command, preset, place)
    assert summary["agent_steps"] >= max(made, steps)

    policies = learned(summary)
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
    return place, steps
