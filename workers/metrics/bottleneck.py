"""The verdict on a run: what it waits for. Pure."""

from __future__ import annotations

__all__ = ["bottleneck"]

_WAITS = 0.15
"""Share of the time from which on somebody is said to wait."""
_LATE = 2.0
"""Seconds of publications that actors have not adopted from which on weights are said to be late."""


def bottleneck(blocked: float, starved: float, apart: bool = False, late: float = 0.0) -> str:
    """What a run waits for. `blocked`: share of the time that actors wait for credit; `starved`: that learners wait for
    data; `apart`: some are on other machines; `late`: seconds of publications that no actor has adopted.

    Where both ends wait for each other across a network, it is what lies between them that is slow.
    """
    if max(blocked, starved) < _WAITS:
        return "weight-bound" if late > _LATE else "balanced"
    if apart and min(blocked, starved) >= _WAITS:
        return "network-bound"
    return "learner-bound" if blocked > starved else "actor-bound"
