"""A run that stays while its actors go from none to fifty and back: nobody else is started again for it."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import Run
from protocol.memory.shared_file import read_counters
from tests.flows import runs
from tests.flows.crowd import Crowd, Forked, crowd
from tests.workers.coordination.dashboard.asking import ask
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies

FEW, MANY, KILLED, WAVE = 2, 50, 10, 12
"""Actors; of the many, those that are killed and whose places others take; how many start at the same time."""
LONG = 900.0
"""Seconds for fifty to start, or to end, side by side on two cores that others use too."""
STARVED = 0.9
CROWDED: dict[str, Any] = {"actor_timeout": 300, "learner_timeout": 300, "stall_timeout": 600, "monitor_period": 2}
"""What one sets on machines with many more workers than processors: nobody is lost because it had to wait for one, and
the coordinator hears of each less often."""
NEXT_RELEASE = """
import protocol
protocol.RELEASE, protocol.SCHEMA = "9.9.9", protocol.SCHEMA + 1
"""
LEARNERS = {"learner-0": 1}
"""Name -> incarnation, from the first to the last."""


@dataclass
class Actors:
    """Those of one run."""

    folder: Path
    address: str
    all: list[Forked] = field(default_factory=list)

    def add(self, count: int, of: Crowd) -> list[Forked]:
        """So many more, in waves; returns when all are members and each has made segments."""
        for first in range(0, count, WAVE):
            wave = range(min(WAVE, count - first))
            self.all += [of.start("--coordinator", self.address, "--patience", "600") for _ in wave]
            living = sum(actor.lives for actor in self.all)
            until(partial(self._deliver, living), f"{living} actors are there, and every one delivers")
        return self.all[-count:]

    def end(self, actors: Sequence[Forked], number: int) -> set[int]:
        """Sends all of them the signal; their exit codes."""
        for actor in actors:
            runs.kill(actor.pid, number)
        codes = {actor.wait(LONG) for actor in actors}
        living = sum(actor.lives for actor in self.all)
        until(lambda: len(members(self.folder, "actor")) == living, f"{living} actors are left")
        assert "Traceback" not in "".join(actor.said for actor in actors)
        return codes

    def _deliver(self, count: int) -> bool:
        there = members(self.folder, "actor").items()
        return len(there) == count and all(page(self.folder, *one).get("produced.agent_0") for one in there)


def until(ready: Callable[[], object], what: str) -> None:
    """Looks twice a second: who waits must not take the processors from fifty."""
    end = time.monotonic() + LONG
    while not ready():
        assert time.monotonic() < end, f"after {LONG:g} s still not: {what}"
        time.sleep(0.5)


def members(folder: Path, role: str) -> dict[str, int]:
    """Name -> incarnation, as the coordinator last wrote them down."""
    path = folder / "run" / "state.json"
    found = json.loads(path.read_text())["members"] if path.exists() else []
    return {one["name"]: one["incarnation"] for one in found if one["role"] == role}


def page(folder: Path, name: str, incarnation: int) -> dict[str, float]:
    """Its counters; nothing before it has any."""
    path = folder / "run" / "counters" / f"{name}.{incarnation}"
    return read_counters(path) if path.exists() else {}


def starvation(folder: Path) -> float:
    """What KEDA asks Prometheus for, from the coordinator itself: of the policy that starves most."""
    http = json.loads((folder / "run" / "coordinator.json").read_text())["http"]
    found = re.findall(r"^rookery_run_starvation_ratio\{[^}]*\} (\S+)$", ask(f"{http}/metrics").text, re.MULTILINE)
    return max((float(value) for value in found), default=-1.0)


def lag(folder: Path, rows: int) -> float:
    """Versions between the making of a step and its use, over the next so many rows that are learned."""

    def seen() -> tuple[float, float]:
        counted = page(folder, "learner-0", 1)
        return counted["lag_sum.agent_0"], counted["lag_rows.agent_0"]

    before = seen()
    until(lambda: seen()[1] >= before[1] + rows, "the learner goes on")
    after = seen()
    return (after[0] - before[0]) / (after[1] - before[1])


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_actors_go_from_0_to_50_and_back_under_load_and_nobody_else_is_started_again(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of the fifty are killed, and actors of the next release, which speaks one schema more, take their places. All
    fifty are told to end as by a scheduler; the run waits for others, and goes on with two, who lag as two do."""
    algorithm = {**runs.PPO, "segments": 16, "epochs": 16, "minibatches": 4}  # a learner that fifty keep busy
    data = runs.paced(tmp_path, 10**9, pause=0.15, actors=MANY, num_learner_processes=1, **CROWDED)
    data["policy"]["algorithm"], data["environment"]["copies"] = algorithm, 2
    unpaced = Run.model_validate({**data, "environment": {"copies": 2}})
    plan = plan_policies(unpaced, describe(unpaced.environment))["agent_0"]
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "sitecustomize.py").write_text(NEXT_RELEASE)
    with ExitStack() as stack:
        now = stack.enter_context(crowd("workers.actor", tmp_path))
        with monkeypatch.context() as upgraded:
            upgraded.setattr(runs, "EXTRA_PATH", str(tmp_path / "next"))
            later = stack.enter_context(crowd("workers.actor", tmp_path))
        command = ["coordinator", "--open", str(runs.write(data, tmp_path)), "--run-dir", str(tmp_path / "run")]
        coordinator = stack.enter_context(runs.started([*command, "--bind", "127.0.0.1:0"], tmp_path, "coordinator"))
        until((tmp_path / "run" / "coordinator.json").exists, "the coordinator is up")
        address = json.loads((tmp_path / "run" / "coordinator.json").read_text())["address"]
        learner = stack.enter_context(runs.started(["learner", "--coordinator", address], tmp_path, "learner"))
        until(lambda: members(tmp_path, "learner") == LEARNERS, "the learner is there")
        until(lambda: starvation(tmp_path) >= STARVED, "without actors it starves")
        actors = Actors(tmp_path, address)

        actors.add(FEW, now)
        few = lag(tmp_path, 500)
        began = time.monotonic()
        actors.add(MANY - FEW, now)
        grew = time.monotonic() - began
        until(lambda: 0 <= starvation(tmp_path) < STARVED / 2, "with fifty it has enough")
        many = lag(tmp_path, 2_000)
        assert actors.end(actors.all[:: MANY // KILLED], signal.SIGKILL) == {-signal.SIGKILL}
        actors.add(KILLED, later)
        began = time.monotonic()
        assert actors.end([one for one in actors.all if one.lives], signal.SIGTERM) == {128 + signal.SIGTERM}
        assert members(tmp_path, "actor") == {}
        shrank = time.monotonic() - began
        until(lambda: starvation(tmp_path) >= STARVED, "without actors it starves again")

        last = actors.add(FEW, later)
        again = lag(tmp_path, 500)
        most = 2 * (1 + FEW * plan.blocks * plan.block / algorithm["segments"])
        assert max(few, again) <= most, (few, many, again)
        assert members(tmp_path, "learner") == LEARNERS
        assert actors.end(last, signal.SIGTERM) == {128 + signal.SIGTERM}
        coordinator.popen.send_signal(signal.SIGINT)
        assert [coordinator.wait(LONG), learner.wait(LONG)] == [9, 0], coordinator.said + learner.said
        assert "Traceback" not in coordinator.said + learner.said
    summary = runs.summary_of(tmp_path)
    print(  # noqa: T201 - shown with -s
        f"{FEW} to {MANY} actors {grew:.0f} s, {MANY} to 0 {shrank:.0f} s; lag with {FEW}, {MANY}, {FEW}: {few:.1f}, "
        f"{many:.1f}, {again:.1f}; segments {summary['segments']}"
    )
    assert {name for name in summary["restarts"] if not name.startswith("actor-")} == set()
    segments = summary["segments"]
    assert runs.balanced(segments), segments
    assert segments["unexplained"] == segments["in_flight"] == segments["lost_in_learner"] == segments["torn"] == 0
    of_killed = KILLED * 2 * plan.blocks * plan.block
    assert sum(segments["dropped"].values()) == segments["dropped"]["actor_lost"] <= of_killed
    assert runs.files(memory_dir) == []
