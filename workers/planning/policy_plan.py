"""What follows from a run's configuration and its world: who plays what, how large rings are. Pure, but for `ring`.

Legend: `E` copies, `C` agents that one template stands for in a copy (1 for a named agent), `T` segment length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from protocol.config.network import CellCore
from protocol.config.on_policy import FEW_SEGMENTS, Curiosity
from protocol.config.run import (
    BC,
    GAME,
    IMPALA,
    PPO,
    QMIX,
    RND,
    VDN,
    AuxiliaryConfig,
    Dataset,
    OnStream,
    PolicyConfig,
    Replayed,
    Run,
    Sampled,
    Streamed,
    parse_run,
)
from protocol.config.trainable import DeclaredOutput, Discounted
from protocol.errors import ConfigurationError
from protocol.experience.flow_control import CreditWindow, blocks_of
from protocol.experience.layout import OUTPUT, Layout, common_layout, common_of, segment_layout
from protocol.experience.ring_buffer import Ring
from protocol.experience.validation import ActionCheck
from protocol.memory.shared_file import Counters
from protocol.messages import compression
from protocol.spaces import Box, Place, World
from workers.environments.simulators import EXTERNAL
from workers.environments.simulators.simulator_settings import environment_for_actor
from workers.planning.compatibility import incompatibility
from workers.planning.data_parallel import check_ranks
from workers.planning.league_plan import plan_league
from workers.planning.rate_limiter import RateLimiter
from workers.policies.interface import Interface
from workers.policies.observation_encoding import is_image
from workers.policies.team_layout import members_of

LayoutFields = Mapping[str, Sequence[Any]]
"""Of policies by name: the fields of their layouts, as `Layout.describe` has them."""
_BEYOND = 1_000_000
"""Steps that an actor may make beyond its quota, as its copies force on it."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What has a ring in each actor and a member in a learner: a policy, or what learns beside policies. `agents` are
    the indices of the agents whose rows these are; `interface` is what such an agent is shown and does. `common`: the
    layout of common observations, where segments refer to any."""

    name: str
    agents: tuple[int, ...]
    interface: Interface
    config: PolicyConfig | AuxiliaryConfig
    layout: Layout
    copies: int
    groups: int
    actors: int
    lock_timeout: float
    common: Layout | None = None
    lockstep: bool = False
    """Whether actors share copies and groups; else each has as many."""
    of_copies: int = 0
    """Of how many copies these are the ones in which its agents learn, in a league; 0: they learn in all."""

    @property
    def streams(self) -> int:
        """Streams in one actor, or in all that share the copies."""
        return len(self.agents) * self.copies * self.agents_per_copy

    def fraction_of_steps(self, world: World) -> float:
        """How much of all agents' steps these are, where all agents are there all the time."""
        learning = self.copies / (self.of_copies or self.copies)
        return learning * len(self.agents) * self.agents_per_copy / sum(place.many for place in world.places)

    @property
    def agents_per_copy(self) -> int:
        """C."""
        return self.interface.place.many

    @property
    def block(self) -> int:
        """Segments that are written and finish together: those of one agent in one group of copies."""
        return self.copies // self.groups * self.agents_per_copy

    @property
    def open_blocks(self) -> int:
        """Blocks that one actor writes at the same time."""
        groups = self.groups // self.actors if self.lockstep else self.groups
        return len(self.agents) * groups

    @property
    def credit_blocks(self) -> int:
        """Blocks that one actor may have in flight."""
        credits = self.config.credits
        return 2 * self.open_blocks if credits is None else blocks_of(credits, self.block)

    @property
    def most_announced(self) -> int:
        """Segments that one actor may have in flight."""
        return self.credit_blocks * self.block

    @property
    def most_seats(self) -> int:
        """Seats that one actor's ring has blocks for, while one block more comes and goes."""
        return self.blocks - self.kept_blocks - 1

    @property
    def kept_blocks(self) -> int:
        """Blocks that one actor's ring keeps for replay."""
        algorithm = self.config.algorithm
        if not isinstance(algorithm, Replayed) or not self.actors:
            return 0
        if self.lockstep:  # as many of each stream
            return max(1, algorithm.buffer_capacity // (self.layout.length * self.streams)) * self.open_blocks
        return max(1, algorithm.buffer_capacity // (self.layout.length * self.block * self.actors))

    @property
    def kept_rows(self) -> int:
        """Rows that all actors' rings keep for replay."""
        return self.kept_blocks * self.block * self.layout.length * self.actors

    @property
    def flow(self) -> Literal["block", "drop_oldest", "drop_newest"]:
        """What an actor does that has no credit."""
        if self.config.flow is not None:
            return self.config.flow
        return "block" if self.lockstep or self.config.algorithm.mode == "stream" else "drop_oldest"

    @property
    def blocks(self) -> int:
        """Blocks in one actor's ring."""
        spare = 0 if self.flow == "block" else self.open_blocks
        return self.open_blocks + self.credit_blocks + self.kept_blocks + spare

    def ring(self, path: Path | None, counters: Counters | None) -> Ring:
        """A new ring for one actor's segments, at `path` or private to this process."""
        locked = self.config.ring == "locked"
        timeout = self.lock_timeout if locked else None
        return Ring.create(path, self.layout, self.blocks * self.block, self.config.checksums, timeout, counters)

    def credit(self) -> CreditWindow:
        """The credit of one actor's ring."""
        algorithm = self.config.algorithm
        return CreditWindow(self.blocks, self.credit_blocks, self.open_blocks, algorithm.mode, self.flow)

    def rate_limiter(self) -> RateLimiter:
        """What paces replay."""
        algorithm = self.config.algorithm
        assert isinstance(algorithm, Replayed)
        start = max(algorithm.learning_starts, self.batch_rows)  # or both sides could wait for the first batch
        insertion = self.block * self.layout.length
        return RateLimiter(algorithm.replay_ratio, start, self.batch_rows, insertion, algorithm.error_buffer)

    @property
    def batch_rows(self) -> int:
        """Rows of a batch that is sampled: of who remembers those of whole segments, one at least."""
        algorithm, length = self.config.algorithm, self.layout.length
        assert isinstance(algorithm, Sampled)
        whole = isinstance(self.config, PolicyConfig) and self.remembers
        return max(1, algorithm.batch_size // length) * length if whole else algorithm.batch_size

    @property
    def dataset(self) -> Dataset | None:
        """What is learned from instead of from actors."""
        return self.config.dataset if isinstance(self.config, PolicyConfig) else None

    @property
    def static(self) -> bool:
        """Whether all there will ever be to learn from is there at first."""
        return self.dataset is not None

    @property
    def ranks(self) -> int:
        """Learner processes that train this together."""
        return self.config.ranks if isinstance(self.config, PolicyConfig) else 1

    @property
    def recorded(self) -> bool:
        """Whether what a learner receives is kept."""
        return isinstance(self.config, PolicyConfig) and self.config.record

    @property
    def remembers(self) -> bool:
        """Whether a core gives on what was seen before."""
        return self.config.network.core is not None

    @property
    def batch_segments(self) -> int:
        """Segments in a batch of the stream mode."""
        algorithm = self.config.algorithm
        few = isinstance(algorithm, IMPALA) or self.remembers
        usual = min(self.streams, FEW_SEGMENTS) if few else self.streams
        return algorithm.segments or usual if isinstance(algorithm, Streamed | RND) else 0

    @property
    def minibatches(self) -> int:
        """Parts of such a batch, each of which makes one step."""
        algorithm = self.config.algorithm
        if not isinstance(algorithm, OnStream):
            return 1
        return algorithm.parts(self.batch_segments, self.layout.length, self.remembers)

    @property
    def check(self) -> ActionCheck | None:
        """What the actions in its segments must pass; None where there are none."""
        return ActionCheck(self.interface.place)

    @property
    def curiosity(self) -> Curiosity | None:
        """What is rewarded beside what the world gives; None: nothing."""
        algorithm = self.config.algorithm
        return algorithm.curiosity if isinstance(algorithm, Streamed) else None

    @property
    def pool_slots(self) -> int:
        """Slots for what remote actors send."""
        return self.actors * (self.credit_blocks + 1 + self.kept_blocks) * self.block


@dataclass(frozen=True, slots=True)
class PolicyPlan(TrainingPlan):
    """One policy of a run, which plays `agents`, who are alike."""

    config: PolicyConfig

    @property
    def modular(self) -> bool:
        """Whether its network has parts that torch alone computes."""
        core = self.config.network.core
        known = core is None or (isinstance(core, CellCore) and isinstance(self.config.algorithm, Streamed))
        known &= not self.config.declares
        return self.interface.encoder is not None or not known


def plan_policies(run: Run, world: World, fields: LayoutFields | None = None) -> dict[str, PolicyPlan]:
    """The plan of every policy that learns, in the order in which the world names their agents; raises
    ConfigurationError. `fields`: of layouts that another process planned; None: the user's own code is asked."""
    mapping, league = run.policy_of(world), plan_league(run, world)
    players = league.players if league is not None else {}
    names = [name for name in dict.fromkeys((*mapping.values(), *players)) if run.fixed(name) is None]
    plans: dict[str, PolicyPlan] = {}
    where, box = run.environment, common_of(world)
    common = None
    if box is not None and names:
        moments = min(run.policy_config(name).segment_length for name in names)
        common = common_layout(box, where.copies // run.groups, moments)
    for name in names:
        agents = tuple(i for i, agent in enumerate(world.agents) if mapping[agent.name] == name)
        if league is not None:
            agents = players[name].agents
        plan = _planned(run, world, name, agents, common, fields)
        if league is not None:
            plan = replace(plan, copies=league.copies_per_slot * run.groups, of_copies=where.copies)
        _check_sources(plan)
        check_ranks(run, name, plan.config, names)
        if plan.actors:
            _check(plan)
        if plan.lockstep:
            _check_lockstep(plan, where.id)
        check_places(plan, [world.places[i] for i in agents])
        plans[name] = plan
    return plans


def plan_added(run: Run, world: World, added: Mapping[str, Mapping[str, Any]]) -> dict[str, PolicyPlan]:
    """The same of policies that `run`'s roster has beside its own, by name: each has the section `policy`, and the
    spaces of the `agent`, which it may be given; and the `fields` of its layout where only code can tell these."""
    every = with_policies(run, {name: told["policy"] for name, told in added.items()})
    plans = {}
    for name, told in added.items():
        agent = next(i for i, one in enumerate(world.agents) if one.name == told["agent"])
        fields = {name: told["fields"]} if "fields" in told else None
        plans[name] = plan = _planned(every, world, name, (agent,), None, fields)
        _check_sources(plan)
        _check(plan)
        check_places(plan, [world.places[agent]])
    return plans


def with_policies(run: Run, sections: Mapping[str, Any]) -> Run:
    """`run` with more policies, whose `sections` are checked as those of a configuration are."""
    return parse_run({**run.model_dump(), "policies": {**run.policies, **sections}}) if sections else run


def _planned(
    run: Run,
    world: World,
    name: str,
    agents: tuple[int, ...],
    common: Layout | None,
    fields: LayoutFields | None,
) -> PolicyPlan:
    """That of one policy, which has not been checked."""
    where, place = run.environment, world.places[agents[0]]
    games = where.id.startswith(GAME)  # whose moves are worth what they lead to, in however many
    config = _settled(run.policy_config(name), place, world, games)
    clocked = environment_for_actor(run, run.actors).id == EXTERNAL and run.actors > 0
    interface = Interface.at(world, place, config)
    if fields is None:
        config = _declaring(config, _declared(interface, config))
        state = _state_size(interface, config)
    else:
        state, declares = _told(fields.get(name, ()))
        config = _declaring(config, declares)
    few_ends = not run.lockstep and config.dataset is None and not config.record
    layout = segment_layout(world, place, config, clocked, state, few_ends)
    size = where.copies, run.groups, run.actors, run.lock_timeout
    return PolicyPlan(name, agents, interface, config, layout, *size, common, run.lockstep)


def _settled(config: PolicyConfig, place: Place, world: World, games: bool) -> PolicyConfig:
    """With what goes by the world where nothing was given: a `gamma` that goes with how long its episodes are, if that
    is known, whether observations are normalized, and how PPO goes about actions that hold numbers."""
    algorithm, keys = config.algorithm, dict[str, Any]()
    if isinstance(algorithm, Discounted):
        keys["gamma"] = algorithm.discount_in(None if games else world.episode_steps)
    if isinstance(algorithm, PPO | BC) and algorithm.normalize_observation is None:
        seen = [leaf.space for leaf in place.leaves if leaf.role not in ("action", "action_mask")]
        boxes = (isinstance(space, Box) and space.dtype.startswith("float") for space in seen)
        floats = all(boxes) and not any(map(is_image, seen))
        keys["normalize_observation"] = floats and not games
    if isinstance(algorithm, PPO):
        numbers = any(isinstance(leaf.space, Box) for leaf in place.acted.leaves)
        if algorithm.epochs is None:
            keys["epochs"] = 10 if numbers else algorithm.passes
        if algorithm.entropy_coefficient is None:
            keys["entropy_coefficient"] = 0.0 if numbers else algorithm.entropy_weight
    return config.model_copy(update={"algorithm": algorithm.model_copy(update=keys)})


def _told(fields: Sequence[Any]) -> tuple[int, tuple[DeclaredOutput, ...] | None]:
    """What of a layout's `fields` the user's own code may have said: numbers that the policy remembers, and what of its
    outputs segments keep."""
    kept = [
        DeclaredOutput(name=name.removeprefix(OUTPUT), shape=shape, dtype=dtype)
        for name, dtype, shape, _ in fields
        if name.startswith(OUTPUT)
    ]
    return sum(shape[0] for name, _, shape, _ in fields if name == "state"), tuple(kept) or None


def _declared(interface: Interface, config: PolicyConfig) -> tuple[DeclaredOutput, ...] | None:
    """Outputs that an algorithm of the user's own declares."""
    if getattr(config.algorithm, "entry", None) is None:
        return None
    from workers.policies.networks.declared_outputs import declared_outputs

    return declared_outputs(config, interface.action_encoding)


def _declaring(config: PolicyConfig, declares: tuple[DeclaredOutput, ...] | None) -> PolicyConfig:
    """`config` with what its algorithm declares, which nobody is to give."""
    if config.declares:
        raise ConfigurationError("unknown_key", key="policy.algorithm.declares", meant="")
    if declares is None:
        return config
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"declares": declares})})


