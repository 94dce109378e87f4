"""Metrics as text, as Prometheus reads it, written by its own library.

In flow: counters and measurements of a worker. Out flow: the text (https://prometheus.io/docs/instrumenting/
exposition_formats/).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from protocol import RELEASE
from workers.runtime.http_server import Response
from workers.runtime.metric_names import METRICS, Identity, Metric, parse_counter_name


class _Given(Collector):
    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> Iterator[Family]:
        return iter(self._found)


def text(found: list[Family]) -> Response:
    """`found` and what is known of this process."""
    registry = CollectorRegistry()
    registry.register(_Given(found))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)


def render_worker_metrics(identity: Identity, counters: Mapping[str, float], measured: Mapping[str, float]) -> Response:
    """What a worker tells of itself."""
    return text([info(identity), *families({**counters, **measured})])


def info(identity: Identity) -> Family:
    """Who tells: join the other metrics with it where their own labels do not say."""
    told = {
        "run": identity.run,
        "role": identity.role,
        "worker": identity.worker,
        "incarnation": str(identity.incarnation),
        "release": RELEASE,
    }
    return InfoMetricFamily("rookery_worker", "who this worker is", told)


def families(counters: Mapping[str, float]) -> list[Family]:
    """The metrics of `counters`, in the order of the vocabulary."""
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for counter, value in counters.items():
        kind, labels = parse_counter_name(counter)
        found.setdefault(kind, []).append((labels, value * METRICS[kind].scale))
    return [family(metric, found[kind]) for kind, metric in METRICS.items() if kind in found]


def family(metric: Metric, values: Iterable[tuple[Any, float]]) -> Family:
    """One metric, of values by their labels."""
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = make(metric.name.removesuffix("_total"), metric.says, labels=metric.labels)
    for labels, value in values:
        made.add_metric(labels, value)
    return made
