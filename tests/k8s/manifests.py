"""The manifests as Kubernetes gets them: overlays built from a copy of k8s/ with keys of its own, and what is read from
them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import kubernetes_validate.utils
import yaml

from protocol.transport.curve import new_keys
from tests.tools import ROOT, require, skip_or_fail

__all__ = ["CUSTOM", "Built", "build", "jobs", "named", "pods", "unrestricted", "validate", "with_keys"]

Document = dict[str, Any]
Built = dict[str, list[Document]]
"""Name of an overlay -> its documents."""
CUSTOM = {"JobSet", "PodMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds of operators, whose schemas Kubernetes does not have."""
_WORKLOADS = ("Deployment", "StatefulSet", "Job")
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def with_keys(folder: Path) -> Path:
    """A copy of k8s/ in `folder`, as it is after `rookery keys new k8s/components/keys`."""
    shutil.copytree(ROOT / "k8s", folder, ignore=shutil.ignore_patterns("*.secret", "*.public"))
    new_keys(folder / "components" / "keys")
    return folder


def build(overlay: Path) -> list[Document]:
    """The documents that `kubectl apply -k` would send."""
    made = subprocess.run([_kubectl(), "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return [document for document in yaml.load_all(made.stdout, yaml.CSafeLoader) if document]


@cache
def _kubectl() -> str:
    """The path of one that can build ours."""
    kubectl = require("kubectl")
    told = subprocess.run([kubectl, "version", "--client", "--output=json"], capture_output=True, text=True, check=True)
    if int(re.sub(r"\D", "", json.loads(told.stdout)["clientVersion"]["minor"])) < 27:
        skip_or_fail("kubectl is older than 1.27")
    return kubectl


kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)  # read for every document


def validate(document: Document, version: str) -> None:
    """Strict: an unknown field is an error, as is a kind that this Kubernetes does not have."""
    kubernetes_validate.validate(document, version, strict=True)


def named(documents: list[Document], kind: str, name: str) -> Document:
    """The one document of that kind and name; a generated one's name has a hash behind it."""
    found = [
        document
        for document in documents
        if document["kind"] == kind
        and (document["metadata"]["name"] == name or document["metadata"]["name"].rpartition("-")[0] == name)
    ]
    assert len(found) == 1, f"{kind} {name}: {[document['metadata']['name'] for document in found]}"
    return found[0]


def jobs(document: Document) -> Iterator[Document]:
    """A JobSet's jobs as Kubernetes will see them."""
    for replicated in document["spec"]["replicatedJobs"]:
        yield {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": replicated["name"]},
            **replicated["template"],
        }


def pods(documents: list[Document]) -> dict[str, Document]:
    """Name of a workload -> its pods' template."""
    found: dict[str, Document] = {}
    for document in documents:
        if document["kind"] == "JobSet":
            found.update({job["metadata"]["name"]: job["spec"]["template"] for job in jobs(document)})
        elif document["kind"] in _WORKLOADS:
            found[document["metadata"]["name"]] = document["spec"]["template"]
    return found


def unrestricted(pod: Document) -> Iterator[str]:
    """What the Pod Security Standard `restricted` forbids in a pod
    (https://kubernetes.io/docs/concepts/security/pod-security-standards/)."""
    common = pod.get("securityContext", {})
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key))
    for volume in pod.get("volumes", []):
        if not set(volume) - {"name"} <= _VOLUMES:
            yield f"volume {volume['name']}"
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        both = {**common, **own}
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield f"{container['name']}: runs as root"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{container['name']}: may gain privileges"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield f"{container['name']}: keeps capabilities"
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{container['name']}: no seccomp profile"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield f"{container['name']}: a port of the host"
