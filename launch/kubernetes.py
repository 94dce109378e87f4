"""An overlay of k8s/base for any configuration. Pure but for `write`.

In flows: a run, what it comes to (`Outline`), and how it is wished to be placed. Out flow: the overlay's files, to be
applied by `kubectl apply -k`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launch.kubernetes_pods import between_learners, evaluation, further_actors, simulators
from launch.outline import Outline
from protocol import RELEASE
from protocol.config import Run
from protocol.errors import ConfigurationError

__all__ = ["Placement", "render", "way_to", "write"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MEBI, _GIBI = 2**20, 2**30
_MEMORY = {"learner": (_GIBI, 2 * _GIBI), "actor": (256 * _MEBI, _GIBI)}
"""Role -> shared memory and memory limit of its pods in k8s/base."""
_GPU_MEMORY = (4 * _GIBI, 16 * _GIBI)
"""Of learners, with the component gpu."""
_NOTICE = 25
"""Seconds that k8s/base gives an actor to end."""
_OWN = "# made by `rookery k8s render`; made anew, it is overwritten\n"
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


def render(run: Run, outline: Outline, placement: Placement, k8s: str) -> dict[str, str]:
    """File name -> text; `k8s` is the way from the overlay to the folder with base/ and components/. Raises
    ConfigurationError for what cannot be placed so."""
    _check(run, placement)
    ranked = next((name for name in outline.policies if run.ranks(name) > 1), "")
    if ranked and placement.actors_per_pod > 1:
        raise ConfigurationError(
            f"policy {ranked!r} has several ranks, which the relay of several actors in a pod does not tell apart; "
            "leave --actors-per-pod out, or set ranks: 1"
        )
    further: dict[str, Any] = {"evaluation.yaml": evaluation()} if run.evaluation is not None else {}
    further |= {"ranks.yaml": between_learners()} if ranked else {}
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": placement.namespace,
        "resources": [f"{k8s}/base", *further],
        "components": [f"{k8s}/components/{name}" for name in dict.fromkeys(("keys", *placement.components))],
        "configMapGenerator": [
            {"name": "run", "behavior": "merge", "files": ["run.yaml"], "literals": [f"RUN={placement.folder}"]}
        ],
        "replicas": [
            {"name": "learner", "count": outline.learners},
            {"name": "actor", "count": placement.pods if run.actors else 0},
        ],
    }
    kustomization["images"] = [{"name": "rookery", **_image(placement.image)}]
    if "gpu" in placement.components:
        kustomization["images"].append({"name": "rookery-cuda", **_image(placement.cuda_image)})
    patches = [*_sizes(run, outline, placement), *_company(placement)]
    if ranked:  # torch.distributed knows no keys: the policy in ranks.yaml keeps all others away
        patches.append(
            _patch("StatefulSet", "learner", [_add("/spec/template/spec/containers/0/args/-", "--insecure")])
        )
    if "keda" in placement.components:
        query = f'max(rookery_run_starvation_ratio{{namespace="{placement.namespace}"}})'
        most = run.actors // placement.actors_per_pod
        changes = [_replace("/spec/maxReplicaCount", most), _replace("/spec/triggers/0/metadata/query", query)]
        patches.append(_patch("ScaledObject", "actor", changes))
    if patches:
        kustomization["patches"] = patches
    files = {"kustomization.yaml": kustomization, "run.yaml": run.model_dump(mode="json"), **further}
    return {name: _OWN + yaml.safe_dump(content, sort_keys=False, width=120) for name, content in files.items()}


def write(files: dict[str, str], folder: Path) -> None:
    """Puts the overlay into `folder`; ConfigurationError if something else is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        path = folder / name
        if path.exists() and not path.read_text().startswith(_OWN):
            raise ConfigurationError(f"{path} was not made by `rookery k8s render`; give another --out")
    for name, text in files.items():
        (folder / name).write_text(text)


def way_to(k8s: Path, folder: Path) -> str:
    """The way from an overlay's folder to k8s/; ConfigurationError if that holds no base."""
    if not (k8s / "base" / "kustomization.yaml").is_file():
        raise ConfigurationError(f"{k8s} holds no base/; run this where k8s/ lies, or give its place with --k8s")
    return os.path.relpath(k8s.resolve(), folder.resolve())


