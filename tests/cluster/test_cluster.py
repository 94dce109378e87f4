"""The local overlay on a real Kubernetes of one node, from `kubectl apply` to the books of its run: each test goes on
where the one before it ended (`make test-cluster`). What they measured is told at the end, and lies in report.txt
beside the machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.kubernetes import Kubernetes, kubernetes, manifests
from tests.flows import runs
from tests.k8s.manifests import with_keys

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(3600)]
SECONDS = 900.0
"""From the first step to the end of the run: more than all before the last test takes on a busy machine."""
RUN = {
    "environment": {"id": "treasure_hunt", "copies": 16},
    "actors": 4,
    "steps": 100_000_000,
    "seconds": SECONDS,
    "checkpoint_interval": 5,
    "actor_timeout": 30,
    "learner_timeout": 60,
}
FIRST_UPDATE = 60.0
"""Seconds from `kubectl apply` to the first update, images being there."""
STEPS = {"learner": ("joined", "learning"), "actor": ("joined", "first_weights", "acting"), "coordinator": ("stage",)}
"""What a worker says on its way to the first update."""
PATIENCE = 300.0
Figures = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as up:
        yield up


@pytest.fixture(scope="module")
def figures(cluster: Kubernetes) -> Iterator[Figures]:
    """Name -> what was measured."""
    found: Figures = {}
    yield found
    text = "\n".join(f"{name}: {value}" for name, value in found.items())
    (cluster.folder / "report.txt").write_text(text + "\n")
    print(f"\n{text}")  # noqa: T201 - shown with -s


def incarnations(cluster: Kubernetes) -> dict[str, int]:
    """Member -> how many times it has joined."""
    said = cluster.file("state.json")
    return {member["name"]: member["incarnation"] for member in json.loads(said)["members"]} if said else {}


def updates(cluster: Kubernetes) -> dict[str, float]:
    """Policy's series -> updates made, as the coordinator tells."""
    told = cluster.run_metrics().items()
    return {name: value for name, value in told if name.startswith("rookery_run_train_steps_total")}


def updated(cluster: Kubernetes) -> bool:
    """Whether there was any update, as the run's folder says: to ask Kubernetes takes the processors from those who are
    waited for."""
    rows = cluster.file("metrics.jsonl").rpartition("\n")[0].splitlines()[-1:]
    return any(
        value.get("train_steps") for row in rows for value in json.loads(row).values() if isinstance(value, dict)
    )


def goes_on(cluster: Kubernetes, what: str) -> float:
    """Seconds until each policy has been updated again."""
    cluster.until(partial(updates, cluster), PATIENCE, f"the coordinator tells of updates {what}")
    before = updates(cluster)

    def further() -> bool:
        now = updates(cluster)
        return bool(now) and all(now[name] > before.get(name, 0) for name in now)

    return round(cluster.until(further, PATIENCE, f"updates go on {what}"), 1)


def told_of_actors(cluster: Kubernetes, count: int) -> bool:
    """Whether as many live, as the run tells."""
    told = cluster.run_metrics().items()
    return count == sum(value for name, value in told if name.startswith("rookery_run_workers{") and '"actor"' in name)


def way(cluster: Kubernetes, component: str, begin: float) -> dict[str, float]:
    """Seconds after `begin` when the first pod of its kind got so far, as Kubernetes and its own log say; Kubernetes
    tells whole seconds."""
    name, pod = next(iter(cluster.pods(component).items()))
    (container,) = pod["status"]["containerStatuses"]
    found = {"made": pod["metadata"]["creationTimestamp"], "started": container["state"]["running"]["startedAt"]}
    said = [line.partition(" ") for line in cluster("logs", name, "--timestamps").splitlines()]
    for step, sought in (("first word", ""), *((step, f"event={step} ") for step in STEPS[component])):
        found |= dict([(step, when) for when, _, text in said if sought in text][:1])
    return {
        step: round(datetime.fromisoformat(when[:26].rstrip("Z") + "+00:00").timestamp() - begin, 1)
        for step, when in found.items()
    }


def test_the_first_update_comes_within_a_minute_of_apply(cluster: Kubernetes, figures: Figures, tmp_path: Path) -> None:
    documents = manifests(with_keys(tmp_path / "k8s"), RUN)
    figures["node"] = " ".join(cluster("get", "node", "one", "--output", "wide").splitlines()[-1].split())
    begin, clock = time.monotonic(), time.time()
    cluster("apply", "--filename", "-", given=yaml.safe_dump_all(documents))
    cluster.until(partial(updated, cluster), PATIENCE, "the first update")
    figures["from apply to the first update, s"] = taken = round(time.monotonic() - begin, 1)
    for component, count in (("coordinator", 1), ("learner", 2), ("actor", 1)):
        cluster.until(partial(cluster.ready, component, count), PATIENCE, f"{component} is ready")
    figures["from apply to all pods ready, s"] = round(time.monotonic() - begin, 1)
    figures |= {f"after apply, {component}, s": way(cluster, component, clock) for component in STEPS}
    assert taken <= FIRST_UPDATE


