"""Which update of a policy had how many of the segments that its learner received, one line of JSON an update.

In flows: updates, as they are made. Out flow: `order.jsonl`, by which what was recorded is learned again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from protocol.config.run import Run
from protocol.errors import ConfigurationError
from workers.planning.policy_plan import TrainingPlan

ORDER = "order.jsonl"


class UpdateLog:
    """Writes a line for each update to `path`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def write(self, segments: int, train_steps: int, losses: Mapping[str, float]) -> None:
        """An update was made when `segments` had been taken in; `losses` are what it said of itself."""
        told = {name: float(value) for name, value in losses.items()}
        line = {"segments": segments, "train_steps": train_steps, "losses": told}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def open_update_log(plan: TrainingPlan, run: Run, incarnation: int, folder: Path | None) -> UpdateLog | None:
    """The order of `plan`'s policy, beside its recorded segments or, of a run that replays some, in `replayed`; none
    where nothing is recorded, or where an earlier incarnation of the learner has taken a part of it along."""
    if folder is None or not (plan.recorded or run.replay):
        return None
    path = folder / "datasets" / plan.name / ORDER if plan.recorded else folder / "replayed" / f"{plan.name}.jsonl"
    if incarnation > 1:
        path.unlink(missing_ok=True)
        return None
    return UpdateLog(path)


def read_order(path: Path) -> list[int]:
    """How many segments had been taken in at each update; ConfigurationError for what is no order."""
    try:
        return [int(json.loads(line)["segments"]) for line in path.read_text().splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise ConfigurationError("update_order_invalid", file=path, reason=str(fault)) from None
