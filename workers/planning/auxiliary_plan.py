"""What follows from a run's configuration for what learns beside its policies: whom it observes, what it is told. Pure.

In flows: the configuration, its world, the plans of its policies. Out flow: the plan of each auxiliary; refusals.
Legend: `T` segment length, `K` entries of the side table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.config.run import AuxiliaryConfig, Run
from protocol.errors import ConfigurationError
from protocol.experience.layout import Field, Layout
from protocol.messages import compression
from protocol.spaces import World
from workers.planning.cohorts import check_cohorts
from workers.planning.policy_plan import LayoutFields, PolicyPlan, TrainingPlan, plan_policies


@dataclass(frozen=True, slots=True)
class AuxiliaryPlan(TrainingPlan):
    """One auxiliary of a run: what it is told are the observations of `agents`, whom the policies `observes` play."""

    config: AuxiliaryConfig
    observes: tuple[str, ...] = ()

    @property
    def check(self) -> None:
        """Nobody acts."""
        return

    def first_stream(self, policy: PolicyPlan, policies: Mapping[str, PolicyPlan]) -> int:
        """The number here of the first stream of `policy`, which is watched; the others follow in their order."""
        before = self.observes[: self.observes.index(policy.name)]
        return sum(policies[name].streams for name in before)


def plan_learners(run: Run, world: World, fields: LayoutFields | None = None) -> dict[str, TrainingPlan]:
    """Everything that has a ring and a learner: the policies, as `plan_policies` plans them, then the auxiliaries;
    raises ConfigurationError."""
    policies = plan_policies(run, world, fields)
    plans: dict[str, TrainingPlan] = {**policies, **plan_auxiliaries(run, policies)}
    check_cohorts(run, plans)
    return plans


def plan_auxiliaries(run: Run, policies: Mapping[str, PolicyPlan]) -> dict[str, AuxiliaryPlan]:
    """The plan of every auxiliary of `run`, whose `policies` these are; raises ConfigurationError."""
    plans = {name: _plan(name, config, policies) for name, config in run.auxiliaries.items()}
    wanted = set()
    for policy in policies.values():
        if policy.curiosity is not None:
            _check_consumer(policy, policy.curiosity.auxiliary, plans)
            wanted.add(policy.curiosity.auxiliary)
    for name in plans:
        if name not in wanted:
            raise ConfigurationError("auxiliary_unused", auxiliary=name, key=f"auxiliaries.{name}")
    return plans


def _plan(name: str, config: AuxiliaryConfig, policies: Mapping[str, PolicyPlan]) -> AuxiliaryPlan:
    known = ", ".join(policies)
    if not policies:
        raise ConfigurationError("auxiliary_observes_nobody", auxiliary=name, key=f"auxiliaries.{name}")
    if name in policies:
        raise ConfigurationError(
            "auxiliary_named_like_policy", auxiliary=name, choices=known, key=f"auxiliaries.{name}"
        )
    for other in config.observes:
        if other not in policies:
            raise ConfigurationError(
                "auxiliary_observes_no_learner",
                auxiliary=name,
                policy=other,
                choices=known,
                key=f"auxiliaries.{name}.observes",
            )
    watched = [policy for policy in policies.values() if policy.name in config.observes or not config.observes]
    first = watched[0]
    for policy in watched:
        _check_alike(name, first, policy)
    plan = AuxiliaryPlan(
        name,
        tuple(agent for policy in watched for agent in policy.agents),
        first.interface,
        config,
        _layout(watched),
        first.copies,
        first.groups,
        first.actors,
        first.lock_timeout,
        observes=tuple(policy.name for policy in watched),
    )
    if plan.batch_segments < config.algorithm.minibatches:
        raise ConfigurationError(
            "auxiliary_batch_too_small",
            auxiliary=name,
            count=plan.batch_segments,
            minibatches=config.algorithm.minibatches,
            key=f"auxiliaries.{name}",
        )
    try:
        plan.credit()  # refuses what would deadlock
    except ConfigurationError as fault:
        raise fault.within(f"auxiliary {name!r}", auxiliary=name, key=f"auxiliaries.{name}") from None
    compression.check_fields(config.compress, plan.layout)
    return plan


def _layout(watched: list[PolicyPlan]) -> Layout:
    """What those who are watched are shown, each row as one vector whatever it was made of: `observation` in every row,
    and the true last ones of truncated episodes in the side table, as in a policy's segments."""
    shown = watched[0].interface.observation_encoding
    dtype = shown.dtype.newbyteorder("<").str
    length = max(policy.layout.length for policy in watched)
    ends = max(field.shape[0] for policy in watched for field in policy.layout.fields if field.name == "final_row")
    return Layout(
        (
            Field("observation", dtype, shown.shape),
            Field("final_observation", dtype, (ends, *shown.shape), "slot"),
            Field("final_row", "<i4", (ends,), "slot"),
        ),
        length,
    )


def _check_alike(name: str, first: PolicyPlan, policy: PolicyPlan) -> None:
    """ConfigurationError unless both policies are shown the same, in blocks of the same size."""
    one, other = first.interface.observation_encoding, policy.interface.observation_encoding
    if (one.shape, one.dtype, one.record) != (other.shape, other.dtype, other.record):
        raise ConfigurationError(
            "auxiliary_observations_differ",
            auxiliary=name,
            policy=first.name,
            dtype=one.dtype,
            shape=list(one.shape),
            other=policy.name,
            other_dtype=other.dtype,
            other_shape=list(other.shape),
            key=f"auxiliaries.{name}",
        )
    if first.agents_per_copy != policy.agents_per_copy:
        raise ConfigurationError(
            "auxiliary_agent_counts_differ",
            auxiliary=name,
            policy=first.name,
            count=first.agents_per_copy,
            other=policy.name,
            other_count=policy.agents_per_copy,
            key=f"auxiliaries.{name}",
        )


def _check_consumer(policy: PolicyPlan, name: str, plans: Mapping[str, AuxiliaryPlan]) -> None:
    """ConfigurationError unless what `policy` is curious about is told by an auxiliary that sees what it sees."""
    if name not in plans:
        there = f"one of {', '.join(plans)}" if plans else "one that you add there"
        raise ConfigurationError(
            "unknown_auxiliary", policy=policy.name, value=name, choices=there, key="algorithm.curiosity.auxiliary"
        )
    mine, its = policy.interface.observation_encoding, plans[name].interface.observation_encoding
    if (mine.shape, mine.dtype) != (its.shape, its.dtype):
        raise ConfigurationError(
            "curiosity_observations_differ",
            policy=policy.name,
            dtype=mine.dtype,
            shape=list(mine.shape),
            auxiliary=name,
            other_dtype=its.dtype,
            other_shape=list(its.shape),
            key="algorithm.curiosity.auxiliary",
        )
