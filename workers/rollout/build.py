"""Who sits where: a seat for each agent of a policy in each group of copies, with streams numbered through.

In flow: a policy's plan. Out flow: its seats by (agent, group), and who looks over their shoulders.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.config.checks import dealt
from protocol.config.run import EnvironmentConfig, FrozenPolicy, Run
from protocol.experience.shared_obs import SharedObs, SharedObsWriter
from protocol.spaces import World
from workers.planning.auxiliary_plan import AuxiliaryPlan
from workers.planning.fixed_policy_plan import FixedPolicyPlan, check_frozen
from workers.planning.policy_plan import PolicyPlan
from workers.policies.export import from_checkpoint
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector, Sender
from workers.rollout.auxiliary_writer import AuxiliaryWriter, TeeSender
from workers.rollout.inference import AnySeat
from workers.rollout.players.fixed_collector import Collector, FixedCollector, FixedPlayer
from workers.rollout.players.frozen_player import FrozenPlayer
from workers.rollout.players.scripted_player import build_scripted_player
from workers.runtime.seeds import seed_of

log = logging.getLogger(__name__)


class Collectors:
    """All seats of one actor by (agent, group), by policy, and those whose policies learn; each agent's policy."""

    def __init__(self) -> None:
        self.seats: dict[tuple[int, int], AnySeat] = {}
        self.of: dict[str, list[AgentCollector | FixedCollector]] = {}
        self.writing: list[AgentCollector] = []
        self.policy_of: dict[int, str] = {}

    def add(self, policy: str, seats: Mapping[tuple[int, int], AgentCollector | FixedCollector]) -> None:
        """Those of one policy."""
        self.seats |= seats
        self.of[policy] = [*seats.values()]
        self.policy_of |= {agent: policy for agent, _ in seats}
        self.writing += [seat for seat in seats.values() if isinstance(seat, AgentCollector)]

    @property
    def idle(self) -> list[Collector]:
        """Seats in which (some) actions are of those who do not learn."""
        return [seat for seat in self.seats.values() if not isinstance(seat, AgentCollector)]

    @property
    def fixed_steps(self) -> int:
        """Actions of those who do not learn."""
        return sum(seat.steps for seat in self.idle)

    @property
    def open_rows(self) -> int:
        """Rows acted that are in no finished segment yet."""
        return sum(seat.open_rows for seat in self.writing)


@dataclass(frozen=True, slots=True)
class ActorAssignment:
    """What one actor plays of a run: its `groups`, by their numbers in the run, and of whose `seed_scope` (in lock-step
    nobody's: a group's is its own)."""

    groups: range
    seed_scope: tuple[object, ...]

    @classmethod
    def of(cls, run: Run, index: int, actor: tuple[str, int]) -> ActorAssignment:
        """That of actor number `index`, which has a name and an incarnation."""
        return cls(dealt(run, index), ()) if run.lockstep else cls(range(run.groups), actor)

    def noise(self, seed: int, agent: int, group: int) -> np.random.Generator:
        """Counter-based: its numbers depend on nothing but who draws and how often."""
        names = ("noise", *self.seed_scope, agent, *([group] if group else []))
        return np.random.Generator(np.random.Philox(seed_of(seed, *names)))


def build_collectors(
    plan: PolicyPlan,
    world: World,
    performer: ActingPolicy,
    sender: Sender,
    seed: int,
    hand: ActorAssignment,
    common: SharedObsWriter | None = None,
    given: int | None = None,
) -> dict[tuple[int, int], AgentCollector]:
    """The seats of all agents of `plan`, or of another agent that it is `given`, by agent and place among the groups of
    `hand`; the noise of their actions comes from the run's `seed`, the hand, the agent and the group."""
    seats = {}
    for position, agent in enumerate(plan.agents) if given is None else [(len(plan.agents) + given, given)]:
        for place, group in enumerate(hand.groups):
            first = position * plan.copies * plan.agents_per_copy + group * plan.block
            name, streams = world.agents[agent].name, range(first, first + plan.block)
            noise, after = hand.noise(seed, agent, group), plan.config.flush_after
            seats[agent, place] = AgentCollector(name, performer, sender, streams, noise, after, common=common)
    return seats


def with_auxiliaries(
    plan: PolicyPlan,
    policies: Mapping[str, PolicyPlan],
    auxiliaries: Mapping[str, AuxiliaryPlan],
    senders: Mapping[str, Sender],
    common: SharedObsWriter | None = None,
) -> Sender:
    """The sender of `plan`'s seats; what auxiliaries watch of them goes to `senders` of theirs as well."""
    reader = None if common is None else SharedObs(common.ring)
    witnesses = [
        AuxiliaryWriter(plan.interface, senders[name], one.first_stream(plan, policies), one.config.fraction, reader)
        for name, one in auxiliaries.items()
        if plan.name in one.observes
    ]
    return TeeSender(senders[plan.name], witnesses) if witnesses else senders[plan.name]


def build_fixed_collectors(
    plan: FixedPolicyPlan, world: World, where: EnvironmentConfig, seed: int, hand: ActorAssignment
) -> dict[tuple[int, int], FixedCollector]:
    """The same for a policy that does not learn, which is loaded or made here; ConfigurationError where it cannot be,
    or does not fit."""
    algorithm = plan.algorithm
    frozen = _frozen(plan, world) if isinstance(algorithm, FrozenPolicy) else None
    seats = {}
    for agent in plan.agents:
        place = world.places[agent]
        streams = plan.block * place.many
        for number, group in enumerate(hand.groups):
            noise = hand.noise(seed, agent, group)
            player: FixedPlayer
            if isinstance(algorithm, FrozenPolicy):
                assert frozen is not None
                player = FrozenPlayer(frozen, plan.block, None if algorithm.greedy else noise, place.many)
            else:
                player = build_scripted_player(plan.name, algorithm, place, streams, noise, where)
            seats[agent, number] = FixedCollector(place.name, player, streams)
    return seats


def _frozen(plan: FixedPolicyPlan, world: World) -> ExportedPolicy:
    check_frozen(plan, world)
    path = Path(plan.source)
    frozen = ExportedPolicy(*from_checkpoint.read(path)) if path.is_dir() else ExportedPolicy.load(path)
    source = frozen.manifest.provenance
    log.info(
        "event=frozen policy=%s path=%s run=%s version=%d train_steps=%d",
        plan.name,
        path,
        source.run,
        source.version,
        source.train_steps,
    )
    return frozen
