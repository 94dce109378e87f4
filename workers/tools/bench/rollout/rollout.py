"""What acting costs beside what it acts in and with.

Out flow: figures by key. See turn_overhead.py, overlap.py, many_agents.py and adapters.py for what each is.
"""

from __future__ import annotations

from workers.tools.bench.rollout.adapters import overhead
from workers.tools.bench.rollout.many_agents import many_agents
from workers.tools.bench.rollout.overlap import overlap
from workers.tools.bench.rollout.turn_overhead import loop

__all__ = ["measure"]


def measure(rounds: int) -> dict[str, float]:
    """All figures, from `rounds` interleaved pairs where there are pairs."""
    return {**loop(rounds), **overlap(), **many_agents(), **overhead(rounds)}
