"""How people are told what a run waits for, what helps (launch/docs/guides/performance.md says more), and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ADVICE = {
    "balanced": "nobody waits; only a faster update or environment gains more",
    "actor-bound": "learners wait; slow steps: environment.processes; else more copies",
    "processor-bound": "no core idles; end other programs, or more environment.copies",
    "learner-bound": "all wait for learners; fewer epochs, larger minibatches, a GPU",
    "network-bound": "all wait; a relay on each node, policy.compress, larger credits",
    "weight-bound": "weights come late; a smaller sync_interval, wire_weights: bf16",
}
"""The cheapest first."""


def threads_line(policies: Sequence[str]) -> str:
    """Whose learners have found a free core; empty where none has."""
    return f"a second thread learns along: {', '.join(policies)}" if policies else ""


def verdict_line(verdict: str) -> str:
    """What the run waits for, and what helps, in 80 columns."""
    return f"{verdict}: {_ADVICE[verdict]}" if verdict in _ADVICE else verdict


def shown(value: float | None, digits: int = 4) -> str:
    """A number for people: whole ones whole, others with so many significant digits, however small they are, or more
    where they are large; "–" for none. The page of a run writes numbers in the same way (dashboard.js)."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == round(value) or abs(value) >= 10 ** (digits - 1):
        return f"{round(value):,}"
    return f"{value:.{digits}g}"


def shown_interval(low: float | None, high: float | None) -> str:
    """Bounds in the same way."""
    return "–" if low is None or high is None else f"{shown(low)} to {shown(high)}"
