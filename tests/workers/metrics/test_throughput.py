"""Rates, fill and the verdict, from counters."""

from __future__ import annotations

import pytest

from workers.metrics.segment_accounting import summed
from workers.metrics.throughput import Throughput, bottleneck


def test_rates_are_means_of_the_last_seconds() -> None:
    flow = Throughput(["p"], {"p": 8})
    for now in range(31):
        made = 5 * now if now < 20 else 100 + 50 * (now - 20)
        actors = {("actor-0", 1): {"produced.p": made, "flight.p": 4, "waits.credit.p": 0.25 * now}}
        learners = {("learner-p", 1): {"received.p": made, "version.p": now, "waits.data.p": 0.5 * now}}
        found = flow.update(
            float(now), summed((*actors.values(), *learners.values())), actors, learners, {("actor-0", 1)}, {"p": 3}
        )["p"]
    assert found["segments_produced_per_second"] == pytest.approx(50)
    assert found["versions_per_second"] == pytest.approx(1)
    assert found["starvation"] == pytest.approx(0.5)
    assert found["blocked"] == pytest.approx(0.25)
    assert (found["queue_fill"], found["in_flight"], found["adoption_lag"]) == (0.5, 4, 3)


def test_policies_of_one_process_starve_for_as_long_as_it_waits() -> None:
    """However many share it; or an autoscaler would never start the first actor of a run of many policies."""
    names = [f"p{i}" for i in range(30)]
    flow = Throughput(names, {})
    for now in (0.0, 5.0):
        page = {f"waits.data.{name}": 0.9 * now / len(names) for name in names}
        found = flow.update(now, page, {}, {("learner-0", 1): page}, set(), {})
    assert [found[name]["starvation"] for name in names] == pytest.approx([0.9] * len(names))


def test_what_a_dead_actor_had_on_its_way_fills_no_queue() -> None:
    page = {"flight.p": 8}
    found = Throughput(["p"], {"p": 8}).update(
        0.0, {}, {("actor-0", 1): page, ("actor-0", 2): page}, {}, {("actor-0", 2)}, {}
    )
    assert found["p"]["queue_fill"] == 1.0


@pytest.mark.parametrize(
    ("blocked", "starved", "apart", "late", "processors", "crowded", "verdict"),
    [
        (0.1, 0.1, True, 0.0, 0.5, False, "balanced"),
        (0.5, 0.1, False, 9.0, 0.5, False, "learner-bound"),
        (0.1, 0.5, True, 9.0, 0.5, False, "actor-bound"),
        (0.5, 0.4, False, 0.0, 0.5, False, "learner-bound"),
        (0.5, 0.4, True, 0.0, 0.5, False, "network-bound"),
        (0.1, 0.5, False, 0.0, 0.95, False, "processor-bound"),
        (0.5, 0.1, False, 0.0, 0.95, False, "learner-bound"),
        (0.5, 0.1, False, 0.0, 0.95, True, "processor-bound"),
        (0.5, 0.1, False, 0.0, 0.5, True, "learner-bound"),
        (0.0, 0.0, False, 3.0, 0.5, False, "weight-bound"),
    ],
)
def test_the_verdict_says_what_a_run_waits_for(
    blocked: float, starved: float, apart: bool, late: float, processors: float, crowded: bool, verdict: str
) -> None:
    assert bottleneck(blocked, starved, apart, late, processors, crowded) == verdict
