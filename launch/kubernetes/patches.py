"""How a run is to be placed on Kubernetes, and what that changes in the manifests of k8s/base. Pure.

In flows: a run, what it comes to (`ResourcePlan`), a `Placement`. Out flow: kustomize's patches, for the Deployments
and the StatefulSet of the base or for the jobs of the component jobset, which have the same pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from launch.kubernetes.pods import evaluation, further_actors, simulators
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
_KINDS = {"learner": "StatefulSet", "actor": "Deployment"}
_JOBS = {"learner": 1, "actor": 2}
"""Role -> the place of its job in the component jobset."""
Patch = dict[str, Any]
Changes = dict[str, list[Patch]]
"""Role -> changes to its pods, each at its path in their specification."""


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

    @property
    def finite(self) -> bool:
        """Whether it ends, as one JobSet."""
        return "jobset" in self.components


def patches(run: Run, outline: ResourcePlan, placement: Placement, ranked: bool) -> list[Patch]:
    """All that this run needs; `ranked`: whether a policy has several ranks."""
    changes: Changes = {"learner": _of_learners(outline, placement, ranked), "actor": _of_actors(outline, placement)}
    drain = int(run.learner_timeout) + 5
    if drain > _NOTICE:
        changes["actor"].append(_replace("/terminationGracePeriodSeconds", drain))
    made = [_to_pods(role, some, placement.finite) for role, some in changes.items() if some]
    if placement.finite:
        made.append(_patch("JobSet", "run", _jobs(run, outline, placement)))
    if "keda" in placement.components:
        query = f'max(rookery_run_starvation_ratio{{namespace="{placement.namespace}"}})'
        most = run.actors // placement.actors_per_pod
        scaled = [_replace("/spec/maxReplicaCount", most), _replace("/spec/triggers/0/metadata/query", query)]
        made.append(_patch("ScaledObject", "actor", scaled))
    return made


def _of_learners(outline: ResourcePlan, placement: Placement, ranked: bool) -> list[Patch]:
    """More memory, where the base's is too little, and a word on the network of ranks."""
    given = _GPU_MEMORY if "gpu" in placement.components else _MEMORY["learner"]
    changes = _room(outline.learner_memory + 64 * _MEBI, *given, volume=2)
    if ranked:  # torch.distributed knows no keys: the policy in ranks.yaml keeps all others away
        changes.append(_add("/containers/0/args/-", "--insecure"))
    return changes


def _of_actors(outline: ResourcePlan, placement: Placement) -> list[Patch]:
    """More memory, and what else is in an actor's pod: further actors with a relay, simulators."""
    changes = _room(outline.actor_memory * placement.actors_per_pod, *_MEMORY["actor"], volume=1)
    others = further_actors(placement.actors_per_pod)
    players = simulators(placement.simulator, placement.actors_per_pod)
    changes += [_add("/containers/-", container) for container in (*others, *players)]
    changes += [
        _add("/volumes/0/projected/sources/-", {"secret": {"name": f"keys-{role}"}})
        for role, found in (("relay", others), ("simulator", players))
        if found
    ]
    return changes


def _room(used: int, shared: int, limit: int, volume: int) -> list[Patch]:
    """Changes that give a pod `used` bytes of shared memory and a quarter more, unless it has them. `volume`: which of
    the base's volumes /dev/shm is."""
    needed = used + used // 4
    if needed <= shared:
        return []
    memory = f"{-(-(limit + needed) // _MEBI)}Mi"
    return [
        _replace(f"/volumes/{volume}/emptyDir/sizeLimit", f"{-(-needed // _MEBI)}Mi"),
        *(_replace(f"/containers/0/resources/{kind}/memory", memory) for kind in ("requests", "limits")),
    ]


def _jobs(run: Run, outline: ResourcePlan, placement: Placement) -> list[Patch]:
    """A JobSet's numbers of pods, which `replicas` of a kustomization does not reach; and the evaluation as a job of
    it, as what is no job of it would not end with the coordinator."""
    counts = {"learner": len(outline.learners), "actor": placement.pods if run.actors else 0}
    changes = [
        _replace(f"/spec/replicatedJobs/{_JOBS[role]}/template/spec/{key}", count)
        for role, count in counts.items()
        for key in ("parallelism", "completions")
    ]
    if run.evaluation is not None:
        template = evaluation()["spec"]["template"]
        once = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimit": 20}
        job = {**once, "template": {**template, "spec": {"restartPolicy": "OnFailure", **template["spec"]}}}
        added = {"name": "evaluator", "replicas": 1, "template": {"spec": job}}
        changes.append(_add("/spec/replicatedJobs/-", added))
    return changes


def _to_pods(role: str, changes: list[Patch], finite: bool) -> Patch:
    above = f"/spec/replicatedJobs/{_JOBS[role]}/template" if finite else ""
    moved = [{**change, "path": f"{above}/spec/template/spec{change['path']}"} for change in changes]
    return _patch("JobSet", "run", moved) if finite else _patch(_KINDS[role], role, moved)


def _patch(kind: str, name: str, changes: list[Patch]) -> Patch:
    return {"target": {"kind": kind, "name": name}, "patch": yaml.safe_dump(changes, sort_keys=False)}


def _replace(path: str, value: Any) -> Patch:
    return {"op": "replace", "path": path, "value": value}


def _add(path: str, value: Any) -> Patch:
    return {"op": "add", "path": path, "value": value}
