"""Runs in the hands of a program: several at once, beside it, asked, waited for and stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rookery
from launch.local.run_handle import RunHandle
from launch.local.signals import Interrupt
from launch.local.supervisor import RunOutcome
from protocol.errors import ConfigurationError, Timeout
from tests.faults import raises
from tests.flows.runs import PATIENCE, environment
from tests.waiting import until

ENDLESS, SHORT = 500_000_000, 20_000
SMALL = {"baseline_episodes": 0}


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Leaves the processors to others."""

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return super().step(action)


def slow() -> Slow:
    return Slow(gymnasium.make("CartPole-v1"))


@pytest.mark.slow
def test_two_runs_go_on_beside_a_program_and_are_asked_and_stopped(tmp_path: Path) -> None:
    """One of them is begun by another thread, and stopped by who has found it by its folder."""
    runs: list[rookery.Run] = []

    def begin() -> None:
        settings = {**SMALL, "checkpoint_interval": 0.5, "environment.copies": 4, "policy.segment_length": 8}
        known: dict[str, Any] = {"steps": ENDLESS, "settings": settings, "run_dir": tmp_path / "long"}
        runs.append(rookery.train("cartpole", env=f"{__name__}:slow", wait=False, **known))

    thread = threading.Thread(target=begin)
    thread.start()
    alone: dict[str, Any] = {"run_dir": tmp_path / "short", "sequential": True}
    with rookery.train("cartpole", steps=SHORT, settings=SMALL, **alone, wait=False) as short:
        assert short.wait(PATIENCE, progress=False)
    assert (short.complete, short.summary["agent_steps"], short.status()["stage"]) == (True, SHORT, "over")
    thread.join()
    (run,) = runs
    until(lambda: run.status().get("made", 0) > 0 and "return" in run.curves().get("agent", {}))
    assert (run.over, run.wait(0.0, progress=False)) == (False, False)
    with raises(ConfigurationError, "run_without_summary", file=tmp_path / "long"):
        assert run.summary
    steps, returns = run.curves()["agent"]["return"]
    assert steps.shape == returns.shape
    assert steps[-1] > 0
    until(lambda: (tmp_path / "long" / "checkpoints" / "agent").is_dir())
    found = rookery.load(tmp_path / "long")
    assert found.status()["stage"] == "running"
    found.stop()
    assert run.wait(PATIENCE, progress=False)
    assert (run.complete, run.summary["complete"], found.over, found.complete) == (False, False, True, False)
    with rookery.train(tmp_path / "long", wait=False) as again:  # what its first life left says nothing of this one
        until(lambda: again.status().get("made", 0) > 0)
        assert (found.over, found.status()["stage"], found.wait(0.0, progress=False)) == (False, "running", False)
    assert (found.over, found.complete) == (True, False)
    assert run.policy()(np.zeros(4, np.float32)) in (0, 1)
    (line,) = run.evaluate(episodes=2)
    assert (line["policy"], line["episodes"]) == ("agent", 2)


LEAVES = """
import sys, time, rookery

if __name__ == "__main__":
    settings = {{"baseline_episodes": 0, "monitor_period": 0.1}}
    run = rookery.train("cartpole", steps={steps}, settings=settings, run_dir="run", wait=False, sequential={alone})
    told = run.folder / "metrics.jsonl"
    while not (told.is_file() and told.stat().st_size):  # one that has made no step leaves no summary
        time.sleep(0.02)
    sys.exit(4)
"""


@pytest.mark.parametrize("alone", [False, True], ids=["workers", "one process"])
def test_a_run_ends_in_order_with_the_program_that_began_it(tmp_path: Path, alone: bool) -> None:
    (tmp_path / "script.py").write_text(LEAVES.format(steps=ENDLESS, alone=alone))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 4, done.stderr
    run = rookery.load(tmp_path / "run")
    assert (run.complete, run.over) == (False, True)


def test_nobody_waits_for_a_run_that_nobody_makes(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("steps: 1\n")
    with raises(Timeout, "coordinator_silent"):
        rookery.load(tmp_path).wait(PATIENCE, progress=False)


def test_to_be_asked_twice_to_stop_is_no_haste(tmp_path: Path) -> None:
    """Ctrl-C twice ends a run at once; whoever leaves its block while another stops it does not."""
    began, end, asked = threading.Event(), threading.Event(), list[int]()

    def make(_show: object, tell: Callable[[str], None], interrupt: Interrupt) -> RunOutcome:
        tell("begun")
        began.set()
        assert end.wait(PATIENCE)
        asked.append(interrupt.count)
        return RunOutcome(False, {})

    run = RunHandle(tmp_path, make)
    run.begin()
    stopping = [threading.Thread(target=run.stop) for _ in range(2)]
    for thread in stopping:
        thread.start()
        until(lambda: run._interrupt.count > 0)
    end.set()
    for thread in stopping:
        thread.join()
    assert (began.is_set(), asked, run.over) == (True, [1], True)


def test_what_keeps_a_run_from_beginning_is_raised_at_once(tmp_path: Path) -> None:
    with raises(ConfigurationError, "module_not_found"):
        rookery.train(env="nowhere_at_all:World", run_dir=tmp_path / "run", wait=False)
