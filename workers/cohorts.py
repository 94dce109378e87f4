"""Which policies share a learner process, and which of these are alike enough to be computed as one. Pure, no torch.

In flows: the configuration, what was planned for each policy. Out flows: learner -> its policies; a policy's kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.config import OnStream, Run
from protocol.errors import ConfigurationError
from workers.plan import Plan, PolicyPlan

__all__ = ["check_cohorts", "kind_of", "learners_of"]

_ENOUGH = 4
"""Policies of one kind from which on `learners: auto` makes a cohort of them: fewer gain less by being one computation
than by computing beside each other (workers/README.md)."""


def kind_of(plan: Plan) -> str:
    """What policies must have in common to be stacked: what they see and do, network, algorithm, size of a batch;
    learning rates, clipping and data are each one's own. Empty for what cannot be stacked."""
    algorithm = plan.config.algorithm
    if not isinstance(plan, PolicyPlan) or not isinstance(algorithm, OnStream):
        return ""
    if algorithm.central_critic or algorithm.priority_alpha:
        return ""
    return "|".join(
        (plan.layout.hash, plan.config.network.model_dump_json(), algorithm.model_dump_json(), str(plan.batch_segments))
    )


def learners_of(run: Run, policies: Sequence[str], kinds: Mapping[str, str]) -> dict[str, list[str]]:
    """The learner processes of a run by name, each with its policies, in their order; `kinds` of those that may be
    stacked."""
    alone = {f"learner-{policy}": [policy] for policy in policies}
    if run.learners == "process":
        return alone
    if run.learners == "cohort":
        processes = min(run.num_learner_processes or 1, len(policies))
        if processes == len(policies):
            return alone
        return {f"learner-{i}": list(policies[i::processes]) for i in range(processes)}
    if isinstance(run.learners, dict):
        cohorts = {policy: name for name, members in run.learners.items() for policy in members}
    else:
        first: dict[str, str] = {}
        cohorts = {policy: first.setdefault(kind, policy) for policy in policies if (kind := kinds.get(policy))}
        sizes = list(cohorts.values())
        cohorts = {policy: name for policy, name in cohorts.items() if sizes.count(name) >= _ENOUGH}
    found: dict[str, list[str]] = {}
    for policy in policies:
        found.setdefault(f"learner-{cohorts.get(policy, policy)}", []).append(policy)
    return found


def check_cohorts(run: Run, plans: Mapping[str, Plan]) -> None:
    """ConfigurationError unless the cohorts that are named are of policies that there are."""
    if not isinstance(run.learners, dict):
        return
    for name, members in run.learners.items():
        for member in members:
            if member not in plans:
                raise ConfigurationError(
                    f"learners.{name} names {member!r}, which is nothing that learns; name some of {', '.join(plans)}"
                )
        if name in plans and name not in members:
            raise ConfigurationError(
                f"the cohort {name!r} is called like a policy that is not in it; give it another name"
            )
