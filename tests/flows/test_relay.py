"""Two nodes and a relay on each: what several workers of a node need crosses the network once.

The actors are on the left machine, the coordinator and four learners on the right one; neither sees the other's memory,
though the path of the folder is the same. Needs root.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.memory.shared_file import read_counters
from protocol.transport.curve import new_keys
from tests.flows import runs
from tests.flows.network import LEFT, RIGHT, Network, network

pytestmark = pytest.mark.chaos

PORT = 5600
AGENTS = 4
POLICIES = [f"agent_{i}" for i in range(AGENTS)]


@dataclass
class Scene:
    """A run across the two machines."""

    net: Network
    folder: Path
    memory: Path
    stack: ExitStack
    workers: dict[str, runs.Worker] = field(default_factory=dict)
    trust: tuple[str, ...] = ("--insecure",)

    def begin(
        self, steps: int, actors: int, settings: dict[str, Any] | None = None, lease: float = 60.0, **keys: Any
    ) -> None:
        """Starts the coordinator and the learners. A lease that ends on a busy machine leads the others past a relay
        that lives, so it is long unless a test kills one."""
        data = runs.paced(self.folder, steps, pause=0.008, actors=actors, actor_timeout=lease, **keys)
        data["environment"]["settings"] |= {"agents": AGENTS, **(settings or {})}
        data["environment"]["turn_mode"] = "simultaneous"
        path = str(runs.write(data, self.folder))
        bind = ["--bind", f"{RIGHT}:{PORT}", *self.trust]
        self.start("right", "coordinator", [path, "--run-dir", str(self.folder / "run"), *bind])
        runs.until((self.folder / "run" / "coordinator.json").exists, what="the coordinator is up")
        for i in range(AGENTS):
            self.worker("right", f"learner-{i}")

    def worker(self, side: str, name: str) -> None:
        """Starts one worker, whose role its name begins with, told the coordinator's address alone."""
        here = LEFT if side == "left" else RIGHT
        where = ["--coordinator", f"tcp://{RIGHT}:{PORT}", "--bind", f"{here}:0", *self.trust, "--node", side]
        self.start(side, name, where)

    def start(self, side: str, name: str, arguments: list[str]) -> None:
        """Starts `rookery <role>` on a machine."""
        own = self.folder / f"memory-{side}"
        own.mkdir(exist_ok=True)
        on = self.net.on(side).keeping(own, seen=self.memory)
        started = runs.started([name.partition("-")[0], *arguments], self.folder, name, on)
        self.workers[name] = self.stack.enter_context(started)

    def relays(self) -> None:
        """Starts both relays and waits until they can pass on everything."""
        for side in ("left", "right"):
            self.worker(side, f"relay-{side}")
        runs.until(lambda: self.offered("left") and self.offered("right"), runs.PATIENCE, "the relays are ready")

    def kill(self, name: str) -> None:
        """kill -9."""
        worker = self.workers.pop(name)
        worker.popen.kill()
        assert worker.wait() == -9

    def offered(self, side: str) -> bool:
        """Whether the relay of a node is ready for all policies."""
        state = self.folder / "run" / "state.json"
        members = json.loads(state.read_text())["members"] if state.exists() else []
        routes = [len(member["routes"]) for member in members if member["role"] == "relay" and member["node"] == side]
        return routes == [AGENTS]

    def received(self, side: str) -> int:
        """Bytes that have come over the machine's cable so far."""
        command = [*self.net.on(side).words, "cat", "/sys/class/net/eth0/statistics/rx_bytes"]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    def page(self, name: str) -> dict[str, float]:
        """The counters of the workers whose names begin so, summed."""
        total: dict[str, float] = {}
        for path in (self.folder / "run" / "counters").glob(f"{name}*"):
            for key, value in read_counters(path).items():
                total[key] = total.get(key, 0) + value
        return total

    def relay(self, side: str) -> str:
        """The name by which the coordinator knows the relay of a node."""
        said = self.workers[f"relay-{side}"].said
        return said.partition("event=joined run=")[2].partition("name=")[2].split()[0]

    def finish(self) -> dict[str, Any]:
        """The summary, when everyone has ended in order and left nothing, with exact books."""
        for name, worker in self.workers.items():
            assert worker.wait() == 0, f"{name}: {worker.said}"
            assert "Traceback" not in worker.said
        for side in ("left", "right"):
            assert runs.files(self.folder / f"memory-{side}") == []
        summary = runs.summary_of(self.folder)
        assert summary["complete"] is True
        segments = summary["segments"]
        assert runs.balanced(segments), segments
        assert segments["unexplained"] == segments["torn"] == segments["in_flight"] == 0
        assert sum(segments["dropped"].values()) == segments["lost_in_learner"] == 0
        assert segments["received"] - segments["duplicates"] == segments["produced"]
        assert all(summary["train_steps"][policy] > 0 for policy in POLICIES)
        return summary

    @property
    def said(self) -> str:
        """What all workers said."""
        return "\n".join(worker.said[-2_000:] for worker in self.workers.values())


