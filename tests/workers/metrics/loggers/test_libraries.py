"""The libraries of Weights & Biases and MLflow, without a network: they hold what TensorBoard holds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.tools import ROOT, skip_or_fail

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WRITER = """
import sys
from pathlib import Path

from protocol.config.run import Run
from workers.runtime.files import SafeWriter
from workers.metrics.writers import MetricWriters

folder, name = Path(sys.argv[1]), sys.argv[2]
for begin in (0, 2):  # the second time as a coordinator that comes back
    measurements = MetricWriters(Run.model_validate({"loggers": [name], "seed": 7}), folder, SafeWriter())
    for step in (begin + 1, begin + 2):
        policy = {"return": step / 2, "version": step, "history": [1.0], "action_share_0": 0.25}
        measurements.write({"agent_0": policy}, {"agent_steps_per_second": 10.0}, step, 10 * step, 10 * step)
    measurements.close(complete=begin == 2)
    assert measurements.logger_stats() == {name: {"written": 2, "missed": 0}}, measurements.logger_stats()
"""


def write(folder: Path, name: str, **environment: str) -> None:
    """Four moments, by two coordinators one after the other."""
    if importlib.util.find_spec(name) is None:
        skip_or_fail(f"{name} is not installed")
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder), name],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def tags(folder: Path) -> set[str]:
    """Names in TensorBoard's files."""
    events = (event for path in (folder / "tensorboard").iterdir() for event in EventFileLoader(str(path)).Load())
    return {value.tag for event in events if event.HasField("summary") for value in event.summary.value}


def test_mlflow_holds_the_same_names_and_numbers_and_goes_on_with_its_run(run_dir: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mlruns"
    write(run_dir, "mlflow", MLFLOW_TRACKING_URI=uri, MLFLOW_ALLOW_FILE_STORE="true")
    (run,) = [path for path in (tmp_path / "mlruns").glob("*/*") if (path / "meta.yaml").exists()]
    names = {str(path.relative_to(run / "metrics")) for path in (run / "metrics").rglob("*") if path.is_file()}
    assert names == tags(run_dir) >= {"agent_0/return", "agent_steps_per_second"}
    points = [line.split() for line in (run / "metrics" / "agent_0" / "return").read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in points] == [(0.5, 10), (1.0, 20), (1.5, 30), (2.0, 40)]
    rows = [json.loads(line)["agent_0"]["return"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows == [0.5, 1.0, 1.5, 2.0]
    assert (run / "params" / "seed").read_text() == "7"
    assert "status: 3" in (run / "meta.yaml").read_text(), "it is over, and well"


def test_weights_and_biases_keeps_the_same_names_offline(run_dir: Path) -> None:
    write(run_dir, "wandb", WANDB_MODE="offline")
    identity = (run_dir / "logger_id").read_text().strip()
    kept = list((run_dir / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert len(kept) == 2, "each coordinator's part, of the same run"
    held = b"".join(path.read_bytes() for path in kept)
    assert [name for name in tags(run_dir) if name.encode() not in held] == []
