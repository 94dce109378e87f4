"""Who shares a learner process: the key `learners` of a run.

In flows: what is written under `learners` and `num_learner_processes`. Out flow: the one of them that says it all.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.errors import ConfigurationError
from protocol.spaces import Label

__all__ = ["Computing", "Learners", "settled"]

Learners = Literal["process", "cohort", "auto"] | dict[Label, Annotated[tuple[Label, ...], Field(min_length=1)]]
"""`process`: each policy has a process of its own; `cohort`: they share `num_learner_processes` (one); `auto`: those
that can be computed as one share a process, where that is known to pay; or cohorts by name, each with its policies."""

Computing = Literal["auto", "in_turn", "stacked", "branches"]
"""How a process computes several policies: one after the other, those of one kind as one, or on CUDA all side by side;
`auto`: as is known to pay."""


def settled(learners: Learners, said: bool, processes: int | None) -> Learners:
    """`learners`, of which `said` tells whether it was written down; ValueError where it does not go with the number of
    `processes`, which alone asks for cohorts."""
    if isinstance(learners, dict):
        placed = [policy for policies in learners.values() for policy in policies]
        for policy in placed:
            if placed.count(policy) > 1:
                raise ConfigurationError("policy_in_two_cohorts", policy=policy, key="learners")
    if processes is None:
        return learners
    if not said:
        return "cohort"
    if learners != "cohort":
        what = "lists cohorts" if isinstance(learners, dict) else f"is {learners}"
        raise ConfigurationError("learners_conflict", reason=what, key="num_learner_processes")
    return learners
