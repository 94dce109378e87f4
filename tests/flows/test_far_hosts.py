"""Two actor hosts and a learner host with a long way between them: late, slow, and cut in one direction or in both.

The coordinator and the learner of both policies are on machine 0, an actor each on machines 1 and 2; everything
travels by TCP.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import Run
from protocol.memory.shared_file import read_counters
from tests.flows import runs
from tests.flows.far import Machines, address, machines
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PORT = 5600
DELAY, RATE = 20.0, 200
"""Milliseconds in each direction, and Mbit/s."""
WIRE = 0.03
"""Share of a segment's size by which what travels for it may be more."""
SOON = 12.0
"""Seconds from the healing of the network to the next steps, on a busy machine."""
SETTLING = 13.0
"""Seconds until a longer way is believed to be longer: TCP by BBR, the default of many kernels, allows as much on its
way as the shortest round trip of the last ten seconds asks for."""
RADIUS = 10
"""Of what agents see: segments of 85 kB."""
POLICIES = ("agent_0", "agent_1")


@dataclass
class Scene:
    """A run across the machines."""

    net: Machines
    folder: Path
    stack: ExitStack
    workers: list[runs.Worker] = field(default_factory=list)
    segment: int = 0
    """Bytes of a segment."""
    block_steps: int = 0
    """Agent steps in a block."""
    credits: int = 0
    """Segments of a policy that an actor may have on their way, as nobody said how many."""

    def begin(self, steps: int, pause: float = 0.003, slow: bool = False, **keys: Any) -> None:
        """Starts all workers and waits until the run is on. `slow`: the way is, from the first byte on."""
        if slow:
            for command in (f"delay {DELAY}", *(f"rate {machine} {RATE}" for machine in range(3))):
                self.net.tell(command)
        policy = {"segment_length": 32, "publish_interval": 4, **keys.pop("policy", {})}
        data = runs.paced(
            self.folder, steps, pause=pause, actors=2, num_learner_processes=1, transport="tcp", policy=policy, **keys
        )
        data["environment"]["settings"] |= {"radius": RADIUS, "turns": 10_000}  # no final observations beside the rows
        path = str(runs.write(data, self.folder))
        run = Run.model_validate({"environment": {"copies": 8, "settings": {"radius": RADIUS}}, "policy": policy})
        plan = plan_policies(run, describe(run.environment))["agent_0"]
        self.segment, self.credits = plan.layout.segment_bytes, plan.credit_blocks * plan.block
        self.block_steps = plan.block * plan.layout.length
        self._start(0, "coordinator", [path, "--run-dir", str(self.folder / "run")], f"{address(0)}:{PORT}")
        runs.until((self.folder / "run" / "coordinator.json").exists, what="the coordinator is up")
        where = ["--coordinator", f"tcp://{address(0)}:{PORT}"]
        self._start(0, "learner", where, f"{address(0)}:0")
        for number in (1, 2):
            self._start(number, f"actor-{number}", where, f"{address(number)}:0")
        runs.until(
            lambda: self.page("actor", "agent_steps") >= 1_000, runs.PATIENCE, what=f"the run is on: {self.said}"
        )

    def page(self, name: str, *counters: str) -> float:
        """The sum of these counters of the workers whose names begin so; they are written as things happen."""
        pages = [read_counters(path) for path in (self.folder / "run" / "counters").glob(f"{name}*")]
        return float(sum(page.get(counter, 0) for page in pages for counter in counters))

    @property
    def produced(self) -> float:
        """Segments so far."""
        return self.page("actor", *(f"produced.{policy}" for policy in POLICIES))

    def wire(self) -> float:
        """Bytes that the actors' machines have put on their cables for each segment, in sizes of a segment."""
        sent = self.net.sent(1) + self.net.sent(2)
        share = sent / self.produced / self.segment
        print(f"{share:.4f} bytes on the wire for each byte of a segment of {self.segment}")  # noqa: T201 - shown with -s
        return share

    def pace(self, seconds: float) -> tuple[float, float]:
        """Agent steps a second over the next seconds, and the share of them that an actor waited for credit."""
        before, start = self.page("actor", "agent_steps"), time.monotonic()
        waited = self.page("actor", *(f"waits.credit.{policy}" for policy in POLICIES))
        time.sleep(seconds)
        took = time.monotonic() - start
        waited = self.page("actor", *(f"waits.credit.{policy}" for policy in POLICIES)) - waited
        return (self.page("actor", "agent_steps") - before) / took, waited / took / 2

    def recovery(self) -> float:
        """Heals everything; seconds until both learners have got more than had been sent then."""
        before = {policy: self.page("learner", f"received.{policy}") for policy in POLICIES}
        for command in [f"heal {one} {other}" for one in range(3) for other in range(3) if one != other]:
            self.net.tell(command)
        start = time.monotonic()
        runs.until(
            lambda: all(self.page("learner", f"received.{policy}") >= before[policy] + 64 for policy in POLICIES),
            what=f"the run goes on: {self.said}",
        )
        seconds = time.monotonic() - start
        print(f"{seconds:.1f} s from the healing to the next segments")  # noqa: T201 - shown with -s
        return seconds

    def finish(self) -> dict[str, Any]:
        """The summary, when everyone has ended in order, with nothing lost."""
        for worker in self.workers:
            assert worker.wait() == 0, worker.said
            assert "Traceback" not in worker.said
        summary = runs.summary_of(self.folder)
        segments = summary["segments"]
        assert summary["complete"] is True
        assert runs.balanced(segments), segments
        assert segments["unexplained"] == segments["torn"] == segments["in_flight"] == segments["lost_in_learner"] == 0
        assert sum(segments["dropped"].values()) == 0
        assert segments["received"] - segments["duplicates"] == segments["produced"]
        assert summary["restarts"] == {}
        return summary

    @property
    def said(self) -> str:
        """What all workers said."""
        return "\n".join(worker.said[-2_000:] for worker in self.workers)

    def _start(self, machine: int, name: str, arguments: list[str], bind: str) -> None:
        memory = self.folder / f"memory-{machine}"
        memory.mkdir(exist_ok=True)
        on = self.net.on(machine).keeping(memory)
        command = [name.partition("-")[0], *arguments, "--bind", bind, "--insecure"]
        self.workers.append(self.stack.enter_context(runs.started(command, self.folder, name, on)))


