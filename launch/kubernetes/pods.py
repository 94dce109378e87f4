"""Containers that k8s/base does not have: what stands beside an actor in its pod. Pure.

In flow: what is wanted. Out flow: parts of manifests, with the manners of the base: restricted, read-only, sized.
"""

from __future__ import annotations

from typing import Any

_FIRST, _BLOCK, _RELAY = 5620, 10, 5700


def further_actors(actors: int) -> list[dict[str, Any]]:
    """What is in a pod of that many actors beside the first: the others, and their relay."""
    made = [_worker("actor", f"actor-{number}", _FIRST + number * _BLOCK) for number in range(1, actors)]
    return [*made, _worker("relay", "relay", _RELAY)] if made else []


def simulators(image: str, actors: int) -> list[dict[str, Any]]:
    """A program that plays the world beside each actor of a pod; none without an image."""
    return [_simulator(image, number) for number in range(actors if image else 0)]


def _worker(role: str, name: str, port: int) -> dict[str, Any]:
    """A worker's container."""
    probe = {"httpGet": {"path": "/healthz", "port": port + 9}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        "name": name,
        "image": "rookery",
        "imagePullPolicy": "IfNotPresent",
        "args": [role, "--bind", f"$(BIND):{port}", "--advertise", "$(IP)", "--patience", "86400"],
        "envFrom": [{"configMapRef": {"name": "worker"}}],
        "env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "OMP_NUM_THREADS", "value": "1"},
        ],
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 300},
        "livenessProbe": {**probe, "failureThreshold": 6},
        **_manners("500m", "1Gi"),
    }


def _simulator(image: str, number: int) -> dict[str, Any]:
    """A program that plays the world, beside the actor that serves it."""
    return {
        "name": f"simulator-{number}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "ROOKERY_SIMULATORS", "value": f"tcp://127.0.0.1:{_FIRST + number * _BLOCK}"},
            {"name": "ROOKERY_KEYS", "value": "/keys"},
        ],
        **_manners("500m", "1Gi"),
    }


def _manners(cpu: str, memory: str) -> dict[str, Any]:
    """What every container of k8s/base has."""
    return {
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "keys", "mountPath": "/keys", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
