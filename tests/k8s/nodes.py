"""Where Kubernetes would put the pods of manifests, and what a drain does to them: the rules of its scheduler and of
evictions that our manifests use, and no other; AssertionError for one that is not known here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.k8s.manifests import Document, pods

__all__ = ["Node", "Nodes"]

GPU = "nvidia.com/gpu"


@dataclass
class Node:
    """A machine. One with GPUs is labelled, as NVIDIA's operator does, and mostly tainted, as clouds do."""

    name: str
    gpus: int = 0
    tainted: bool = True
    spot: bool = False
    cordoned: bool = False

    @property
    def labels(self) -> dict[str, str]:
        marked = {f"{GPU}.present": "true"} if self.gpus else {}
        return marked | ({"cloud.google.com/gke-spot": "true"} if self.spot else {})

    @property
    def taints(self) -> list[str]:
        return ([GPU] if self.gpus and self.tainted else []) + (["cloud.google.com/gke-spot"] if self.spot else [])


@dataclass
class Pod:
    """One of a workload; `node` is None while it is pending."""

    name: str
    labels: dict[str, str]
    spec: Document
    node: Node | None = None


@dataclass
class Nodes:
    """A cluster's machines, and all pods of `documents` on them, as far as there is room."""

    documents: list[Document]
    nodes: list[Node]
    pods: list[Pod] = field(default_factory=list)
    most_away: dict[str, int] = field(default_factory=dict)
    """Component -> the most pods of it that were pending at a time during drains."""

    def __post_init__(self) -> None:
        counts = {document["metadata"]["name"]: document["spec"].get("replicas", 1) for document in self.documents
                  if document["kind"] in ("Deployment", "StatefulSet")}  # fmt: skip
        for workload, template in pods(self.documents).items():
            for number in range(counts[workload]):
                self.pods.append(Pod(f"{workload}-{number}", template["metadata"]["labels"], template["spec"]))
        self.schedule()

    def of(self, component: str) -> list[Pod]:
        """Pods of a role."""
        return [pod for pod in self.pods if pod.labels["app.kubernetes.io/component"] == component]

    @property
    def pending(self) -> list[str]:
        """Names of pods without a node."""
        return [pod.name for pod in self.pods if pod.node is None]

    def schedule(self) -> None:
        """Places what is pending, again until nothing more fits: pods may wait for each other."""
        placed = True
        while placed:
            placed = False
            for pod in self.pods:
                if pod.node is None and (fitting := [node for node in self.nodes if self._fits(pod, node)]):
                    pod.node = max(fitting, key=lambda node: _preference(pod, node))
                    placed = True

    def drain(self, node: Node) -> bool:
        """`kubectl drain`: evicts what budgets allow, and looks again when what was evicted is elsewhere. Whether that
        empties the node."""
        node.cordoned = True
        evicted = True
        while evicted:
            evicted = False
            for pod in [pod for pod in self.pods if pod.node is node]:
                if all(self._allowed(budget) for budget in self._budgets(pod)):
                    pod.node, evicted = None, True
            for component in {pod.labels["app.kubernetes.io/component"] for pod in self.pods}:
                away = sum(pod.node is None for pod in self.of(component))
                self.most_away[component] = max(away, self.most_away.get(component, 0))
            self.schedule()
        return all(pod.node is not node for pod in self.pods)

    def _fits(self, pod: Pod, node: Node) -> bool:
        assert not pod.spec.get("nodeSelector")
        affinity = pod.spec.get("affinity", {})
        assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity.get("nodeAffinity", {})
        tolerated = {toleration["key"] for toleration in pod.spec.get("tolerations", [])}
        used = sum(_gpus(other) for other in self.pods if other.node is node)
        return (
            not node.cordoned
            and set(node.taints) <= tolerated
            and used + _gpus(pod) <= node.gpus
            and all(self._beside(pod, node, term) for term in _required(affinity))
            and all(self._attachable(claim, node) for claim in _claims(pod))
        )

    def _beside(self, pod: Pod, node: Node, term: Document) -> bool:
        """Where nobody is whom it wants to be beside, the first of them may go anywhere."""
        assert term["topologyKey"] == "kubernetes.io/hostname"
        wanted = term["labelSelector"]["matchLabels"].items()
        there = [other.node for other in self.pods if other.node is not None and wanted <= other.labels.items()]
        return node in there or (not there and wanted <= pod.labels.items())

    def _attachable(self, claim: str, node: Node) -> bool:
        modes = [document["spec"]["accessModes"] for document in self.documents
                 if document["kind"] == "PersistentVolumeClaim" and document["metadata"]["name"] == claim]  # fmt: skip
        if modes == [["ReadWriteMany"]]:
            return True
        assert modes == [["ReadWriteOnce"]], modes
        return all(pod.node in (node, None) for pod in self.pods if claim in _claims(pod))

    def _budgets(self, pod: Pod) -> list[Document]:
        budgets = [document["spec"] for document in self.documents if document["kind"] == "PodDisruptionBudget"]
        return [one for one in budgets if one["selector"]["matchLabels"].items() <= pod.labels.items()]

    def _allowed(self, budget: Document) -> bool:
        selected = [pod for pod in self.pods if budget["selector"]["matchLabels"].items() <= pod.labels.items()]
        return sum(pod.node is None for pod in selected) < int(budget["maxUnavailable"])


def _gpus(pod: Pod) -> int:
    return sum(int(one["resources"]["limits"].get(GPU, 0)) for one in pod.spec["containers"])


def _claims(pod: Pod) -> Iterator[str]:
    for volume in pod.spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]


def _required(affinity: Document) -> list[Document]:
    return list(affinity.get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", []))


def _preference(pod: Pod, node: Node) -> int:
    affinity = pod.spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    met = [
        term["weight"] for term in terms if all(_matches(one, node) for one in term["preference"]["matchExpressions"])
    ]
    return sum(met)


def _matches(expression: Document, node: Node) -> bool:
    value = node.labels.get(expression["key"])
    assert expression["operator"] in ("In", "DoesNotExist")
    return value is None if expression["operator"] == "DoesNotExist" else value in expression["values"]
