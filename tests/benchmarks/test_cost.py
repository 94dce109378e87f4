"""The cost curve: every point is a run that can start, and what is told of it."""

from __future__ import annotations

import pytest

from protocol.config.run import parse_run
from tests.benchmarks.bench_cost import AXES, cost, table


def test_every_point_of_an_axis_is_a_run_of_its_own() -> None:
    for name, axis in AXES.items():
        runs = {parse_run(axis.run(value)).model_dump_json() for value in axis.values}
        assert len(runs) == len(axis.values), name


def test_cost_is_what_all_processes_need_for_a_million_agent_steps() -> None:
    figures = {"cpu.actor": 0.5, "cpu.learner": 1.0, "cpu.other": 0.1, "agent_steps_per_second": 100_000.0}
    told = cost({**figures, "samples_trained_per_made": 1.0, "lag": 2.0, "peak_pss_gib": 0.5})
    assert told["processor_seconds_per_million"] == pytest.approx(16)
    assert told["learner_processor_seconds_per_million"] == pytest.approx(10)
    lines = [{"axis": "actors", "value": count, **told} for count in (1, 2)]
    assert table(lines) == "| actors | 1: 16.0 | 2: 16.0 |"
