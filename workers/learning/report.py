"""What a learner reports to the coordinator with each heartbeat."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.control.heartbeat import Report
from protocol.memory.file_lock import LOCK_COUNTERS, LOCK_SECONDS
from protocol.memory.shared_file import Counters
from protocol.messages.core import Route, State
from protocol.weights.publisher import WeightPublisher
from workers.metrics import diagnostics
from workers.metrics.step_time import STAMPS


class LearnerReport:
    """Counters and the latest measurements of every policy a learner serves."""

    def __init__(self, counters: Counters) -> None:
        self.state: State = "starting"
        self.routes: list[Route] = []
        self.metrics: dict[str, float] = {}
        self._counters = counters

    @staticmethod
    def names(policies: Sequence[str]) -> tuple[list[str], list[str]]:
        """Names of a learner's counters: whole ones and seconds."""
        whole = ["quarantined_messages", "repeated_headers", "out_of_order", "recovered"]
        whole += ["invalid_subscriptions", "acks_full", *WeightPublisher.COUNTERS, *LOCK_COUNTERS]
        seconds = [*STAMPS, *LOCK_SECONDS]
        for policy in policies:
            whole += [
                f"{kind}.{policy}"
                for kind in (
                    "received",
                    "duplicates",
                    "trained",
                    "rejected",
                    "held",
                    "torn",
                    "waiting_for_room",
                    "rate_limited",
                    "dropped.recycled",
                    "dropped.stale",
                    "dropped.frozen",
                    "train_steps",
                    "steps_made",
                    "version",
                    "rows_received",
                    "rows_trained",
                    "rows_without_bonus",
                    "read",
                    "rows_read",
                    "rows_learned",
                    "recorded",
                    "lag_rows",
                    "lag_sum",
                    "lag_max",
                    "checkpoints",
                    "checkpoints_failed",
                    "member_restarts",
                )
            ]
            whole += diagnostics.counters(policy)
            seconds += [
                f"{kind}.{policy}" for kind in ("waits.data", "waits.ranks", "waits.checkpoint", "waits.record", "busy")
            ]
            seconds += [name for bounded in diagnostics.BOUNDED for name in diagnostics.bound_counters(bounded, policy)]
        return whole, seconds

    def snapshot(self) -> Report:
        """For the control thread."""
        return Report(self.state, list(self.routes), self._counters.snapshot(), dict(self.metrics))