def _state_size(interface: Interface, config: PolicyConfig) -> int:
    """Numbers that a policy remembers of each stream. A core that is a torch module says it itself: it is built as in
    the run."""
    core = config.network.core
    if core is None or isinstance(core, CellCore):
        members = len(members_of(interface)) if isinstance(config.algorithm, VDN | QMIX) else 1
        return 0 if core is None else members * core.state
    if incompatibility(config.algorithm, interface) is not None:
        return 0  # and it is refused for that, once there is a plan of it
    from workers.policies.build import build, state_size

    return state_size(build(interface, config, 0))


def most_steps(quota: int) -> int:
    """Agent steps, of all policies, that an incarnation can have made."""
    return 2 * quota + _BEYOND


def check_places(plan: PolicyPlan, places: list[Place]) -> None:
    """Blocks of one policy are equal, and an algorithm knows some actions only."""
    first = places[0]
    for place in places:
        if place.many != first.many:
            raise ConfigurationError(
                "shared_policy_of_unequal_agents",
                policy=plan.name,
                agent=first.name,
                count=first.many,
                other=place.name,
                other_count=place.many,
                key="agents",
            )
    plan.interface.action_encoding.order(plan.config.network.autoregressive)
    what = incompatibility(plan.config.algorithm, plan.interface)
    if what is not None:
        raise ConfigurationError("agent_not_learnable", policy=plan.name, agent=first.name, reason=what)


