"""Measurements in MLflow (https://mlflow.org/docs/latest/), through its own client.

In flow: scalars over steps. Out flow: a run of the experiment `rookery`, or as MLFLOW_EXPERIMENT_NAME and
MLFLOW_TRACKING_URI say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from protocol.config.run import Run

_TAG = "rookery.run"
_METRICS, _PARAMS = 1_000, 100
"""Most of one call."""
_LETTERS = 500
"""Most of a parameter's value."""


class MLflow:
    """A run there, called like the `folder`; `identity` continues one that was begun before."""

    def __init__(self, run: Run, folder: Path, identity: str) -> None:
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rookery")
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        known = self._client.search_runs([number], f"tags.`{_TAG}` = '{identity}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(number, tags={_TAG: identity}, run_name=folder.name).info.run_id
        params = [Param(key, str(value)[:_LETTERS]) for key, value in _flat(run.model_dump(mode="json"))]
        for at in range(0, len(params), _PARAMS):
            self._client.log_batch(self._id, params=params[at : at + _PARAMS])

    def scalars(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Takes `values`."""
        metrics = [Metric(_name(name), value, int(1_000 * seconds), step) for name, value in values.items()]
        for at in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._id, metrics=metrics[at : at + _METRICS])

    def close(self, complete: bool) -> None:
        """Says how it ended."""
        self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")


def _name(name: str) -> str:
    """`name` in the letters that it may be of."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _flat(plain: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for key, value in plain.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
