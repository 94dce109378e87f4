"""What becomes of an update: metrics, or why there were none; and several updates, each by itself.

In flows: updates, and a batch for each. Out flow: an outcome of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from protocol.errors import TrainingFault

__all__ = ["Outcome", "Update", "update_each"]

Outcome = dict[str, float] | TrainingFault
"""Metrics of an update, or why there was none."""
Given = TypeVar("Given", contravariant=True)


class Update(Protocol[Given]):
    """What makes an update of a batch."""

    def update(self, given: Given, progress: float, /) -> dict[str, float]:
        """Metrics; TrainingFault where there are none."""


def update_each(updates: Sequence[Update[Given]], given: Sequence[Given], progress: Sequence[float]) -> list[Outcome]:
    """Each update by itself."""
    outcomes: list[Outcome] = []
    for update, batch, part in zip(updates, given, progress, strict=True):
        try:
            outcomes.append(update.update(batch, part))
        except TrainingFault as fault:
            outcomes.append(fault)
    return outcomes
