"""The client that was written from the wire document alone, as the only actor of a run of three processes."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.clients.languages import started
from tests.tools import ROOT
from tests.trial import Trial
from tests.waiting import until

STEPS = 60_000
SECONDS = 600.0
"""For all three together; they take about ten on two idle cores."""
PATIENT = ("actor_timeout=120", "learner_timeout=120")
"""A disk that stands still for long is no loss of a worker here."""


@pytest.mark.usefixtures("forked_rookery")
@pytest.mark.timeout(SECONDS + 60)
def test_a_client_from_the_document_is_trained_on(
    tmp_path: Path, run_dir: Path, free_port_block: int, trial: Trial
) -> None:
    """It joins, is trained on until its policy is better, every segment is accounted for, and all end by themselves."""
    address = f"127.0.0.1:{free_port_block}"
    where = ("--coordinator", f"tcp://{address}")
    steps = trial.steps(STEPS)
    settings = [
        part for key in (f"steps={steps}", f"seed={trial.seed}", *PATIENT, *trial.keys) for part in ("--set", key)
    ]
    options = ("--run-dir", str(run_dir), "--bind", address, *settings)
    learner_ports = f"127.0.0.1:{free_port_block + 1}"
    names = ("actor", "coordinator", "learner")
    with ExitStack() as stack:
        commands = (
            (sys.executable, str(ROOT / "tests" / "clients" / "actor.py"), *where),
            ("rookery", "coordinator", "--open", "cartpole", *options),
            ("rookery", "learner", *where, "--bind", learner_ports),
        )
        logs = [tmp_path / f"{name}.log" for name in names]
        processes = [started(stack, log, *command) for log, command in zip(logs, commands, strict=True)]
        with suppress(AssertionError):  # then they tell more
            until(lambda: None not in [process.poll() for process in processes], SECONDS, every=0.05)
        codes = [process.poll() for process in processes]
        told = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)
        assert codes == [0, 0, 0], told

    actor: dict[str, Any] = json.loads(logs[0].read_text().splitlines()[-1])
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    segments: dict[str, Any] = summary["segments"]
    assert actor["error"] == ""
    assert steps <= actor["steps"] < steps + 32
    assert summary["complete"]
    assert summary["agent_steps"] == actor["steps"]

    assert segments["trained"] > 0
    assert segments["produced"] == segments["received"] == actor["produced"] == actor["settled"]
    assert segments["trained"] == segments["produced"], "32 copies fill batches of 32 segments without a rest"
    assert summary["rows_trained_per_row_made"] == 1, "its last segments are short"
    for name in ("rejected", "in_flight", "held", "lost_in_learner", "torn", "unexplained"):
        assert segments[name] == 0, name
    assert set(segments["dropped"].values()) == {0}
    assert set(summary["refused"].values()) == {0}

    trial.reaches(actor["returns"][-1], 50, "return of the last tenth")