def _check(run: Run, placement: Placement) -> None:
    for what, name in (("--name", placement.folder), ("--namespace", placement.namespace)):
        if not _LABEL.fullmatch(name):
            raise ConfigurationError(f"{what} {name!r} is no name for Kubernetes; use a-z, 0-9 and - between them")
    if run.transport == "memory":
        raise ConfigurationError(
            "transport memory cannot leave a pod, and learners have their own; set transport: auto"
        )
    if "jobset" in placement.components:
        raise ConfigurationError(
            "jobset holds its own numbers of pods; write an overlay by hand, as in k8s/overlays/cpu, and patch these"
        )
    wanted = placement.pods * placement.actors_per_pod
    if run.actors and wanted > run.actors:
        raise ConfigurationError(
            f"{wanted} actors have no more than {run.actors} places; raise actors or lower --actors"
        )
    outside = run.environment.id == "external"
    if placement.simulator and not outside:
        raise ConfigurationError(f"{run.environment.id} needs no simulator; leave --simulator out")
    if outside and not placement.simulator and not run.environment.settings.get("command"):
        raise ConfigurationError(
            "nobody would play this world; give --simulator IMAGE, or environment.settings.command"
        )


def _sizes(run: Run, outline: Outline, placement: Placement) -> list[Patch]:
    """More memory and more time, where the base's are too little."""
    gpu = "gpu" in placement.components
    learner = _room(outline.learner_memory + 64 * _MEBI, *(_GPU_MEMORY if gpu else _MEMORY["learner"]), volume=2)
    actor = _room(outline.actor_memory * placement.actors_per_pod, *_MEMORY["actor"], volume=1)
    drain = int(run.learner_timeout) + 5
    if drain > _NOTICE:
        actor.append(_replace("/spec/template/spec/terminationGracePeriodSeconds", drain))
    found = (("StatefulSet", "learner", learner), ("Deployment", "actor", actor))
    return [_patch(kind, role, changes) for kind, role, changes in found if changes]


def _room(used: int, shared: int, limit: int, volume: int) -> list[Patch]:
    """Changes that give a pod `used` bytes of shared memory and a quarter more, unless it has them. `volume`: which of
    the base's volumes /dev/shm is."""
    needed = used + used // 4
    if needed <= shared:
        return []
    memory = f"{-(-(limit + needed) // _MEBI)}Mi"
    return [
        _replace(f"/spec/template/spec/volumes/{volume}/emptyDir/sizeLimit", f"{-(-needed // _MEBI)}Mi"),
        *(
            _replace(f"/spec/template/spec/containers/0/resources/{kind}/memory", memory)
            for kind in ("requests", "limits")
        ),
    ]


def _company(placement: Placement) -> list[Patch]:
    """What else is in an actor's pod: further actors with a relay, simulators."""
    others = further_actors(placement.actors_per_pod)
    players = simulators(placement.simulator, placement.actors_per_pod)
    changes = [_add("/spec/template/spec/containers/-", container) for container in (*others, *players)]
    changes += [
        _add("/spec/template/spec/volumes/0/projected/sources/-", {"secret": {"name": f"keys-{role}"}})
        for role, found in (("relay", others), ("simulator", players))
        if found
    ]
    return [_patch("Deployment", "actor", changes)] if changes else []


def _image(image: str) -> dict[str, str]:
    name, at, digest = image.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    name, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        raise ConfigurationError(f"image {image!r} has no tag; write NAME:TAG or NAME@sha256:…")
    return {"newName": name, "newTag": tag}


def _patch(kind: str, name: str, changes: list[Patch]) -> Patch:
    return {"target": {"kind": kind, "name": name}, "patch": yaml.safe_dump(changes, sort_keys=False)}


def _replace(path: str, value: Any) -> Patch:
    return {"op": "replace", "path": path, "value": value}


def _add(path: str, value: Any) -> Patch:
    return {"op": "add", "path": path, "value": value}
