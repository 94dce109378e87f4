"""Which policies share a learner process, and which of these are alike enough to be computed as one. Pure, no torch.

In flows: the configuration, what was planned for each policy. Out flows: learner -> its policies; a policy's kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from protocol.config.network import CellCore
from protocol.config.run import DQN, IQN, OnStream, Run
from protocol.errors import ConfigurationError
from workers.planning.data_parallel import rank_names
from workers.planning.policy_plan import PolicyPlan, TrainingPlan

_ENOUGH = 4
"""Policies of one kind from which on `auto` makes a cohort of them, and stacks them: two took as long stacked as in
turn, four less than half as long (launch/docs/evidence/machines.md)."""

_SMALL = 4096
"""Segments of a minibatch times units of a memory: with twice as many, stacked took as long as in turn
(launch/docs/evidence/machines.md)."""

_PER_POLICY_KEYS = {"anneal_learning_rate", "entropy_coefficient", "anneal_entropy", "segments"} | {
    "buffer_capacity",
    "learning_starts",
    "replay_ratio",
    "error_buffer",
    "checkpoint_replay",
    "priority_beta",
    "target_update_freq",
    "target_update",
    "tau",
    "epsilon",
    "epsilon_decay_freq",
    "epsilon_decay",
    "exploration_fraction",
    "exploration_steps",
    "epsilon_min",
}
"""Keys of an algorithm that each policy of a stack has for itself: its schedules, and how it comes by its batches."""
BRANCHES = "branches"
"""The stack of those that are computed side by side."""


def stacks_of(run: Run, plans: Sequence[TrainingPlan], device: str = "cpu") -> list[str]:
    """For each of the policies of one process, on a `device` of that type, the stack in which it is computed; empty: in
    turn. In lock-step all are, as the bits of a stack depend on who is in it. ConfigurationError for branches elsewhere
    than on CUDA.

    `auto` on CUDA: what is stacked elsewhere is there, all else side by side. A step of 16 recurrent policies took 6.1
    ms side by side and 10.1 ms stacked, one of 64 perceptrons 7.7 and 2.1 ms (one H200;
    launch/docs/evidence/machines.md).
    """
    if run.cohort == "in_turn" or run.lockstep:
        return [""] * len(plans)
    branching = [BRANCHES if _branches(plan) else "" for plan in plans]
    if run.cohort == "branches":
        if device != "cuda":
            raise ConfigurationError("cohort_branches_need_cuda", device=device, key="cohort")
        return branching
    found = _alike(run, plans, device)
    if run.cohort == "auto" and device == "cuda":
        side = [branch if not stack else "" for stack, branch in zip(found, branching, strict=True)]
        if side.count(BRANCHES) > 1:
            return [stack or branch for stack, branch in zip(found, side, strict=True)]
    return found


def _branches(plan: TrainingPlan) -> TypeGuard[PolicyPlan]:
    """Whether its updates may be branches of a graph; records are learned again to the bit, what is frozen
    is left as it is."""
    algorithm = plan.config.algorithm
    if not isinstance(plan, PolicyPlan) or plan.recorded or plan.ranks > 1 or plan.modular:
        return False
    if plan.config.freeze is not None or plan.config.kl is not None:
        return False
    if isinstance(algorithm, OnStream):
        plain = not algorithm.central_critic and not algorithm.priority_alpha
        return plain and algorithm.entry is None and algorithm.frames == 1
    return isinstance(algorithm, DQN | IQN) and algorithm.entry is None


def _alike(run: Run, plans: Sequence[TrainingPlan], device: str) -> list[str]:
    """The kind of each that is stacked."""
    kinds = [
        stacking_key(plan) if run.cohort == "stacked" or benefits_from_stacking(plan, device) else "" for plan in plans
    ]
    least = _ENOUGH if run.cohort == "auto" else 2
    return [kind if kinds.count(kind) >= least else "" for kind in kinds]


def benefits_from_stacking(plan: TrainingPlan, device: str = "cpu") -> bool:
    """Whether policies like this one gain by being stacked: those without memory do; those with one where minibatches
    are small, and not on CUDA, where they gain more side by side."""
    if not isinstance(plan, PolicyPlan):
        return False
    core = plan.config.network.core
    if core is None:
        return True
    small = isinstance(core, CellCore) and plan.batch_segments * core.size <= _SMALL * plan.minibatches
    return small and device != "cuda"


def stacking_key(plan: TrainingPlan) -> str:
    """What policies must have in common to be stacked: what they see and do, network, algorithm, size of a batch, and
    whether they are compiled; learning rates, schedules, clipping and data are each one's own. Empty for what cannot be
    stacked."""
    if not _branches(plan):
        return ""
    algorithm = plan.config.algorithm
    actions, seen = plan.interface.action_encoding, plan.interface.observation_encoding
    shapes = plan.layout.hash, seen.shape, actions.head_sizes, actions.continuous, plan.batch_segments
    same = algorithm.model_dump_json(exclude=_PER_POLICY_KEYS)
    return f"{shapes}|{plan.config.network.model_dump_json()}|{same}|{plan.config.compile}"


def kinds_of(plans: Mapping[str, TrainingPlan]) -> dict[str, str]:
    """The kind of each of `plans` that gains by being computed with others of it."""
    return {name: stacking_key(plan) for name, plan in plans.items() if benefits_from_stacking(plan)}


def learners_of(run: Run, policies: Sequence[str], kinds: Mapping[str, str]) -> dict[str, list[str]]:
    """The learner processes of a run by name, each with its policies, in their order; `kinds` of those that gain by
    being stacked.

    `auto`: four or more of one kind share a process, in as many processes as there may be of each kind with as many
    members, unless each policy may have its own. On two cores beside one actor, eight policies made 63,000 agent steps
    a second in a process each, 82,000 in one, 114,000 in two; three, which are computed in turn where they share,
    62,000, 32,000 and 51,000 (launch/docs/evidence/machines.md).
    """
    alone = {name: [policy] for policy in policies for name in rank_names(policy, run.ranks(policy))}
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
        cohorts, most = {}, run.num_learner_processes
        for kind in dict.fromkeys(kinds.values()) if most is None or most < len(policies) else ():
            alike = [policy for policy in policies if kinds.get(policy) == kind]
            processes = min(most or 1, len(alike) // _ENOUGH) if kind else 0
            for part in (alike[i::processes] for i in range(processes)):
                cohorts |= dict.fromkeys(part, part[0])
    found: dict[str, list[str]] = {}
    for policy in policies:
        for name in rank_names(cohorts.get(policy, policy), run.ranks(policy)):
            found.setdefault(name, []).append(policy)
    return found


def check_cohorts(run: Run, plans: Mapping[str, TrainingPlan]) -> None:
    """ConfigurationError unless the cohorts that are named are of policies that there are, and can be computed as is
    said."""
    if run.cohort == "branches" and (run.lockstep or run.device in ("cpu", "mps")):
        what = "schedule is lockstep" if run.lockstep else f"device is {run.device!r}"
        raise ConfigurationError("cohort_branches_impossible", reason=what, key="cohort")
    if run.cohort == "stacked":
        _check_stacks(run, plans)
    if not isinstance(run.learners, dict):
        return
    for name, members in run.learners.items():
        for member in members:
            if member not in plans:
                raise ConfigurationError(
                    "cohort_member_unknown", cohort=name, value=member, choices=list(plans), key=f"learners.{name}"
                )
        if name in plans and name not in members:
            raise ConfigurationError("cohort_named_like_policy", cohort=name, key=f"learners.{name}")


def _check_stacks(run: Run, plans: Mapping[str, TrainingPlan]) -> None:
    """ConfigurationError unless all policies of each process are of one kind."""
    if run.lockstep:
        raise ConfigurationError("cohort_stacked_in_lockstep", key="cohort")
    kinds = {name: stacking_key(plan) for name, plan in plans.items()}
    for learner, (first, *others) in learners_of(run, list(plans), kinds).items():
        for other in others:
            if not kinds[first] or kinds[other] != kinds[first]:
                raise ConfigurationError(
                    "cohort_policies_not_stackable", policy=first, other=other, peer=learner, key="cohort"
                )
