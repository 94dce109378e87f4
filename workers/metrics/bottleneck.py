"""The verdict on a run: what it waits for. Pure."""

from __future__ import annotations

_WAITS = 0.15
"""Share of the time from which on somebody is said to wait."""
_FULL = 0.9
"""Share of the processors from which on more processes gain nothing."""
_LATE = 2.0
"""Seconds of publications that actors have not adopted from which on weights are said to be late."""


def bottleneck(
    blocked: float,
    starved: float,
    apart: bool = False,
    late: float = 0.0,
    processors: float = 0.0,
    crowded: bool = False,
) -> str:
    """What a run waits for. `blocked`: share of the time that actors wait for credit; `starved`: that learners wait for
    data; `apart`: some are on other machines; `late`: seconds of publications that no actor has adopted; `processors`:
    share of the machine's that are busy; `crowded`: there are more learners than processors.

    Where both ends wait for each other across a network, it is what lies between them that is slow. Where all
    processors are busy, learners that wait for actors gain nothing by more of these; and where learners crowd them out,
    it is chance who seems to wait for whom.
    """
    full = processors >= _FULL
    if full and crowded:
        return "processor-bound"
    if max(blocked, starved) < _WAITS:
        return "weight-bound" if late > _LATE else "balanced"
    if apart and min(blocked, starved) >= _WAITS:
        return "network-bound"
    if blocked > starved:
        return "learner-bound"
    return "processor-bound" if full else "actor-bound"
