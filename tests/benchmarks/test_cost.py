"""The cost curve: every point is a run that can start, and what is told of it."""

from __future__ import annotations

import pytest

from protocol.config.run import parse_run
from tests.benchmarks.bench_cost import AXES, cost, parsed, table


@pytest.mark.parametrize("name", AXES)
def test_every_point_of_an_axis_is_a_run_of_its_own(name: str) -> None:
    axis = AXES[name]
    runs = [parse_run(axis.run(value)) for value in axis.values]
    assert len({run.model_dump_json() for run in runs}) == len(axis.values)


def test_cost_is_what_all_processes_need_for_a_million_agent_steps() -> None:
    figures = {"cpu.actor": 0.5, "cpu.learner": 1.0, "cpu.other": 0.1, "agent_steps_per_second": 100_000.0}
    told = cost({**figures, "samples_trained_per_made": 1.0, "lag": 2.0, "peak_pss_gib": 0.5})
    assert told["processor_seconds_per_million"] == pytest.approx(16)
    assert told["learner_processor_seconds_per_million"] == pytest.approx(10)
    lines = [{"axis": "actors", "value": count, **told} for count in (1, 2)]
    assert table(lines) == "| actors | 1: 16.0 | 2: 16.0 |"


def test_an_axis_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--axes", "agents"])
    assert "there is no axis agents" in capsys.readouterr().err
