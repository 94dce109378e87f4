"""Measurements in Weights & Biases (https://docs.wandb.ai/ref/python/), through its own library.

In flow: scalars over steps. Out flow: a run of the project `rookery`, or as WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE
say; what is kept offline lies in the run's folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from protocol.config.run import Run


class Wandb:
    """A run there, called like the `folder`; `identity` continues one that was begun before."""

    def __init__(self, run: Run, folder: Path, identity: str) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rookery"),
            id=identity,
            name=folder.name,
            dir=str(folder),
            config=run.model_dump(mode="json"),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="steps")

    def scalars(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Takes `values`; the time is the library's."""
        self._run.log({"steps": step, **values})

    def close(self, complete: bool) -> None:
        """Sends what is left."""
        self._run.finish(exit_code=0 if complete else 1)
