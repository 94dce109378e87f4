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
from launch.kubernetes.pods import between_learners, evaluation
from launch.run_plan import ResourcePlan
from protocol.config.run import Run
from protocol.errors import ConfigurationError

__all__ = ["Placement", "render", "way_to", "write"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
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
    evaluated = run.evaluation is not None and not placement.finite
    further: dict[str, Any] = {"evaluator.yaml": evaluation()} if evaluated else {}
    further |= {"ranks.yaml": between_learners()} if ranked else {}
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": placement.namespace,
        "resources": [f"{k8s}/base", *further],
        "components": [f"{k8s}/components/{name}" for name in _in_order(placement.components)],
        "configMapGenerator": [
            {"name": "run", "behavior": "merge", "files": ["run.yaml"], "literals": [f"RUN={placement.folder}"]}
        ],
    }
    if not placement.finite:
        counts = {"learner": len(outline.learners), "actor": placement.pods if run.actors else 0}
        kustomization["replicas"] = [{"name": role, "count": count} for role, count in counts.items()]
    kustomization["images"] = [{"name": "rookery", **_image(placement.image)}]
    if "gpu" in placement.components:
        kustomization["images"].append({"name": "rookery-cuda", **_image(placement.cuda_image)})
    if changes := patches(run, outline, placement, bool(ranked)):
        kustomization["patches"] = changes
    files = {"kustomization.yaml": kustomization, "run.yaml": run.model_dump(mode="json"), **further}
    return {name: _OWN + yaml.safe_dump(content, sort_keys=False, width=120) for name, content in files.items()}


def write(files: dict[str, str], folder: Path) -> None:
    """Puts the overlay into `folder`; ConfigurationError if something else is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        path = folder / name
        if path.exists() and not path.read_text().startswith(_OWN):
            raise ConfigurationError("file_not_generated", file=path)
    for name, text in files.items():
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
    if placement.finite and "keda" in placement.components:
        raise ConfigurationError("keda_with_jobset")
    wanted = placement.pods * placement.actors_per_pod
    if run.actors and wanted > run.actors:
        raise ConfigurationError("too_many_actors", count=wanted, limit=run.actors, key="actors")
    outside = run.environment.id == "external"
    if placement.simulator and not outside:
        raise ConfigurationError("simulator_not_needed", environment=run.environment.id)
    if outside and not placement.simulator and not run.environment.settings.get("command"):
        raise ConfigurationError("simulator_missing", key="environment.settings.command")


def _in_order(components: tuple[str, ...]) -> list[str]:
    """With keys; jobset before those that change its jobs."""
    return [name for name in dict.fromkeys(("keys", "jobset", *components)) if name in ("keys", *components)]


def _image(image: str) -> dict[str, str]:
    name, at, digest = image.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    name, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        raise ConfigurationError("image_without_tag", value=image)
    return {"newName": name, "newTag": tag}
