"""The pods of the local overlay run as processes: what they are told to do is what makes a run, whatever moves."""

from __future__ import annotations

import json
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.kubernetes.overlay import Placement
from launch.run_plan import outline_of
from protocol.config.run import parse_run
from tests.faults import kinds_in
from tests.flows import runs
from tests.k8s.manifests import build, named
from tests.k8s.pods_here import Cluster, cluster
from tests.k8s.test_render import rendered

STEPS = 40_000


def state(pods: Cluster) -> dict[str, int]:
    """Name -> incarnation of the members."""
    path = pods.folder / "runs" / "first" / "state.json"
    if not path.exists():
        return {}
    return {member["name"]: member["incarnation"] for member in json.loads(path.read_text())["members"]}


def made(pods: Cluster) -> int:
    """Agent steps so far."""
    status, said = pods.ask("coordinator", 5609, "/metrics")
    lines = [line.split()[-1] for line in said.splitlines() if line.startswith("rookery_run_agent_steps_total")]
    return int(float(lines[0])) if status == 200 and lines else 0


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_learner_that_comes_back_at_another_address_is_found_by_its_name_and_goes_on(k8s: Path) -> None:
    """Ordinals, keys lent by root, probes, DNS, a checkpoint on the volume, actors that come and go; books exact."""
    with cluster(overlay(k8s, "here", runs.config(steps=STEPS, actors=3, checkpoint_interval=1))) as pods:
        pods.start("actor", "actor-a")
        for number in range(2):
            pods.start("learner", f"learner-{number}", f"learner-{number}.learner")
        assert runs.until(lambda: pods.ask("actor-a", 5629, "/healthz")[0], what="the actor's probe") == 200
        assert pods.ask("actor-a", 5629, "/readyz")[0] == 503, "nobody to join yet"
        pods.start("coordinator", "coordinator-x", "coordinator")
        runs.until(lambda: made(pods) > 0, 120, f"the run is on: {said(pods)}")
        assert set(state(pods)) == {"learner-agent_0", "learner-agent_1", "actor-0"}
        for pod, port in (("coordinator", 5609), ("learner-0.learner", 5619), ("actor-a", 5629)):
            runs.until(partial(ready, pods, pod, port), what=f"{pod} is ready")
        pods.start("actor", "actor-b")
        first, before = pods.pods["learner-0"], pods.addresses["learner-0.learner"]
        first.popen.send_signal(signal.SIGTERM)
        assert first.wait() == 128 + signal.SIGTERM, first.said
        pods.start("learner", "learner-0", "learner-0.learner")
        assert pods.addresses["learner-0.learner"] != before
        runs.until(lambda: state(pods).get("learner-agent_0") == 2, 120, "learner-0 is back")
        pods.pods["coordinator-x"].popen.send_signal(signal.SIGTERM)
        assert pods.pods["coordinator-x"].wait() == 0
        pods.start("coordinator", "coordinator-y", "coordinator")
        pods.pods["actor-b"].popen.send_signal(signal.SIGTERM)
        assert pods.pods["actor-b"].wait() in (0, 128 + signal.SIGTERM)
        summary = pods.folder / "runs" / "first" / "summary.json"
        runs.until(summary.exists, 240, f"the run ends: {said(pods)}")
        told = json.loads(summary.read_text())
    assert told["complete"] is True
    assert STEPS <= told["agent_steps"] < STEPS + 3 * 16, "each place ends with a whole turn"
    assert told["restarts"]["learner-agent_0"] == told["restarts"]["coordinator"] == 1
    assert told["restarts"].get("learner-agent_1", 0) == 0
    segments = told["segments"]
    assert runs.balanced(segments), segments
    assert segments["unexplained"] == segments["in_flight"] == segments["dropped"]["actor_lost"] == 0
    assert segments["dropped"]["undelivered"] == 0
    assert told["train_steps"]["agent_0"] > 0


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_is_drained_of_all_pods_at_once_and_nothing_is_lost_elsewhere(k8s: Path) -> None:
    """As `kubectl drain` does without budgets: everybody is told to end, and comes back at another address."""
    with cluster(overlay(k8s, "drained", runs.config(steps=STEPS, actors=2, checkpoint_interval=1))) as pods:
        start_all(pods)
        runs.until(lambda: made(pods) > STEPS / 10, 120, f"the run is on: {said(pods)}")
        before = list(pods.pods.values())
        for pod in before:
            pod.popen.send_signal(signal.SIGTERM)
        for pod in before:
            assert pod.wait(120) in (0, 128 + signal.SIGTERM), pod.said
        trained = {name: version(pods.folder, name) for name in ("agent_0", "agent_1")}
        assert all(trained.values()), "each learner left a checkpoint"
        start_all(pods)
        summary = pods.folder / "runs" / "first" / "summary.json"
        runs.until(summary.exists, 240, f"the run ends: {said(pods)}")
        told = json.loads(summary.read_text())
        resumed = [pods.pods[f"learner-{number}"].said for number in range(2)]
    assert told["complete"] is True
    assert all("event=resumed" in one for one in resumed), resumed
    assert all(told["train_steps"][name] > value for name, value in trained.items())
    segments = told["segments"]
    assert runs.balanced(segments), segments
    assert segments["unexplained"] == segments["in_flight"] == segments["dropped"]["actor_lost"] == 0
    assert segments["dropped"]["undelivered"] == 0