def test_pods_run_as_they_are_told_to(cluster: Kubernetes) -> None:
    """No user of the image's, a root that cannot be written to, keys of the own role alone."""
    said = cluster("exec", "learner-0", "--", "sh", "-c", "id -u; touch /opt/x; ls /keys; df -m /dev/shm | tail -1")
    assert said.splitlines()[0] == "10001"
    assert "x" not in cluster("exec", "learner-0", "--", "ls", "/opt").split(), "the root cannot be written to"
    assert "learner.secret" in said
    assert "actor.secret" not in said
    assert int(said.splitlines()[-1].split()[1]) <= 256


def test_every_pod_is_scraped(cluster: Kubernetes, figures: Figures) -> None:
    for component, port in (("coordinator", 5609), ("learner", 5619), ("actor", 5629)):
        for pod in cluster.pods(component):
            series = cluster.metrics(pod, port)
            assert series, pod
            assert any(name.startswith("rookery_") for name in series)
            figures[f"series of a {component}"] = len(series)
    told = cluster.run_metrics()
    assert any(name.startswith("rookery_run_starvation_ratio{") for name in told), "what an autoscaler looks at"


def test_a_deleted_actor_is_replaced_and_nothing_else_starts_again(cluster: Kubernetes, figures: Figures) -> None:
    (old,) = cluster.pods("actor")
    before = incarnations(cluster)
    begin = time.monotonic()
    cluster("delete", "pod", old)
    cluster.until(partial(cluster.ready, "actor", 1), PATIENCE, "another actor is ready")
    figures["from an actor's deletion to another's readiness, s"] = round(time.monotonic() - begin, 1)
    assert set(cluster.pods("actor")) != {old}
    goes_on(cluster, "with another actor")
    after = incarnations(cluster)
    assert {name: after[name] for name in before if "learner" in name} == {
        name: number for name, number in before.items() if "learner" in name
    }


def test_a_deleted_learner_resumes_from_the_checkpoint_on_the_volume(cluster: Kubernetes, figures: Figures) -> None:
    before, trained = incarnations(cluster), updates(cluster)
    begin = time.monotonic()
    cluster("delete", "pod", "learner-0")
    cluster.until(partial(cluster.ready, "learner", 2), PATIENCE, "learner-0 is ready again")
    figures["from a learner's deletion to its readiness, s"] = round(time.monotonic() - begin, 1)
    figures["updates go on after it, s"] = goes_on(cluster, "with the new learner")
    assert "event=resumed" in cluster("logs", "learner-0")
    assert "from=checkpoint" in cluster("logs", "learner-0")
    after = incarnations(cluster)
    again = [name for name in before if after[name] != before[name]]
    assert len(again) == 1, (before, after)
    assert "learner" in again[0]
    assert all(updates(cluster)[name] >= value for name, value in trained.items())


def test_actors_scale_from_one_to_four_and_back(cluster: Kubernetes, figures: Figures) -> None:
    learners = {name: number for name, number in incarnations(cluster).items() if "learner" in name}
    for count in (4, 1):
        begin = time.monotonic()
        cluster("scale", "deployment/actor", f"--replicas={count}")
        cluster.until(partial(cluster.ready, "actor", count), PATIENCE, f"{count} actors are ready")
        cluster.until(partial(told_of_actors, cluster, count), PATIENCE, f"{count} actors in the run")
        figures[f"scaled to {count} actors, s"] = round(time.monotonic() - begin, 1)
        goes_on(cluster, f"with {count} actors")
    after = incarnations(cluster)
    assert {name: after[name] for name in learners} == learners


def test_a_drain_empties_the_node_and_training_goes_on_from_checkpoints(cluster: Kubernetes, figures: Figures) -> None:
    trained, begin = updates(cluster), time.monotonic()
    cluster("drain", "one", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    figures["a drain, s"] = round(time.monotonic() - begin, 1)
    for component in ("coordinator", "learner", "actor"):
        assert all("nodeName" not in pod["spec"] for pod in cluster.pods(component).values()), "the node is empty"
    begin = time.monotonic()
    cluster("uncordon", "one")
    for component, count in (("coordinator", 1), ("learner", 2), ("actor", 1)):
        cluster.until(partial(cluster.ready, component, count), PATIENCE, f"{component} is back")
    goes_on(cluster, "after the drain")
    figures["from uncordon to updates of all policies, s"] = round(time.monotonic() - begin, 1)
    for number in range(2):
        assert "from=checkpoint" in cluster("logs", f"learner-{number}")
    assert all(updates(cluster)[name] >= value > 0 for name, value in trained.items())


def test_the_books_are_exact_after_all_this(cluster: Kubernetes, figures: Figures) -> None:
    cluster.until(lambda: cluster.file("summary.json"), SECONDS + PATIENCE, "the run has ended")
    told = json.loads(cluster.file("summary.json"))
    segments = told["segments"]
    figures |= {"agent steps": told["agent_steps"], "seconds": round(told["seconds"]), "segments": segments}
    figures |= {"updates": told["train_steps"], "returns": told["returns"], "restarts": told["restarts"]}
    assert told["complete"] is True
    assert runs.balanced(segments), segments
    assert segments["unexplained"] == segments["in_flight"] == segments["lost_in_learner"] == 0
    assert segments["dropped"]["undelivered"] == 0
    assert segments["dropped"]["actor_lost"] == 0, "everybody was told to end and did so in time"
    assert segments["trained"] > 0
    assert told["restarts"]["coordinator"] == 1
