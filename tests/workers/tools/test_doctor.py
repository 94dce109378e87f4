"""The doctor names the first layer of each policy that fails, from what a run left in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from protocol.errors import ConfigurationError, EnvironmentFault, RookeryError, TrainingFault
from protocol.memory.shared_file import Counters
from tests.faults import kinds_in, raises
from tests.workers.runtime.test_process import _signals_stay_ours, options  # noqa: F401 - a fixture
from workers.learning.report import LearnerReport
from workers.metrics.diagnostics import BOUNDED, FINDINGS, LAYERS, OF_RUNS, bound_counters, counter, describe
from workers.rollout.report import ActorReport
from workers.runtime.process import WorkerProcess
from workers.tools.doctor import DiagnosedLayer, examine, main

WELL: dict[str, float] = {"batches_checked.p": 10, "steps_made.p": 40, "received.p": 64}


def a_run(
    folder: Path, learner: dict[str, float] | None = None, said: str = "", produced: int = 64, worker: str = "actor-0"
) -> Path:
    """What the run of one policy left."""
    (folder / "logs").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"steps": 1_000}))
    actor = Counters(folder / "counters" / "actor-0.1", *ActorReport.names(["p"]))
    actor.set("produced.p", produced)
    page = Counters(folder / "counters" / "learner-p.1", *LearnerReport.names(["p"]))
    for name, value in (learner or {}).items():
        page.set(name, value)
    (folder / "logs" / f"{worker}.log").write_text(
        f"2026-01-01 00:00:00,000 - {worker} - INFO - event=joined\n{said}\n"
    )
    return folder


def wrong(field: str, expected: str, value: str) -> EnvironmentFault:
    """Of what an agent of a world was told."""
    facts = {"environment": "w", "agent": "a", "field": field, "expected": expected, "value": value}
    return EnvironmentFault("agent_data_invalid", remedy="mend it", **facts)


def states(layers: list[DiagnosedLayer]) -> dict[str, str]:
    """name -> state, in order."""
    assert [layer.name for layer in layers] == list(LAYERS)
    return {layer.name: layer.state for layer in layers}


def test_a_sound_run_is_ok_in_every_layer_H1(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", WELL)
    assert set(states(examine(run)).values()) == {"ok"}
    result = CliRunner().invoke(main, [str(run)])
    assert result.exit_code == 0
    assert result.output.splitlines()[:2] == ["policy p", "  data         ok"]


@pytest.mark.parametrize(
    "name", [name for name, one in FINDINGS.items() if one.level == "fault" and name not in OF_RUNS]
)
def test_the_layer_of_a_fault_fails_and_none_above_is_judged_H1(tmp_path: Path, name: str) -> None:
    told = dict.fromkeys(bound_counters(name, "p"), 2.5) if name in BOUNDED else {}
    run = a_run(tmp_path / "run", {**WELL, counter(name, "p"): 3, **told})
    found, one = examine(run), FINDINGS[name]
    at = LAYERS.index(one.layer)
    assert [layer.state for layer in found[at:]] == ["FAILS"] + ["not judged"] * (len(LAYERS) - at - 1)
    below = "not judged" if one.layer == "sharing" else "ok"  # memory that is not the actor's says nothing of the world
    assert {layer.state for layer in found[:at]} <= {below}
    assert (found[at].says.startswith(one.says), found[at].says.endswith(f"; {one.remedy}")) == (True, True)
    assert ("2.5" in found[at].says) == (name in BOUNDED)
    result = CliRunner().invoke(main, [str(run)])
    assert result.exit_code == 1


def test_of_several_faults_the_lowest_is_named(tmp_path: Path) -> None:
    found = {counter(name, "p"): 3 for name in ("gradient_zero", "observation_zero", "weights_unmoved")}
    layers = states(examine(a_run(tmp_path / "run", {**WELL, **found})))
    assert [name for name, state in layers.items() if state == "FAILS"] == ["data"]


def test_data_that_came_from_other_memory_than_the_actors_are_not_blamed_H1(tmp_path: Path) -> None:
    """They may well be zeros."""
    found = {counter(name, "p"): 3 for name in ("memory_disagrees", "observation_zero")}
    layers = states(examine(a_run(tmp_path / "run", {**WELL, **found})))
    assert [name for name, state in layers.items() if state == "FAILS"] == ["sharing"]


def test_a_note_is_no_failure(tmp_path: Path) -> None:
    found = examine(a_run(tmp_path / "run", {**WELL, counter("observation_constant", "p"): 9}))
    assert set(states(found).values()) == {"ok"}
    assert found[0].says.startswith("note: every observation is the same; ")


@pytest.mark.parametrize(
    ("fault", "worker", "layer"),
    [
        (EnvironmentFault("array_shape_wrong", field="w, agent a: o", expected=[8], value=[1, 9]), "actor-0", "shape"),
        (TrainingFault("shape_differs_from_layout", field="o", value=[9], expected=[8]), "learner-p", "shape"),
        (wrong("observation", "float32[8, 9]", "float32[8, 1]"), "actor-0", "shape"),
        (wrong("action", "[-1.0] to [1.0]", "2.0 at [3]"), "actor-0", "data"),
        (TrainingFault("update_not_finite", loss=float("nan"), norm=float("nan")), "learner-p", "computation"),
    ],
)
def test_what_a_worker_said_when_it_failed_is_told_in_its_layer_H1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: RookeryError, worker: str, layer: str
) -> None:
    def body(_: WorkerProcess) -> None:
        raise fault

    WorkerProcess(worker.partition("-")[0], options()).run(body)
    (said,) = [message for message in caplog.messages if message.startswith("event=failed ")]
    line = f"2026-01-01 00:00:01,000 - {worker} - ERROR - {said}"
    found = examine(a_run(tmp_path / "run", said=line, worker=worker))
    (failing,) = [one for one in found if one.state == "FAILS"]
    assert failing.name == layer
    assert failing.says == f"{worker}: {fault.coded}"


@pytest.mark.parametrize(
    ("produced", "received", "layer", "said"),
    [
        (0, 0, "data", "no actor finished a segment"),
        (64, 0, "sharing", "64 segments were finished and none arrived"),
        (64, 2, "data", "2 segments make no batch"),
    ],
)
def test_a_run_without_an_update_says_where_it_stopped_H1(
    tmp_path: Path, produced: int, received: int, layer: str, said: str
) -> None:
    found = examine(a_run(tmp_path / "run", {"received.p": received}, produced=produced))
    (failing,) = [one for one in found if one.state == "FAILS"]
    assert failing.name == layer
    assert failing.says.startswith(said)


def test_too_few_batches_tell_nothing(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", {**WELL, "batches_checked.p": 2})
    assert set(states(examine(run)).values()) == {"not judged"}
    assert CliRunner().invoke(main, [str(run)]).exit_code == 1


def test_where_no_page_can_be_seen_the_summary_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "config.yaml").write_text("steps: 5\n")
    summary: dict[str, Any] = {
        "health": {"batches_checked": {"p": 12}, "findings": [describe("p", FINDINGS["wrong_shape"])]},
        "segments": {"produced": 9, "received": 9},
        "train_steps": {"p": 3},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    assert [name for name, state in states(examine(folder)).items() if state == "FAILS"] == ["shape"]


def test_what_is_no_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with raises(ConfigurationError, "folder_without_config", file=tmp_path):
        examine(tmp_path)
    result = CliRunner().invoke(main, [str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.startswith("rookery: ")
    assert kinds_in(result.output) == ["folder_without_config"]
    (tmp_path / "config.yaml").write_text("steps: 5\n")
    with raises(ConfigurationError, "nothing_to_examine", file=tmp_path):
        examine(tmp_path)
