"""Baselines in a process of their own: whatever happens there, the summary says what was played, and nobody waits."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from protocol.config.run import Run, parse_run
from tests.faults import kinds_in, words_in
from tests.waiting import PATIENCE, until
from workers.environments.registry import describe
from workers.evaluation import baseline_process as module
from workers.evaluation.baseline_process import BaselineProcess
from workers.runtime.process import lock_run_folder

__all__ = []

ME = os.getpid()


class Odd(gymnasium.Env[Any, Any]):
    """Episodes of one step; in another process than this one it does something else in the third."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: str) -> None:
        self._how, self._steps = how, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps > 2 and os.getpid() != ME:
            HOW[self._how]()
        return np.zeros(1, np.float32), 0.5, True, False, {}


def raise_value_error() -> None:
    raise ValueError("it broke")


def busy() -> None:
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass


HOW: dict[str, Callable[[], object]] = {
    "raise": raise_value_error,
    "sys.exit": lambda: sys.exit("it broke"),
    "os._exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "hang": lambda: time.sleep(PATIENCE),
    "slow": lambda: time.sleep(0.01),
    "child": lambda: subprocess.run(["sleep", "0.02"], check=True),
    "select": lambda: select.select([], [], [], 0.01),
    "busy": busy,
    "nothing": lambda: None,
}


def odd(how: str) -> Odd:
    """Refers to no `copies`: an environment of one."""
    return Odd(how)


def run_of(how: str, **keys: Any) -> Run:
    """A run in that world."""
    return parse_run({"environment": {"id": f"{__name__}:odd", "copies": 4, "settings": {"how": how}}, **keys})


@contextmanager
def playing(run: Run, folder: Path, lasted: float = 0.0) -> Iterator[BaselineProcess]:
    """The baselines of a run that has `lasted` so many seconds."""
    process = BaselineProcess(run, folder, time.monotonic() - lasted)
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize(
    ("how", "why", "kinds"),
    [
        ("raise", "it broke", ["environment_raised"]),
        ("sys.exit", "it broke", ["environment_raised"]),
        ("os._exit", "exit code 3", []),
        ("segfault", "SIGSEGV", []),
        ("abort", "SIGABRT", []),
    ],
)
def test_a_world_that_ends_its_process_costs_only_its_baselines_and_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, why: str, kinds: list[str]
) -> None:
    """And nobody waits for what cannot come."""
    monkeypatch.setattr(module, "_LEAST", 2 * PATIENCE)
    monkeypatch.setattr(module, "_PATIENCE", 2 * PATIENCE)
    with playing(run_of(how), tmp_path) as process:
        process.run_ended()
        until(lambda: (process.look(0.1), process.left)[1] == 0.0)
        missing = process.summary({"agent": "p"})["baselines_missing"]
    assert why in missing
    assert kinds_in(missing) == kinds
    assert Path(__file__).name in missing, "where it was"
    assert {"raise_value_error", "<lambda>", "step"} & words_in(missing)


def test_a_world_that_hangs_is_waited_for_as_long_as_the_budget_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST", 1.0)
    with playing(run_of("hang"), tmp_path) as process:
        process.run_ended()
        assert 0 < process.left <= process.budget < PATIENCE
        while process.left:
            process.look(0.1)
        found = process.summary({"agent": "p"})
    assert found["baselines"] == {"p": {}}
    assert f"{found['baselines_seconds']['budget']:.3g}" in words_in(found["baselines_missing"])


def test_it_does_not_hold_the_folder_of_a_run_whose_process_died(tmp_path: Path) -> None:
    lock = lock_run_folder(run_of("hang"), tmp_path)
    process = BaselineProcess(run_of("hang"), tmp_path, time.monotonic(), lock)
    try:
        until((tmp_path / "logs" / "baselines.out").exists)
        os.close(lock)
        os.close(lock_run_folder(run_of("hang"), tmp_path))
    finally:
        process.close()


def test_after_a_long_run_nobody_waits_for_a_tenth_of_it(tmp_path: Path) -> None:
    with playing(run_of("hang"), tmp_path, lasted=36_000) as process:
        process.run_ended()
        assert process.budget == pytest.approx(3_600, abs=1)
        assert 9 < process.left <= 10


