"""What a verdict on a run means and what helps, for all who show it; launch/docs/guides/performance.md says more."""

from __future__ import annotations

from collections.abc import Sequence

_ADVICE = {
    "balanced": "nobody waits; only a faster update or environment gains more",
    "actor-bound": "learners wait for data; more environment.copies, then more actors",
    "processor-bound": "no core idles; more environment.copies, or learners: auto",
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
