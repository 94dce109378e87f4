"""What saturates where: from costs that were measured. Pure.

A run needs, of processor time a second,

    actors        steps * per_step
    learner       segments * per_segment     of its policies; one core a learner process
    coordinator   workers * per_worker       heartbeats, metrics; one core

where steps = segments * segment length. What needs most of its cores is what saturates first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Costs", "sizes"]

_LENGTH = 64
"""Steps of a segment in the runs that were measured."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a processor."""

    per_step: float
    """Of an actor: environment, forward pass, writing, sending."""
    per_segment: float
    """Of a learner: receiving, copying, its part of the updates."""
    per_worker: float
    """Of the coordinator, a second and worker."""

    @classmethod
    def of(cls, one: dict[str, Any], many: dict[str, Any]) -> Costs:
        """From a run with one actor and one with many; the coordinator's cost is seen only with many."""
        return cls(
            per_step=one["actor_processor_seconds"] / one["agent_steps"],
            per_segment=one["learner_processor_seconds"] / one["segments"],
            per_worker=many["coordinator_processor_seconds"] / many["seconds"] / (many["actors"] + 1),
        )

    def processor(self, run: dict[str, Any]) -> float:
        """Processor seconds that a run with so many segments should have taken of its learner and coordinator."""
        heartbeats = self.per_worker * (run["actors"] + 1) * run["seconds"]
        return self.per_segment * float(run["segments"]) + heartbeats

    def told(self) -> dict[str, float]:
        """In microseconds."""
        return {name: round(1e6 * value, 2) for name, value in asdict(self).items()}


def sizes(costs: Costs) -> list[dict[str, Any]]:
    """For runs of 10, 100 and 1,000 actors of a core each, and of 2 and 64 policies on a learner process each: how busy
    each role would be if nothing held it up (1: saturated), and so what the run waits for."""
    told = []
    for actors, policies in ((10, 2), (100, 2), (1_000, 2), (1_000, 64)):
        segments = actors / costs.per_step / _LENGTH
        busy = {
            "learners": segments * costs.per_segment / policies,
            "coordinator": (actors + policies) * costs.per_worker,
        }
        worst = max(busy, key=lambda role: busy[role])
        told.append(
            {
                "actors": actors,
                "policies": policies,
                **{f"{role}_busy": round(value, 3) for role, value in busy.items()},
                "saturates": worst if busy[worst] > 1 else "actors",
                "agent_steps_per_second": round(actors / costs.per_step / max(1.0, busy[worst])),
            }
        )
    return told
