"""Where the pods of the manifests can stand, and that a node can be drained of them."""

from __future__ import annotations

import pytest

from tests.k8s.nodes import Node, Nodes
from tests.k8s.test_manifests import Built


def test_learners_stand_where_gpus_are_and_nobody_else_does(built: Built) -> None:
    """Nodes with GPUs are tainted, and each has one: what writes to the run's folder is on several nodes."""
    cluster = Nodes(built["gpu"], [Node("cpu"), Node("gpu-a", gpus=1), Node("gpu-b", gpus=1)])
    assert cluster.pending == []
    where = {pod.name: pod.node.name for pod in cluster.pods if pod.node is not None}
    assert {where["learner-0"], where["learner-1"]} == {"gpu-a", "gpu-b"}
    assert {node for pod, node in where.items() if not pod.startswith("learner")} == {"cpu"}


def test_coordinator_keeps_off_gpus_that_are_not_tainted(built: Built) -> None:
    cluster = Nodes(built["gpu"], [Node("gpu", gpus=2, tainted=False), Node("cpu")])
    (coordinator,) = cluster.of("coordinator")
    assert coordinator.node is not None
    assert coordinator.node.name == "cpu"


def test_with_one_volume_for_one_node_the_coordinator_follows_the_learners_to_their_gpus(built: Built) -> None:
    cluster = Nodes(built["workstation"], [Node("cpu"), Node("gpu", gpus=2)])
    assert cluster.pending == []
    assert {pod.node.name for pod in cluster.of("coordinator") + cluster.of("learner") if pod.node} == {"gpu"}


@pytest.mark.parametrize("overlay", ["local", "cpu", "gpu", "workstation", "wide"])
def test_every_node_can_be_drained_and_all_pods_are_elsewhere_then(built: Built, overlay: str) -> None:
    """Where there is room, of course. Where each learner can go by itself they go one after another."""
    gpus = [Node(f"gpu-{number}", gpus=2) for number in range(2)] if overlay in ("gpu", "workstation") else []
    nodes = [Node("a"), Node("b"), Node("spot", spot=True), *gpus]
    for drained in nodes:
        cluster = Nodes(built[overlay], nodes)
        assert cluster.drain(drained), f"{drained.name}: {[pod.name for pod in cluster.pods if pod.node is drained]}"
        assert cluster.pending == [], drained.name
        assert cluster.most_away["learner"] <= (1 if overlay in ("gpu", "wide") else 2)
        drained.cordoned = False


def test_a_budget_that_nobody_can_meet_and_a_place_that_is_not_there_are_seen(built: Built) -> None:
    """Of the model itself."""
    documents = [*built["cpu"], {"kind": "PodDisruptionBudget", "metadata": {"name": "never"},
                                 "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {}}}}]  # fmt: skip
    node = Node("a")
    assert not Nodes(documents, [node, Node("b")]).drain(node)
    assert Nodes(built["gpu"], [Node("a"), Node("gpu", gpus=1)]).pending == ["learner-1"]
