"""What a member says of itself: lines in the log, measurements, and batches that were refused, kept for whoever asks
why.

In flows: counters, metrics, batches. Out flows: the log, files in the run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from protocol.config.run import Run
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from workers.algorithms.common.batches import Learnable
from workers.learning.buffers.build import Buffer
from workers.learning.buffers.replay_buffer import ReplayBuffer
from workers.learning.diagnostics.refused_batches import origin_fields, save_refused
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan

log = logging.getLogger(__name__)


class TrainingLog:
    """Of the member for `plan`, which is fed by `fed`; refused batches go under the run's `folder`."""

    def __init__(
        self,
        plan: TrainingPlan,
        run: Run,
        folder: Path | None,
        counters: Counters,
        fed: Buffer,
    ) -> None:
        self._plan, self._run, self._counters, self._fed = plan, run, counters, fed
        self._refused = folder / "refused" if folder is not None else None
        self.logged_step = 0
        """Train steps when the last lines were written."""

    def due(self, train_steps: int) -> bool:
        """Whether it is time for the next lines."""
        return train_steps - self.logged_step >= self._run.log_interval

    def keep(self, batch: Learnable, reason: str, train_steps: int, version: Version) -> None:
        """Writes what was refused to the run's folder, with where it came from."""
        if self._refused is None:
            return
        name = self._plan.name
        facts = {
            "policy": name,
            "reason": reason,
            "train_step": train_steps,
            "version": [version.incarnation, version.version],
            "environment": self._run.environment.model_dump(mode="json"),
            "seed": self._run.seed,
        }
        origins = [asdict(one) | origin_fields(one, self._plan, self._run.seed) for one in self._fed.provenance()]
        path = save_refused(self._refused, name, train_steps, batch, origins, facts)
        if path is not None:
            log.error("event=refused_batch_saved policy=%s path=%s", name, path)

    def queue_metrics(self, source: SegmentSource) -> dict[str, float]:
        """How much waits to be used, and how old what was used is."""
        counters, name = self._counters, self._plan.name
        levels = {
            "queue_segments": sum(len(arrival.records) for arrival in source.arrivals(name)),
            "held_segments": counters[f"held.{name}"],
            "lag_mean": counters[f"lag_sum.{name}"] / max(1, counters[f"lag_rows.{name}"]),
            "lag_max": counters[f"lag_max.{name}"],
        }
        return {**levels, "buffer_rows": self._fed.rows} if isinstance(self._fed, ReplayBuffer) else levels

    def log(
        self, before: int, train_steps: int, version: Version, metrics: Mapping[str, float], seen: Mapping[str, float]
    ) -> None:
        """Two lines: what the update that began at train step `before` said of itself, and how its batch looked."""
        self.logged_step = train_steps
        if not self._run.logging:
            return
        for event, numbers in (("update", metrics), ("batch", seen)):
            text = " ".join(f"{name}={value:.6g}" for name, value in numbers.items())
            line = "event=%s policy=%s train_step=%d version=%d %s"
            log.info(line, event, self._plan.name, before, version.version, text)
