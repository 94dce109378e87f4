"""What the model of a run's size says of sizes that nobody ran."""

from __future__ import annotations

import pytest

from tests.benchmarks.scale_model import Costs, sizes

ONE = {"actor_processor_seconds": 1.0, "agent_steps": 10_000, "learner_processor_seconds": 0.5, "segments": 100}
MANY = {"coordinator_processor_seconds": 1.0, "seconds": 10.0, "actors": 99}


def test_what_needs_most_of_its_cores_saturates_first() -> None:
    """An actor makes 10,000 steps a second, or 156 segments; a learner takes 200; the coordinator 1000 workers."""
    costs = Costs.of(ONE, MANY)
    assert costs.told() == {"per_step": 100.0, "per_segment": 5000.0, "per_worker": 1000.0}
    ten, _, thousand, policies = sizes(costs)
    assert ten["learners_busy"] == pytest.approx(10 * 156.25 / 200 / 2, abs=1e-3)
    assert (ten["saturates"], policies["saturates"]) == ("learners", "learners")
    assert ten["agent_steps_per_second"] == thousand["agent_steps_per_second"] == 2 * 200 * 64
    assert thousand["coordinator_busy"] == pytest.approx(1.002)
    assert costs.processor({"segments": 100, "actors": 9, "seconds": 10.0}) == pytest.approx(0.5 + 0.1)