@pytest.fixture
def scene(tmp_path: Path, memory_dir: Path) -> Iterator[Scene]:
    """Two machines; workers are ended before their network is."""
    with network() as net, ExitStack() as stack:
        yield Scene(net, tmp_path, memory_dir, stack)


def test_weights_cross_once_for_all_actors_of_a_node_and_segments_once_to_that_of_their_learners_J9(
    scene: Scene,
) -> None:
    """J9: three actors take each version of each policy from the memory of their node, into which it came once."""
    scene.begin(steps=6_000, actors=3, policy={"network": {"hidden": [128, 128]}})
    scene.relays()
    before = scene.received("left")
    for i in range(3):
        scene.worker("left", f"actor-{i}")
    for i in range(3):
        assert scene.workers[f"actor-{i}"].wait() == 0, scene.workers[f"actor-{i}"].said
    crossed = scene.received("left") - before
    near, far = scene.relay("left"), scene.relay("right")
    summary = scene.finish()
    learners, weights, segments = scene.page("learner"), scene.page(near), scene.page(far)
    passed = sum(weights[f"weights_relayed.{policy}"] for policy in POLICIES)
    for policy in POLICIES:  # the relay may have left before its last answer
        late = scene.page(f"learner-{policy}")["weights_answered"] - weights[f"weights_relayed.{policy}"]
        assert late in (0, 1), "only the relay asked"
    assert weights["weights_answered"] == 0, "every actor took them from memory"
    assert passed > 5 * AGENTS
    print(f"{crossed / learners['weights_bytes']:.2f} of the weights' bytes crossed; {passed:.0f} versions")  # noqa: T201
    assert crossed < 1.5 * learners["weights_bytes"], "acknowledgements, heartbeats and one copy of the weights"
    assert sum(segments[f"relayed.{policy}"] for policy in POLICIES) == summary["segments"]["produced"]
    assert sum(segments[f"held.{policy}"] for policy in POLICIES) == 0
    assert summary["restarts"] == {}
    assert summary["segments"]["duplicates"] == 0


@pytest.mark.slow
def test_what_four_learners_see_in_common_crosses_to_their_node_once_J9(scene: Scene) -> None:
    """J9: the whole map is most of what each agent sees, and lies and travels once for all of them; encrypted here."""
    new_keys(scene.folder / "keys")
    scene.trust = ("--keys", str(scene.folder / "keys"))
    scene.begin(12_000, 1, {"map": True, "width": 60, "height": 60}, policy={"segment_length": 16})
    scene.relays()
    before = scene.received("right")
    scene.worker("left", "actor-0")
    assert scene.workers["actor-0"].wait() == 0, scene.said
    crossed = scene.received("right") - before
    far = scene.relay("right")
    summary, page = scene.finish(), scene.page(far)
    once = summary["env_steps"] * 60 * 60
    print(f"{crossed / once:.2f} times the maps crossed")  # noqa: T201
    assert once < crossed < 2 * once, "the maps once, four agents' own rows, and the last maps of truncated episodes"
    assert sum(page[f"relayed.{policy}"] for policy in POLICIES) == summary["segments"]["produced"]
    assert page["quarantined_messages"] == page["out_of_order"] == 0


@pytest.mark.slow
def test_replay_through_relays_never_meets_a_row_that_was_overwritten(scene: Scene) -> None:
    """The learners sample the relay's memory as they would the actors' own, of which it keeps as much."""
    policy = {"algorithm": {**runs.IQN, "buffer_capacity": 1_000}, "flow": "block"}  # nothing is to be dropped
    scene.begin(12_000, 2, {"map": True}, policy=policy)
    scene.relays()
    for i in range(2):
        scene.worker("left", f"actor-{i}")
    far = scene.relay("right")
    summary = scene.finish()
    produced, page = summary["segments"]["produced"], scene.page(far)
    assert sum(page[f"relayed.{policy}"] for policy in POLICIES) == produced
    assert produced * 8 > 2 * AGENTS * 1_000, "the memory was used more than once"


@pytest.mark.slow
def test_the_run_goes_on_when_relays_are_killed_and_again_when_they_are_back(scene: Scene) -> None:
    """First everyone goes past them, then by way of them again; every segment is in the books once."""
    scene.begin(96_000, 2, {"map": True}, lease=3)
    scene.relays()
    for i in range(2):
        scene.worker("left", f"actor-{i}")
    runs.until(lambda: runs.agent_steps(scene.folder) >= 3_000, runs.PATIENCE, what=f"the run is on: {scene.said}")
    for side in ("left", "right"):
        scene.kill(f"relay-{side}")
    done = runs.agent_steps(scene.folder)
    runs.until(lambda: runs.agent_steps(scene.folder) >= done + 3_000, what=f"the run goes on: {scene.said}")
    scene.relays()
    far = scene.relay("right")
    summary = scene.finish()
    page = scene.page(f"{far}.2")
    assert sum(page[f"relayed.{policy}"] for policy in POLICIES) > 0, "segments came by the new relay"
    assert sorted(summary["restarts"].values()) == [1, 1]
    assert summary["agent_steps"] == 96_000
