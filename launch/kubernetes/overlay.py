"""An overlay of k8s/base for any configuration. Pure but for `write`.

In flows: a run, what it comes to (`ResourcePlan`), and how it is wished to be placed. Out flow: the overlay's files, to
be applied by `kubectl apply -k`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from launch.kubernetes.patches import Placement, patches
from launch.kubernetes.pods import copies
from launch.run_plan import ResourcePlan
from protocol.config.run import Run
from protocol.errors import ConfigurationError

__all__ = ["Placement", "render", "way_to", "write"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LAST = ("shared-volume", "jobset", "kueue")
"""Components that change what others have made, in this order."""
_OWN = "# made by `rookery k8s render`; made anew, it is overwritten\n"


def render(run: Run, outline: ResourcePlan, placement: Placement, k8s: str) -> dict[str, str]:
    """File name -> text; `k8s` is the way from the overlay to the folder with base/ and components/. Raises
    ConfigurationError for what cannot be placed so."""
    _check(run, placement)
    if outline.run_hooks:
        raise ConfigurationError("hook_of_run_in_pods", key="hooks")
    ranked = next((name for name in outline.policies if run.ranks(name) > 1), "")
    if ranked and placement.actors_per_pod > 1:
        raise ConfigurationError("ranks_behind_relay", policy=ranked)
    if ranked and "insecure-ranks" not in placement.components:
        raise ConfigurationError("ranks_without_keys", policy=ranked, key="--with insecure-ranks")
    counts = {"learner": len(outline.learners), "evaluator": int(run.evaluation is not None)}
    if "keda" not in placement.components:  # which alone says how many there are
        counts["actor"] = placement.pods if run.actors else 0
    pods: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "replicas": [{"name": role, "count": count} for role, count in counts.items()],
    }
    if changes := patches(run, outline, placement):
        pods["patches"] = changes
    if copied := copies(placement.actors_per_pod, bool(placement.simulator)):
        pods["replacements"] = copied
    last = [name for name in _LAST if name in placement.components]
    needed = {"keys": True, "relay": placement.actors_per_pod > 1, "simulator": bool(placement.simulator)}
    listed = [*(name for name, is_needed in needed.items() if is_needed), *placement.components]
    first = [name for name in dict.fromkeys(listed) if name not in last]
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": placement.namespace,
        "resources": [f"{k8s}/base"],
        "components": [*_found(k8s, first), "pods", *_found(k8s, last)],
        "configMapGenerator": [
            {"name": "run", "behavior": "merge", "files": ["run.yaml"], "literals": [f"RUN={placement.folder}"]}
        ],
        "images": [{"name": "rookery", **_image(placement.image)}],
    }
    if "gpu" in placement.components:
        kustomization["images"].append({"name": "rookery-cuda", **_image(placement.cuda_image)})
    if placement.simulator:
        kustomization["images"].append({"name": "simulator", **_image(placement.simulator)})
    files = {
        "kustomization.yaml": kustomization,
        "pods/kustomization.yaml": pods,
        "run.yaml": run.model_dump(mode="json"),
    }
    return {name: _OWN + yaml.safe_dump(content, sort_keys=False, width=120) for name, content in files.items()}


def write(files: dict[str, str], folder: Path) -> None:
    """Puts the overlay into `folder`; ConfigurationError if something else is there."""
    for name in files:
        path = folder / name
        if path.exists() and not path.read_text().startswith(_OWN):
            raise ConfigurationError("file_not_generated", file=path)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def way_to(k8s: Path, folder: Path) -> str:
    """The way from an overlay's folder to k8s/; ConfigurationError if that holds no base."""
    if not (k8s / "base" / "kustomization.yaml").is_file():
        raise ConfigurationError("kubernetes_base_missing", file=k8s)
    return os.path.relpath(k8s.resolve(), folder.resolve())


def _check(run: Run, placement: Placement) -> None:
    for what, name in (("--name", placement.folder), ("--namespace", placement.namespace)):
        if not _LABEL.fullmatch(name):
            raise ConfigurationError("kubernetes_name_invalid", option=what, value=name)
    if run.transport == "memory":
        raise ConfigurationError("memory_transport_in_pod", key="transport")
    if "jobset" in placement.components and "keda" in placement.components:
        raise ConfigurationError("keda_with_jobset")
    wanted = placement.pods * placement.actors_per_pod
    if run.actors and wanted > run.actors:
        raise ConfigurationError("too_many_actors", count=wanted, limit=run.actors, key="actors")
    outside = run.environment.id == "external"
    simulated = "simulator" in placement.components
    if (placement.simulator or simulated) and not outside:
        raise ConfigurationError("simulator_not_needed", environment=run.environment.id)
    if outside and not placement.simulator and (simulated or not run.environment.settings.get("command")):
        raise ConfigurationError("simulator_missing", key="environment.settings.command")


def _found(k8s: str, components: list[str]) -> list[str]:
    return [f"{k8s}/components/{name}" for name in components]


def _image(image: str) -> dict[str, str]:
    name, at, digest = image.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    name, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        raise ConfigurationError("image_without_tag", value=image)
    return {"newName": name, "newTag": tag}