def test_a_slow_world_counts_the_episodes_that_there_was_time_for(tmp_path: Path) -> None:
    with playing(run_of("slow"), tmp_path) as process:
        until(lambda: process.look() and process.summary({"agent": "p"})["baselines"]["p"])
        (found,) = process.summary({"agent": "p", "other": "p"})["baselines"].values()
    assert (found["random"], found["random_stderr"]) == (0.5, 0.0)
    assert 1 <= found["random_episodes"] <= 200


def test_a_quick_world_is_played_whole_and_its_process_ends(tmp_path: Path) -> None:
    run = parse_run({"environment": {"settings": {"width": 7, "height": 7, "turns": 10}}, "baseline_episodes": 130})
    with playing(run, tmp_path) as process:
        until(lambda: process.look() and not process.summary({})["baselines_missing"])
        found = process.summary(run.policy_of(describe(run.environment)))
        process.run_ended()
        assert process.left == 0.0
    assert [*found["baselines"]] == ["agent_0", "agent_1"]
    for one in found["baselines"].values():
        assert 130 <= one["random_episodes"] < 200, "64 copies end at once"
        assert one["scripted"] > one["random"]
    assert found["baselines_seconds"]["spent"] > 0


@pytest.mark.parametrize("how", ["slow", "child", "select"])
def test_what_a_world_waits_for_outside_is_taken_from_the_time_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Though its processor does nothing meanwhile."""
    monkeypatch.setattr(module, "_LEAST", 0.3)
    monkeypatch.setattr(module, "_SHARE", 0.0)
    with playing(run_of(how), tmp_path) as process:
        until(lambda: process.look(0.1) and process.summary({})["baselines_seconds"]["spent"] > 0.3)
        assert not process.look(1.0)
        (found,) = process.summary({"agent": "p"})["baselines"].values()
    assert found["random_episodes"] < 100, "of 200"


def test_a_processor_that_others_have_is_not_taken_from_the_time_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training has it: of what it plays at its low priority only the time that it gets counts. The other has a
    session of its own, as the player has: by default Linux deals a processor to sessions first, and the one of all
    tests has less of this processor while they run on others too."""
    monkeypatch.setattr(module, "_LEAST", PATIENCE)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # inherited by both
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        with playing(run_of("busy", baseline_episodes=10**6), tmp_path) as process:

            def share() -> float:
                """Of a second, what was taken: all of it if the clock alone counted."""
                began, spent = time.monotonic(), process.summary({})["baselines_seconds"]["spent"]
                until(lambda: process.look(0.1) and time.monotonic() - began > 1.0)
                spent = process.summary({})["baselines_seconds"]["spent"] - spent
                return float(spent / (time.monotonic() - began))

            until(lambda: process.look(0.1))
            until(lambda: share() < 0.6, what="a second in which the other process had its share")
    finally:
        os.sched_setaffinity(0, before)
        busy.kill()
        busy.wait()


@pytest.mark.parametrize("complete", [True, False])
def test_of_a_run_that_is_stopped_it_is_not_said_that_the_time_was_over(tmp_path: Path, complete: bool) -> None:
    """Stopped before its end, or as it waited for them."""
    with playing(run_of("hang"), tmp_path, lasted=50.0) as process:
        process.run_ended(complete)
        assert (process.left > 0) is complete
    found = process.summary({"agent": "p"})
    assert not {"5", "5.0"} & words_in(found["baselines_missing"])
    assert found["baselines_missing"]


def test_play_takes_no_more_than_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing to spend it stands still after a few turns, having told what it has: it would tell more every half
    second. How many they are says the clock, which it may lose a processor beside."""
    monkeypatch.setattr(module, "_LEAST", 0.0)
    monkeypatch.setattr(module, "_SHARE", 0.0)
    with playing(run_of("nothing"), tmp_path) as process:
        until(process.look)
        until(lambda: not process.look(2.0), what="it stands still")
        assert process.summary({})["baselines_seconds"]["spent"] < 1.0


def test_none_are_played_where_none_are_asked_for(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with playing(run_of("hang", baseline_episodes=0), tmp_path) as process:
        process.run_ended()
        assert process.left == 0.0
        assert process.summary({"agent": "p"})["baselines_missing"]
        assert psutil.Process().children() == before


def test_external_simulators_are_played_by_nobody_else(tmp_path: Path) -> None:
    with playing(
        parse_run({"environment": {"id": "external", "settings": {"world": "cartpole"}}}), tmp_path
    ) as process:
        process.run_ended()
        assert process.left == 0.0
        assert process.summary({"agent": "p"})["baselines"] == {"p": {}}
        assert process.summary({"agent": "p"})["baselines_missing"]
