"""Simulators that an actor starts: as many as copies, again after a crash, never longer than the actor."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from tests.flows.runs import alive
from tests.tools import ROOT
from tests.waiting import until
from tests.workers.environments.simulators.serving import serving
from workers.environments.simulators.launcher import command_of

PROGRAM = """
import os, sys, time
sys.path.insert(0, {root!r})
from protocol.simulator.client import RunOver, Simulator
address, name, seed, crash_after = sys.argv[1:]
print("seed", seed, "pid", os.getpid(), flush=True)
with Simulator(address, name) as sim:
    try:
        steps = 0
        while True:
            sim.act([float(steps % 8), 0.0], 1.0 if steps else 0.0)
            steps += 1
            if steps == int(crash_after):
                os.kill(os.getpid(), 9)
    except RunOver:
        print("over", flush=True)
"""


PYTHON = shlex.quote(sys.executable)


def program(folder: Path, crash_after: int) -> str:
    """What Python runs as one that crashes after so many steps; 0: never."""
    place = folder / "sim.py"
    place.write_text(PROGRAM.format(root=str(ROOT)))
    return f"{shlex.quote(str(place))} {{address}} {{name}} {{seed}} {crash_after}"


def command(folder: Path, crash_after: int) -> str:
    """The whole command."""
    return f"{PYTHON} {program(folder, crash_after)}"


def pids(folder: Path) -> list[int]:
    """Of all that were started."""
    logs = (folder / "logs" / "simulators").glob("*.log")
    return [int(pid) for log in logs for pid in re.findall(r"pid (\d+)", log.read_text())]


def test_as_many_as_copies_are_started_on_the_machines_in_turn_with_seeds_and_logs_and_end_with_the_run_I7(
    tmp_path: Path,
) -> None:
    """I7: by whatever command reaches a machine; here by one that only says which it was told."""
    reach = tmp_path / "reach"
    reach.write_text(f'#!/bin/sh\necho "machine $1"\nshift\nexec {PYTHON} "$@"\n')
    reach.chmod(0o755)
    there = f"{shlex.quote(str(reach))} {{machine}} {program(tmp_path, 0)}"
    with serving(copies=3, folder=tmp_path, command=there, machines=["red", "blue"]) as served:
        until(lambda: all(len(served.rows(copy=copy)) > 2 for copy in range(3)), what="all play")
        running = pids(tmp_path)
        assert len(alive(running)) == 3
    assert alive(running) == []
    logs = [path.read_text() for path in sorted((tmp_path / "logs" / "simulators").glob("actor-0-*.log"))]
    assert [log.splitlines()[0] for log in logs] == ["machine red", "machine blue", "machine red"]
    assert len({re.findall(r"seed (\d+)", log)[0] for log in logs}) == 3
    assert all("over" in log for log in logs), "they were told, not killed"


def test_what_crashes_is_started_again_and_its_steps_are_kept_I7(tmp_path: Path) -> None:
    """I7: its process is known to be gone, so that nobody waits for a lease."""
    with serving(copies=1, folder=tmp_path, command=command(tmp_path, 30)) as served:
        until(lambda: served.environment.restarts == 1 and len(served.rows()) > 40, what="it plays again")
        cut = [k for k, row in enumerate(served.rows()) if row.end]
        assert cut == [29]
        assert served.figures()["simulators_lost"] == 1
    assert len(pids(tmp_path)) >= 2


def test_what_crashes_too_often_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    with (
        raises(EnvironmentFault, "simulators_all_ended", reason="ended with exit code 3 after 1 restarts"),
        serving(copies=2, folder=tmp_path, restarts=1, command=f"{PYTHON} -S -c 'raise SystemExit(3)'") as served,
    ):
        until(lambda: served.fault is not None, what="they are given up")


@pytest.mark.parametrize(
    ("template", "kind", "facts"),
    [
        ("./sim --port {prot}", "simulator_command_malformed", {"fault": "KeyError", "reason": "'prot'"}),
        ("'", "simulator_command_malformed", {"fault": "ValueError", "reason": "No closing quotation"}),
        ("", "simulator_command_empty", {}),
    ],
)
def test_a_command_that_is_none_is_refused(template: str, kind: str, facts: dict[str, str]) -> None:
    with raises(ConfigurationError, kind, key="environment.settings.command", **facts):
        command_of(template, {"port": 1})


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from workers.environments.simulators.launcher import SimulatorLauncher, command_of
launched = SimulatorLauncher({{"one": command_of({command!r}, {{}})}}, 0, Path({folder!r}), lambda name, why: None)
time.sleep(60)
"""


@pytest.mark.parametrize("victim", ["actor", "guardian"])
def test_no_simulator_outlives_a_killed_actor(tmp_path: Path, victim: str) -> None:
    """kill -9 of the actor, or of the process between: the simulator and what it started itself are gone."""
    shell = "sh -c 'echo pid $$; sleep 60 & echo pid $!; wait'"
    script = SCRIPT.format(root=str(ROOT), folder=str(tmp_path / "logs" / "simulators"), command=shell)
    with subprocess.Popen([sys.executable, "-c", script]) as actor:
        try:
            until(lambda: len(pids(tmp_path)) == 2, what="it is started")
            started = pids(tmp_path)
            guards = psutil.Process(actor.pid).children()
            os.kill(actor.pid if victim == "actor" else guards[0].pid, signal.SIGKILL)
            until(lambda: not alive(started[:1] if victim == "guardian" else started), what="nothing is left")
        finally:
            actor.kill()
    time.sleep(0.1)
    for pid in alive(started):
        os.kill(pid, signal.SIGKILL)


def test_machines_without_a_command_that_goes_there_are_refused() -> None:
    with (
        raises(ConfigurationError, "simulator_command_ignores_machines", key="environment.settings.machines"),
        serving(command="./sim {address}", machines=["red"]),
    ):
        pass