def _check_sources(plan: PolicyPlan) -> None:
    """Experience comes from actors or from a dataset, for all policies of a run alike."""
    config = plan.config
    if config.dataset is not None and plan.actors:
        raise ConfigurationError("dataset_with_actors", policy=plan.name, key="actors")
    if config.dataset is None and not plan.actors:
        raise ConfigurationError("no_source_of_experience", policy=plan.name, key="policy.dataset")
    stacks = isinstance(config.algorithm, OnStream) and config.algorithm.frames > 1
    if config.compile and (plan.modular or stacks):
        found = "frames of a stream" if stacks else "an encoder, or a core that torch alone computes"
        raise ConfigurationError("compile_not_possible", policy=plan.name, found=found, key="policy.compile")
    if plan.common is not None and (config.record or config.dataset is not None):
        raise ConfigurationError("dataset_with_common_observations", policy=plan.name, key="policy.dataset")


def _check_lockstep(plan: PolicyPlan, world: str) -> None:
    """What can be told only here of what lock-step cannot keep in step."""
    if world == "external":
        raise ConfigurationError("lockstep_with_simulators", key="schedule")
    if plan.common is not None:
        raise ConfigurationError("lockstep_with_common_observations", environment=world, key="schedule")
    if plan.credit_blocks < plan.open_blocks:
        raise ConfigurationError(
            "lockstep_credits_too_few",
            policy=plan.name,
            value=plan.config.credits,
            expected=plan.open_blocks * plan.block,
            key="policy.credits",
        )


