"""A network that goes dead for a while, in silence: nothing is lost or trained twice, and the run goes on soon after.

The coordinator and the learners are on the left machine, the actor is on the right one; everything travels by TCP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.memory.shared_file import read_counters
from tests.flows import runs
from tests.flows.network import LEFT, RIGHT, Network, Place, network

pytestmark = pytest.mark.chaos

PORT = 5600
STEPS = 4_000
SOON = 12.0
"""Seconds from the healing of the network to the next steps, on a busy machine; three to five on a quiet one."""


@dataclass
class Scene:
    """A run across the two machines."""

    net: Network
    folder: Path
    stack: ExitStack
    workers: list[runs.Worker] = field(default_factory=list)

    def begin(self, **keys: Any) -> None:
        """Starts all workers and waits until the run is on."""
        data = runs.paced(self.folder, STEPS, pause=0.012, transport="tcp", **keys)
        path = str(runs.write(data, self.folder))
        bind = ["--bind", f"{LEFT}:{PORT}", "--insecure"]
        self._start(
            self.net.on("left"), ["coordinator", path, "--run-dir", str(self.folder / "run"), *bind], "coordinator"
        )
        for i in range(2):
            self.learner(f"learner-{i}")
        self.actor("actor")
        runs.until(lambda: self.steps >= 500, runs.PATIENCE, what=f"the run is on: {self.said}")

    @property
    def steps(self) -> int:
        """Agent steps that actors have made, by their own count: the metrics tell it a thousand steps later."""
        pages = (self.folder / "run" / "counters").glob("actor-*")
        return sum(int(read_counters(page)["agent_steps"]) for page in pages)

    def actor(self, name: str) -> None:
        """One more actor, whose memory the learners do not see."""
        memory = self.folder / "right"
        memory.mkdir(exist_ok=True)
        where = ["--coordinator", f"tcp://{LEFT}:{PORT}", "--bind", f"{RIGHT}:0", "--insecure"]
        self._start(self.net.on("right").keeping(memory), ["actor", *where], name)

    def learner(self, name: str) -> None:
        """One more learner."""
        where = ["--coordinator", f"tcp://{LEFT}:{PORT}", "--bind", f"{LEFT}:0", "--insecure"]
        self._start(self.net.on("left"), ["learner", *where], name)

    def kill(self, name: str) -> None:
        """kill -9, and its parent takes note of it."""
        pid = runs.workers_of(self.folder)[name]
        worker = next(worker for worker in self.workers if worker.popen.pid == pid)
        runs.kill(pid)
        assert worker.wait() == -9
        self.workers.remove(worker)

    def cut(self, seconds: float) -> None:
        """Cuts the network; the test does the rest and then calls `heal`."""
        self.net.cut()
        self._healing = time.monotonic() + seconds

    def heal(self) -> float:
        """Connects the machines when their time has come; returns how long the run took to go on."""
        time.sleep(max(0.0, self._healing - time.monotonic()))
        done = self.steps
        assert done < STEPS / 2, "the run did not stop for the cut"
        self.net.heal()
        healed = time.monotonic()
        runs.until(lambda: self.steps >= done + 100, what=f"the run goes on: {self.said}")
        seconds = time.monotonic() - healed
        print(f"{seconds:.1f} s from the healing to the next steps")  # noqa: T201 - shown with -s
        return seconds

    def finish(self) -> dict[str, Any]:
        """The summary, when everyone has ended in order, with exact books."""
        for worker in self.workers:
            assert worker.wait() == 0, worker.said
            assert "Traceback" not in worker.said
        summary = runs.summary_of(self.folder)
        assert summary["complete"] is True
        assert runs.balanced(summary["segments"]), summary["segments"]
        assert summary["segments"]["unexplained"] == summary["segments"]["torn"] == 0
        assert summary["segments"]["in_flight"] == summary["segments"]["dropped"]["actor_lost"] == 0
        assert summary["segments"]["dropped"]["undelivered"] == 0
        return summary

    @property
    def said(self) -> str:
        """What all workers said."""
        return "\n".join(worker.said[-2_000:] for worker in self.workers)

    def _start(self, on: Place, command: list[str], name: str) -> None:
        self.workers.append(self.stack.enter_context(runs.started(command, self.folder, name, on)))
        if name == "coordinator":
            runs.until((self.folder / "run" / "coordinator.json").exists, what="coordinator is up")


@pytest.fixture
def scene(tmp_path: Path, memory_dir: Path) -> Iterator[Scene]:
    """Two machines; workers are ended before their network is."""
    with network() as net, ExitStack() as stack:
        yield Scene(net, tmp_path, stack)


CUTS = pytest.mark.parametrize("seconds", [5.0, pytest.param(30.0, marks=pytest.mark.slow)])


@CUTS
def test_a_silent_cut_loses_nothing_and_the_run_goes_on_soon_after(scene: Scene, seconds: float) -> None:
    """Flow `block`: the actor waits, nothing is dropped; the lease outlives the cut."""
    scene.begin(actor_timeout=120)
    scene.cut(seconds)
    assert scene.heal() < SOON
    summary = scene.finish()
    assert summary["agent_steps"] == STEPS
    assert summary["restarts"] == {}
    segments = summary["segments"]
    assert sum(segments["dropped"].values()) == segments["lost_in_learner"] == segments["duplicates"] == 0
    assert segments["received"] == segments["produced"]


@pytest.mark.slow
@CUTS
def test_an_actor_whose_lease_ended_in_the_cut_is_taken_back(scene: Scene, seconds: float) -> None:
    """It is the same member afterwards: not restarted, and all it had finished arrives."""
    scene.begin(actor_timeout=max(2.0, seconds / 4))  # an actor on its own gives up after ten leases
    scene.cut(seconds)
    runs.until(lambda: "event=lease_ended worker=actor-0" in scene.said, what="the lease ends")
    assert scene.heal() < SOON
    summary = scene.finish()
    assert summary["agent_steps"] == STEPS
    assert summary["restarts"] == {}
    segments = summary["segments"]
    assert sum(segments["dropped"].values()) == segments["lost_in_learner"] == segments["duplicates"] == 0


def test_an_actor_that_drops_rather_than_waits_counts_what_it_dropped_Z2(scene: Scene) -> None:
    """Z2: it goes on acting through the cut, and every segment is in the books."""
    # it may have made all its steps before the connections are back: then it has so long to deliver what is left
    scene.begin(actor_timeout=120, learner_timeout=60, policy={"flow": "drop_oldest"})
    scene.cut(4.0)
    time.sleep(4.0)
    scene.net.heal()
    summary = scene.finish()
    segments = summary["segments"]
    assert segments["dropped"]["overwritten"] > 0
    assert segments["dropped"]["no_credit"] == segments["lost_in_learner"] == 0
    assert segments["received"] == segments["produced"] - segments["dropped"]["overwritten"]


@pytest.mark.slow
@CUTS
def test_a_learner_killed_in_the_cut_is_replaced_and_gets_what_was_not_settled_G1(scene: Scene, seconds: float) -> None:
    """G1: the next incarnation knows from the ledger what the dead one had; only that one had in its hands is lost."""
    scene.begin(actor_timeout=120)
    scene.cut(seconds)
    scene.kill("learner-agent_1")
    scene.learner("learner-again")
    back = "event=joined worker=learner-agent_1 incarnation=2"
    runs.until(lambda: back in scene.said, what="another is there: an interpreter's start is no matter of the network")
    assert scene.heal() < SOON
    summary = scene.finish()
    assert summary["restarts"] == {"learner-agent_1": 1}
    segments = summary["segments"]
    assert sum(segments["dropped"].values()) == 0
    assert 0 <= segments["lost_in_learner"] <= 16
    assert segments["received"] - segments["duplicates"] == segments["produced"]


@pytest.mark.slow
def test_what_an_actor_finished_before_its_death_is_sent_by_its_successor(scene: Scene) -> None:
    """kill -9 of the actor while nothing can be delivered: only unfinished segments are lost."""
    scene.begin(actor_timeout=2)
    scene.cut(5.0)
    time.sleep(1.0)  # it goes on until its credit is used up
    scene.kill("actor-0")
    scene.net.heal()
    runs.until(lambda: "event=lease_ended worker=actor-0" in scene.said, what="the lease ends")
    scene.actor("successor")
    summary = scene.finish()
    inherited = [int(line.rpartition("=")[2]) for line in scene.said.splitlines() if "event=predecessor_resent" in line]
    assert sum(inherited) > 0
    assert summary["segments"]["dropped"]["actor_lost"] == 0
    assert summary["segments"]["received"] == summary["segments"]["produced"]
    assert list((scene.folder / "right").iterdir()) == []
