"""Whole runs whose world is played by programs of their own: they connect, are given actions and are trained on."""

from __future__ import annotations

import random
import re
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.errors import Timeout
from protocol.simulator.client import Simulator
from protocol.simulator.connection import addresses_of
from protocol.transport.curve import connect_string
from tests.clients.languages import LANGUAGES, example
from tests.faults import raises
from tests.flows import runs
from tests.flows.test_infos import drawn
from tests.tools import ROOT, skip_or_fail
from workers.learning.datasets.reader import RecordedDataset

EXAMPLE = str(ROOT / "protocol" / "clients" / "python" / "cartpole.py")


def config(steps: int, copies: int = 2, **keys: Any) -> dict[str, Any]:
    """A run that waits for cart-poles."""
    settings = {"world": "gymnasium:CartPole-v1", **keys.pop("settings", {})}
    policy = {"segment_length": 16, **keys.pop("policy", {})}
    environment = {"id": "external", "copies": copies, "settings": settings}
    return runs.config(steps=steps, policy=policy, **keys) | {"environment": environment}


def test_simulators_in_three_languages_drive_and_every_step_is_accounted_for_I8_J5(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8 J5: side by side they ask when they want, are told when the run is over, and end by themselves. They find the
    run's keys in its folder, in the connect string that it printed, and in `ROOKERY_KEYS`; without they do not get in.
    """
    programs, missing = {"python": [runs.PYTHON, EXAMPLE]}, ""
    for language in LANGUAGES:
        try:
            programs[language] = example(language, tmp_path)
        except pytest.skip.Exception as skipped:  # the others are played without it
            missing = str(skipped)
    with runs.training(config(10_000_000, copies=4), tmp_path) as worker, ExitStack() as stack:
        (served,) = runs.until(lambda: addresses_of(tmp_path / "run"), what="the actor serves simulators")
        (printed,) = runs.until(lambda: re.findall(r"tcp://\S+[?]keys=\S+", worker.said), what="it says how to connect")
        assert printed == connect_string(served, tmp_path / "run")
        with raises(Timeout, "keys_not_accepted", peer=served), Simulator(served, "stranger", patience=2.0):
            pass
        monkeypatch.setenv("ROOKERY_KEYS", str(tmp_path / "run" / "run-keys"))
        simulators, places = [], {"python": str(tmp_path / "run"), "cpp": printed, "javascript": served}
        for name, program in programs.items():
            simulators.append(stack.enter_context(runs.started([*program, places[name], name], tmp_path, name)))
        for name in programs:
            runs.until(partial(_admitted, tmp_path, "actor-0", name), what=f"{name} is admitted")
        for _ in range(2):  # the first line may tell of steps from before
            enough = runs.agent_steps(tmp_path) + 1_500
            runs.until(partial(_made, tmp_path, enough), what="all of them play")
        worker.popen.send_signal(signal.SIGINT)  # no number of steps is sure to leave time for who begins last
        assert worker.wait() == 1, worker.said
        assert [one.wait() for one in simulators] == [0] * len(programs), [one.said for one in simulators]
    summary = runs.summary_of(tmp_path)
    assert (summary["complete"], summary["restarts"]) == (False, {})
    played = [int(one.said.split()[1]) for one in simulators]
    assert min(played) > 50
    assert summary["agent_steps"] - len(programs) <= sum(played) <= summary["agent_steps"]
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["unexplained"] == 0
    assert runs.files(memory_dir) == []
    if missing:
        skip_or_fail(missing)


def test_internal_and_external_actors_train_side_by_side_I7_I8_J5(tmp_path: Path, memory_dir: Path) -> None:
    """I7 I8 J5: one actor plays the world itself, the other one serves simulators of it, which join and leave while
    training goes on, ask when they want, are told when the run is over and end by themselves. All steps are accounted
    for, those of simulators with their clocks, and what they tell of an episode is drawn."""
    data = config(1600, settings={"internal": 1}, policy={"record": True}, actors=2)
    with runs.training(data, tmp_path) as worker, ExitStack() as stack:
        with Simulator(tmp_path / "run", "visitor", patience=120.0, lease=120.0) as visitor:
            for step in range(40):
                visitor.act([0.0, 0.0, 0.0, float(step)], 1.0 if step else 0.0, clock=100.0 + step)
            command = [runs.PYTHON, EXAMPLE, str(tmp_path / "run"), "comes"]
            comes = stack.enter_context(runs.started(command, tmp_path, "comes"))
            runs.until(
                lambda: _admitted(tmp_path, "actor-1", "comes"), 90, "another one joins while the visitor thinks"
            )
            visitor.end_episode(1.0, info={"far": 2.5, "visited": True})
        assert worker.wait() == 0, worker.said
        assert comes.wait() == 0, comes.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert 1600 <= summary["agent_steps"] < 1604
    played = 40 + int(comes.said.split()[1])
    assert 800 - 2 <= played <= 802
    assert min(summary["train_steps"].values()) > 0
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["unexplained"] == 0
    assert runs.files(memory_dir) == []
    (policy,) = summary["recorded"]
    assert {name: summary["infos"][policy][name] for name in ("far", "visited")} == {
        "far": {"episodes": 1, "mean": 2.5},
        "visited": {"episodes": 1, "mean": 1.0},
    }
    assert {"info/far": 2.5, "info/visited": 1.0}.items() <= drawn(tmp_path)[policy].items()
    clocks: dict[str, list[float]] = {"actor-0": [], "actor-1": []}
    recorded = RecordedDataset(tmp_path / "run" / "datasets", policy)
    assert len(recorded.lengths()) == summary["recorded"][policy]
    for stretch in recorded.stretches():
        clocks[stretch.actor] += stretch.columns["clock"][stretch.before : stretch.before + stretch.valid].tolist()
    assert set(clocks["actor-0"]) == {0.0}
    assert {100.0, 110.0, 0.02, 0.04} <= {round(clock, 6) for clock in clocks["actor-1"]}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_fifty_killed_simulators_and_a_killed_actor_leave_whole_books_I7_I12(tmp_path: Path, memory_dir: Path) -> None:
    """I7 I12: kill -9 at random, of those that the actor starts; its own end; the run is complete all the same, and
    every segment is accounted for."""
    command = f"{runs.PYTHON} {EXAMPLE} {{address}} {{name}}"
    data = config(20_000, copies=6, settings={"command": command})
    data["environment"]["restarts"] = 100
    chance = random.Random(0)
    with runs.training(data, tmp_path) as worker:
        killed = 0
        while killed < 50 and worker.popen.poll() is None:
            actor = runs.workers_of(tmp_path).get("actor-0")
            playing = _playing(actor) if actor else []
            if playing:
                runs.kill(chance.choice(playing))
                killed += 1
            if killed == 25 and actor:
                runs.kill(actor)
                killed += 1
            time.sleep(chance.random() * 0.2)
        assert worker.wait(240) == 0, worker.said
    assert killed == 50
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["unexplained"] == summary["segments"]["torn"] == 0
    assert runs.files(memory_dir) == []


def _admitted(folder: Path, actor: str, name: str) -> bool:
    """Whether this actor has let it in."""
    log = folder / "run" / "logs" / f"{actor}.log"
    return log.exists() and f"event=simulator_admitted name={name}" in log.read_text()


def _made(folder: Path, steps: int) -> bool:
    return runs.agent_steps(folder) >= steps


def _playing(actor: int) -> list[int]:
    """Processes of the simulators that an actor started."""
    try:
        children = psutil.Process(actor).children(recursive=True)
        return [child.pid for child in children if EXAMPLE in child.cmdline()[:2]]
    except psutil.Error:
        return []