def _check(plan: PolicyPlan) -> None:
    algorithm = plan.config.algorithm
    if isinstance(algorithm, Replayed):
        reachable = plan.kept_rows
        if algorithm.learning_starts > reachable:
            raise ConfigurationError(
                "learning_starts_beyond_rings",
                policy=plan.name,
                value=algorithm.learning_starts,
                limit=reachable,
                key="policy.algorithm.learning_starts",
            )
        alone = reachable // plan.actors
        if algorithm.batch_size > alone:
            raise ConfigurationError(
                "batch_exceeds_ring",
                policy=plan.name,
                value=algorithm.batch_size,
                limit=alone,
                key="policy.algorithm.batch_size",
            )
        if algorithm.checkpoint_replay and plan.common is not None:
            raise ConfigurationError(
                "replay_kept_with_common_observations", policy=plan.name, key="policy.algorithm.checkpoint_replay"
            )
    elif isinstance(algorithm, PPO):
        units = algorithm.units(plan.batch_segments, plan.layout.length, plan.remembers)
        if units % plan.minibatches:
            raise ConfigurationError(
                "minibatches_do_not_divide_batch",
                policy=plan.name,
                count=units,
                what="segments" if units == plan.batch_segments else "rows",
                minibatches=plan.minibatches,
                key="policy.algorithm.minibatches",
            )
    if algorithm.frames - 1 > plan.config.segment_length:
        raise ConfigurationError(
            "segments_shorter_than_frames",
            policy=plan.name,
            frames=algorithm.frames,
            expected=algorithm.frames - 1,
            key="policy.segment_length",
        )
    try:
        plan.credit()  # both refuse what would deadlock
        if isinstance(algorithm, Replayed):
            plan.rate_limiter()
    except ConfigurationError as fault:
        raise fault.within(f"policy {plan.name!r}", policy=plan.name) from None
    compression.check_fields(plan.config.compress, plan.layout)