def version(folder: Path, policy: str) -> int:
    """Train step of the newest checkpoint; 0 without any."""
    found = (folder / "runs" / "first" / "checkpoints" / policy).glob("[0-9]*")
    return max((int(path.name) for path in found), default=0)


def start_all(pods: Cluster) -> None:
    pods.start("coordinator", "coordinator-x", "coordinator")
    for number in range(2):
        pods.start("learner", f"learner-{number}", f"learner-{number}.learner")
        pods.start("actor", f"actor-{number}")


def overlay(k8s: Path, name: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The local overlay with that configuration."""
    folder = k8s / "overlays" / name
    folder.mkdir()
    (folder / "run.yaml").write_text(yaml.safe_dump(data))
    text = (k8s / "overlays" / "local" / "kustomization.yaml").read_text()
    (folder / "kustomization.yaml").write_text(text)
    documents = build(folder)
    shutil.rmtree(folder)
    return documents


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rendered_ranks_train_one_policy_and_meet_again_when_a_pod_of_theirs_is_lost(k8s: Path) -> None:
    """What `rookery k8s render` makes of a policy with ranks: two learner pods, off loopback and with keys, that find
    each other by name. The one that was killed comes back elsewhere; the other ends and goes back with it."""
    ranked: dict[str, Any] = {"actors": 2, "agents": {"agent_0": "shared", "agent_1": "shared"}, "policy": {"ranks": 2}}
    run = parse_run(runs.config(steps=STEPS, checkpoint_interval=0.5, stall_timeout=900, **ranked))
    documents = rendered(
        k8s, "ranks-here", run, Placement("first", pods=2, components=("insecure-ranks",)), outline_of(run)
    )
    assert named(documents, "StatefulSet", "learner")["spec"]["replicas"] == 2
    with cluster(documents) as pods:
        folder = pods.folder / "runs" / "first"
        pods.start("coordinator", "coordinator-x", "coordinator")
        for number in range(2):
            pods.start("learner", f"learner-{number}", f"learner-{number}.learner")
            pods.start("actor", f"actor-{number}")
        saved = folder / "checkpoints" / "shared"
        runs.until(lambda: list(saved.glob("[0-9]*")), 600, f"a checkpoint: {said(pods)}")
        first, lost = pods.pods["learner-0"], pods.pods["learner-1"]
        lost.popen.kill()
        assert first.wait(600) not in (0, None), "no rank goes on without another"
        assert {"rank_left", "rank_lost"} & {*kinds_in(first.said)}, first.said
        for number in range(2):
            pods.start("learner", f"learner-{number}", f"learner-{number}.learner")
        runs.until((folder / "summary.json").exists, 600, f"the run ends: {said(pods)}")
        told = json.loads((folder / "summary.json").read_text())
        logs = [(folder / "logs" / f"learner-shared-{rank}.log").read_text() for rank in range(2)]
    assert told["complete"] is True
    assert told["agent_steps"] >= STEPS
    assert told["restarts"] == {"learner-shared-0": 1, "learner-shared-1": 1}
    assert runs.balanced(told["segments"]), told["segments"]
    assert told["segments"]["unexplained"] == told["segments"]["in_flight"] == 0
    assert told["segments"]["dropped"]["undelivered"] == 0
    assert told["train_steps"]["shared"] > 0
    for rank, log in enumerate(logs):
        assert log.count(f"event=ranks_connected policy=shared rank={rank} ranks=2 backend=gloo") == 2


def ready(pods: Cluster, pod: str, port: int) -> bool:
    """As the readiness probe sees it."""
    return pods.ask(pod, port, "/readyz")[0] == 200


def said(pods: Cluster) -> str:
    """The last words of everybody."""
    return "\n".join(f"{name}: {worker.said[-600:]}" for name, worker in pods.pods.items())
