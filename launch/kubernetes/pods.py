"""Several actors in a pod: containers as like the first one, and the first simulator, as kustomize can copy them. Pure.

In flow: how many are wanted. Out flow: what differs from the first, and kustomize's replacements for all else.
"""

from __future__ import annotations

from typing import Any

_FIRST, _BLOCK = 5620, 10
_ALIKE = ("image", "imagePullPolicy", "resources", "securityContext", "volumeMounts")
"""What containers of a kind have in common; workers have the sources of their environment as well."""
_WORKERS = (*_ALIKE, "envFrom", "env")


def further_actors(actors: int) -> list[dict[str, Any]]:
    """The actors of a pod behind the first."""
    return [_actor(number, _FIRST + number * _BLOCK) for number in range(1, actors)]


def further_simulators(actors: int) -> list[dict[str, Any]]:
    """Those that play with them, each at its actor's port."""
    return [
        {
            "name": f"simulator-{number}",
            "env": [
                {"name": "ROOKERY_SIMULATORS", "value": f"tcp://127.0.0.1:{_FIRST + number * _BLOCK}"},
                {"name": "ROOKERY_KEYS", "value": "/keys"},
            ],
        }
        for number in range(1, actors)
    ]


def copies(actors: int, simulated: bool) -> list[dict[str, Any]]:
    """Replacements by which these get all else."""
    made = [("worker", one["name"], field) for one in further_actors(actors) for field in _WORKERS]
    if simulated:
        made += [("simulator", one["name"], field) for one in further_simulators(actors) for field in _ALIKE]
    place, pod = "spec.template.spec.containers", {"kind": "Deployment", "name": "actor"}
    return [
        {
            "source": {**pod, "fieldPath": f"{place}.[name={first}].{field}"},
            "targets": [
                {"select": {**pod}, "fieldPaths": [f"{place}.[name={name}].{field}"], "options": {"create": True}}
            ],
        }
        for first, name, field in made
    ]


def _actor(number: int, port: int) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": f"http-{number}"}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {
        "name": f"actor-{number}",
        "args": ["actor", "--bind", f"$(BIND):{port}", "--advertise", "$(IP)", "--patience", "86400"],
        "ports": [{"name": f"http-{number}", "containerPort": port + 9}],
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 300},
        "livenessProbe": {**probe, "failureThreshold": 6},
    }
