"""How a run is to be placed on Kubernetes, and what that changes in the manifests of k8s/base. Pure.

In flows: a run, what it comes to (`ResourcePlan`), a `Placement`. Out flow: kustomize's patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from launch.kubernetes.pods import further_actors, further_simulators
from launch.run_plan import ResourcePlan
from protocol import RELEASE
from protocol.config.run import Run

_MEBI, _GIBI = 2**20, 2**30
_MEMORY = {"learner": (_GIBI, 2 * _GIBI), "actor": (256 * _MEBI, _GIBI)}
"""Role -> shared memory and memory limit of its pods in k8s/base."""
_GPU_MEMORY = (4 * _GIBI, 16 * _GIBI)
"""Of learners, with the component gpu."""
_NOTICE = 25
"""Seconds that k8s/base gives an actor to end."""
Patch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a run is to be placed. `folder` is its folder's name on the volume, `pods` those of actors at first; several
    actors in a pod share its memory with a relay, and `simulator` is the image of a program beside each actor."""

    folder: str
    namespace: str = "rookery"
    image: str = f"rookery:{RELEASE}-cpu"
    cuda_image: str = f"rookery:{RELEASE}-cuda"
    pods: int = 4
    actors_per_pod: int = 1
    simulator: str = ""
    components: tuple[str, ...] = ()


def patches(run: Run, outline: ResourcePlan, placement: Placement) -> list[Patch]:
    """All that this run needs."""
    given = _GPU_MEMORY if "gpu" in placement.components else _MEMORY["learner"]
    learner = _room(outline.learner_memory + 64 * _MEBI, *given)
    made = [_of("StatefulSet", "learner", learner), _of("Deployment", "actor", _actor(run, outline, placement))]
    if "keda" in placement.components:
        query = f'max(rookery_run_starvation_ratio{{namespace="{placement.namespace}"}})'
        most = run.actors // placement.actors_per_pod
        triggers = {"/spec/maxReplicaCount": most, "/spec/triggers/0/metadata/query": query}
        changes = [{"op": "replace", "path": path, "value": value} for path, value in triggers.items()]
        made.append({"target": {"kind": "ScaledObject", "name": "actor"}, "patch": _text(changes)})
    return [patch for patch in made if patch]


def _actor(run: Run, outline: ResourcePlan, placement: Placement) -> dict[str, Any]:
    """What an actor's pod has beyond the base's: memory, time, further actors and simulators."""
    spec = _room(outline.actor_memory * placement.actors_per_pod, *_MEMORY["actor"], placement.actors_per_pod)
    drain = int(run.learner_timeout) + 5
    if drain > _NOTICE:
        spec["terminationGracePeriodSeconds"] = drain
    others = further_actors(placement.actors_per_pod)
    others += further_simulators(placement.actors_per_pod) if placement.simulator else []
    if others:
        spec.setdefault("containers", [{"name": "worker"}]).extend(others)
    return spec


def _room(used: int, shared: int, limit: int, alike: int = 1) -> dict[str, Any]:
    """What gives a pod `used` bytes of shared memory and a quarter more, of which each of so many containers that are
    `alike` is charged with its own; nothing where it has them."""
    needed = used + used // 4
    if needed <= shared:
        return {}
    memory = {"memory": f"{-(-(limit + needed // alike) // _MEBI)}Mi"}
    return {
        "containers": [{"name": "worker", "resources": {"requests": memory, "limits": memory}}],
        "volumes": [{"name": "shm", "emptyDir": {"sizeLimit": f"{-(-needed // _MEBI)}Mi"}}],
    }


def _of(kind: str, name: str, spec: dict[str, Any]) -> Patch:
    """Of the pods of a workload; {} where `spec` changes nothing."""
    whole = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
    return {"patch": _text(whole)} if spec else {}


def _text(patch: Any) -> str:
    return yaml.safe_dump(patch, sort_keys=False)