@pytest.fixture
def scene(tmp_path: Path, memory_dir: Path) -> Iterator[Scene]:
    """Three machines; workers are ended before their network is."""
    with machines(3) as net, ExitStack() as stack:
        yield Scene(net, tmp_path, stack)


def test_of_a_segment_hardly_more_than_its_size_travels_a_late_slow_way_and_credits_cover_it(scene: Scene) -> None:
    """20 ms late in each direction and 200 Mbit/s: everything that an actor's machine sends is counted, joining too."""
    scene.begin(16_000, slow=True)
    scene.finish()
    assert 1.0 < scene.wire() < 1.0 + WIRE


@pytest.mark.parametrize(("way", "seconds"), [("to the actors", 5.0), ("to the learners", 5.0), ("both", 30.0)])
def test_a_cut_in_one_direction_or_in_both_costs_no_acknowledged_segment(
    scene: Scene, way: str, seconds: float
) -> None:
    """Acknowledgements and weights vanish, or segments, or everything; the lease outlives it."""
    scene.begin(30_000, slow=True, actor_timeout=120)
    for machine in (1, 2):
        if way != "to the learners":
            scene.net.tell(f"cut 0 {machine}")
        if way != "to the actors":
            scene.net.tell(f"cut {machine} 0")
    time.sleep(seconds)
    assert scene.recovery() < SOON
    scene.finish()


def test_with_20_ms_of_delay_actors_wait_no_longer_for_credit_than_without(scene: Scene) -> None:
    """The same switch, the same run, as fast as it goes: at once and late by turns; the medians. What delay may not
    cost is a wait for credit; where all share two cores, the switch's own work costs speed too, which is shown."""
    scene.begin(10**9, pause=0.0, policy={"credits": 64})
    paces: dict[float, list[tuple[float, float]]] = {0.0: [], DELAY: []}
    for _ in range(2):
        for delay, found in paces.items():
            scene.net.tell(f"delay {delay}")
            time.sleep(SETTLING if delay else 1.0)
            found.append(scene.pace(4.0))
    (now, idle), (late, waited) = (map(statistics.median, zip(*found, strict=True)) for found in paces.values())
    needed = 1 + math.ceil(2 * DELAY / 1e3 * now / len(POLICIES) / 2 / scene.block_steps)
    print(  # noqa: T201 - shown with -s
        f"{late:.0f} agent steps/s with {DELAY:g} ms, {now:.0f} without: {late / now:.3f}; "
        f"waited for credit {waited:.3f} and {idle:.3f} of the time; "
        f"credits {scene.credits} segments in blocks of 8; bandwidth times delay wants {needed} blocks"
    )
    assert waited < idle + 0.1
