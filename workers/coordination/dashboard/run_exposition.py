"""The metrics of a whole run, as its coordinator knows them: what dashboards show and what scales actors.

In flow: the live view of the books. Out flow: Prometheus' text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from prometheus_client.metrics_core import Metric as Family

from workers.runtime.http_server import Response
from workers.runtime.metric_names import FLOW, RUN, Identity, Metric
from workers.runtime.prometheus import families, family, info, text


def render_run_metrics(
    identity: Identity, view: Mapping[str, Any], silent: float, refusals: Mapping[str, float]
) -> Response:
    """What the coordinator tells; {} before the first look."""
    found = [info(identity), family(Metric("rookery_loop_silent_seconds", "gauge", "see above", ()), [((), silent)])]
    found += families(refusals)
    if view:
        found += _run(view) + _flow(view)
    return text(found)


def _run(view: Mapping[str, Any]) -> list[Family]:
    played = {
        key: {(name,): policy[key] for name, policy in view["policies"].items() if policy[key] is not None}
        for key in ("return", "episode_length", "lag")
    }
    learned = {**{n: p for n, p in view["policies"].items() if p["version"] is not None}, **view["auxiliaries"]}
    states = Counter((worker["role"], worker["state"]) for worker in view["workers"])
    values: dict[str, Mapping[Any, float]] = {
        "steps": {(): view["steps"]},
        "made": {(): view["made"]},
        "env_steps": {(): view["env_steps"]},
        "agent_steps": {(): view["agent_steps"]},
        "seconds": {(): view["seconds"]},
        **played,
        "version": {(name,): one["version"] for name, one in learned.items()},
        "train_steps": {(name,): one["train_steps"] for name, one in learned.items()},
        "workers": states,
        "restarts": {(name,): count for name, count in view["restarts"].items()},
        "waits": {tuple(name.partition(".")[::2]): value for name, value in view["waits"].items()},
        "findings": Counter((one["policy"], one["level"]) for one in view["health"]),
        "verdict": {(view["verdict"],): 1.0},
        "training": {(): float(view["stage"] == "running" and not view["paused"])},
        "disk_free": {(): view["disk_free"]},
    }
    return [family(metric, values[key].items()) for key, metric in RUN.items()]


def _flow(view: Mapping[str, Any]) -> list[Family]:
    return [
        family(metric, [((policy,), flow[key]) for policy, flow in view["flow"].items()])
        for key, metric in FLOW.items()
    ]
