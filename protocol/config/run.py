"""The run's configuration: typed, validated, frozen; an unknown key is an error.

In flows: a mapping (from YAML, `--set` or the wire). Out flow: a `Run`. Defaults follow the source documents where
they name one; the presets override them where training is better served. The sections for algorithms, auxiliaries and
environments have files of their own (on_policy.py, off_policy.py, auxiliary.py and environment.py here); users take
all of them from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from protocol.config.auxiliary import RND, AuxiliaryConfig
from protocol.config.base import AgentName, ConfigModel, Name, Settings, complaint
from protocol.config.checks import (
    check_compiled,
    check_lockstep,
    check_memory,
    check_own_network,
    check_start_kl,
    has_core,
)
from protocol.config.environment import EnvironmentConfig
from protocol.config.fixed_policy import FIXED, Fixed, FixedConfig, FrozenPolicy, ScriptedPolicy
from protocol.config.league import LeagueConfig, check_league
from protocol.config.network import AnyNetwork, EntryNetwork, Network
from protocol.config.off_policy import C51, DQN, IQN, QMIX, SAC, VDN, Replayed, ValueBased
from protocol.config.offline import BC, Dataset
from protocol.config.on_policy import IMPALA, PPO, OnStream, Streamed
from protocol.config.source_names import Multiprocessing, with_named_algorithms, without_aliases
from protocol.config.trainable import Computing, DeclaredOutput, Freeze, Learners, Start, StartKL, Trainable, settled
from protocol.errors import ConfigurationError
from protocol.spaces import World, policy_map

__all__ = [
    "BC",
    "C51",
    "DQN",
    "IMPALA",
    "IQN",
    "PPO",
    "QMIX",
    "RND",
    "SAC",
    "VDN",
    "AuxiliaryConfig",
    "Dataset",
    "EnvironmentConfig",
    "EvaluationConfig",
    "Fixed",
    "FrozenPolicy",
    "HookConfig",
    "LeagueConfig",
    "Multiprocessing",
    "Network",
    "OnStream",
    "PolicyConfig",
    "Replayed",
    "Run",
    "Sampled",
    "ScriptedPolicy",
    "Streamed",
    "parse_run",
]

Sampled = Replayed | BC
"""Algorithms whose batches are rows that are sampled, any number of times."""


MOST_STEPS = 10**15
"""More than a run can make: thirty years at a million a second; for one without an end."""
_SAID = 300
"""Characters of what was given that a sentence repeats."""


_ON_REPLAY = {"segment_length": 8, "sync_interval": 8}
"""Rows are learned from, and what was learned is acted on, while they are new: reference implementations update after
each step (Stable-Baselines3's SAC), 4 (its DQN) or 10 (CleanRL's)."""
_DEEP_Q, _WIDE = (Network(hidden=units, activation="relu").model_dump() for units in ((120, 84), (256, 256)))
_UNROLLED = {"segment_length": 50, "sync_interval": 10, "publish_interval": 1, "max_grad_norm": 40.0}
_USUAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("vdn", "qmix"), _ON_REPLAY),
    **{name: {**_ON_REPLAY, "network": _DEEP_Q} for name in ("iqn", "dqn", "c51")},
    "sac": {**_ON_REPLAY, "learning_rate": 3e-4, "network": _WIDE},
    "impala": {**_UNROLLED, "learning_rate": 5e-4},
    "ppo": {"learning_rate": 5e-4},
}
"""Defaults of a policy that go with an algorithm. Networks are those of CleanRL's dqn.py, with which IQN came to 500 on
CartPole in 100,000 steps (two layers of 64 with tanh: 120), and of Stable-Baselines3's SAC; IMPALA's numbers
are RLlib's (`IMPALAConfig`) but for its batches (protocol/config/on_policy.py) and for weights, which are looked for
within a segment: else one seed in ten of CartPole ended at 279. PPO's rate is that of Yu et al. (2022,
arXiv:2103.01955); with CleanRL's 2.5e-4, which is meant for 4 streams, LunarLander came to 194 and 93, with 5e-4 to 229
and 257, with 1e-3 to 224 and 190 (seeds 0 and 2)."""


_REMEMBERING: dict[Any, dict[str, Any]] = {
    **{name: {"segment_length": 32} for name in ("iqn", "dqn", "c51", "vdn", "qmix")},
    "ppo": {"learning_rate": 1e-3},
}
"""The same of a policy with a core. PPO's rate is that of Stable-Baselines3's zoo for CartPole without velocities."""


GAME = "openspiel:"
_IN_GAMES = {"entropy_coefficient": 0.1}
"""A default of PPO in OpenSpiel's games, where whoever is sure of a move is beaten by who knows it: the best of Rudolph
et al. (2025, arXiv:2502.08938) in liar's dice, as their repository IIG-RL-Benchmark lists it."""


_STACKED = {"segment_length": 64}
"""The same of one on replay that stacks frames: a segment repeats the rows before it, so that in segments of 8 rows a
stack of 4 takes 1.6 times the memory of its frames, in those of 64 rows 1.08 times."""


def _usual(algorithm: Mapping[str, Any], network: Any) -> dict[str, Any]:
    """Defaults of a policy whose `algorithm` and `network` are given so."""
    name = algorithm["name"]
    usual = _USUAL.get(name, {}) if isinstance(name, str) else {}
    remembering = _REMEMBERING.get(name, {}) if has_core(network) else {}
    stacked = _ON_REPLAY.items() <= usual.items() and algorithm.get("frames", 1) != 1
    return {**usual, **remembering, **(_STACKED if stacked else {})}


def _another(given: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether `given` is no change of the network `before`: another class of the user's own, or parts in its place."""
    if given.get("entry", before.get("entry")) != before.get("entry"):
        return True
    return "entry" in before and "entry" not in given and not Network.model_fields.keys().isdisjoint(given)


class PolicyConfig(Trainable):
    """One policy: its algorithm, network, optimiser, ring and publication."""

    algorithm: Annotated[PPO | IMPALA | IQN | DQN | C51 | VDN | QMIX | SAC | BC, Field(discriminator="name")] = Field(
        default_factory=PPO
    )
    """How it learns."""
    network: AnyNetwork = Field(default_factory=Network, alias="model_config")
    """What it computes with; `model_config` is the same key. By default `activation: relu` with `hidden: [120, 84]` for
    `iqn`, `dqn` and `c51` (CleanRL's dqn.py), with `hidden: [256, 256]` for `sac` (Stable-Baselines3)."""
    segment_length: int = Field(default=64, ge=1, le=65_535)
    """Steps of a segment; with an algorithm on replay 8 by default, which trains while what it trains on is new, 32
    where that remembers (`network.core`), 64 where it stacks `frames`, and with `impala` 50 (RLlib)."""
    flow: Literal["block", "drop_oldest", "drop_newest"] | None = None
    """What an actor does that has no credit: wait, overwrite its oldest segment (in replay only where its learner is
    silent), or discard the new one; None: `drop_oldest` in replay, `block` otherwise and in lock-step."""
    flush_after: float | None = Field(default=None, gt=0)
    """Seconds after which a segment is sent although it is not full; None: never."""
    sync_interval: int = Field(default=50, ge=1)
    """Turns from one look for new weights to the next; with an algorithm on replay 8 by default, with `impala` 10."""
    ranks: int = Field(default=1, ge=1, le=1024)
    """Learner processes that train this policy together, each on the segments of its own actors (data parallel)."""
    compile: bool = False
    """Let torch.compile make one kernel of many operations in the updates of ppo, impala, iqn and dqn; where there is
    no compiler they run one operation at a time."""
    record: bool = False
    """Keep every segment that the learner receives in the run's folder, as a dataset."""
    dataset: Dataset | None = None
    """Learn from this instead of from actors."""
    start: Start | None = None
    """Begin with weights of an earlier run, by a section or by its `path` alone; None: with new ones, by `seed`."""

    @model_validator(mode="before")
    @classmethod
    def _alias(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            data = without_aliases(data)
            if isinstance(given := data.get("algorithm", {}), Mapping):
                data["algorithm"] = {"name": "ppo", **given}
                if (name := data["algorithm"]["name"]) in FIXED:
                    raise ConfigurationError("fixed_policy_in_common", algorithm=name, key="algorithm")
                usual = _usual(data["algorithm"], data.get("network"))
                data = {**usual, **data}
                if "network" in usual and isinstance(data["network"], Mapping) and "entry" not in data["network"]:
                    data["network"] = {**usual["network"], **data["network"]}
        return data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        algorithm = self.algorithm
        self._static()
        if self.compile:
            check_compiled(self)
        if isinstance(self.network, EntryNetwork):
            check_own_network(algorithm)
        if not isinstance(algorithm, Streamed):
            check_memory(self)
        check_start_kl(self)
        if self.network.share_layers and (not isinstance(algorithm, Streamed) or algorithm.central_critic):
            raise ConfigurationError("layers_not_shareable", key="network.share_layers")
        if self.network.autoregressive and not isinstance(algorithm, Streamed | BC):
            raise ConfigurationError("autoregressive_refused", algorithm=algorithm.name, key="network.autoregressive")
        if isinstance(algorithm, Replayed):
            if algorithm.learning_starts > algorithm.buffer_capacity:
                raise ConfigurationError(
                    "learning_starts_unreachable",
                    value=algorithm.learning_starts,
                    limit=algorithm.buffer_capacity,
                    key="algorithm.learning_starts",
                )
            if self.flow == "drop_newest":
                raise ConfigurationError("drop_newest_with_replay", key="flow")
        if isinstance(algorithm, Streamed) and algorithm.zero_start and self.network.core is None:
            raise ConfigurationError("zero_start_without_recurrence", key="algorithm.zero_start")
        return self

    @property
    def declares(self) -> tuple[DeclaredOutput, ...]:
        """Outputs of its network that a class of the user's own declares."""
        return getattr(self.algorithm, "declares", None) or ()

    @property
    def freeze(self) -> Freeze | None:
        """What of it stays as it started."""
        return None if self.start is None else self.start.freeze

    @property
    def kl(self) -> StartKL | None:
        """How near it is kept to what it started as."""
        return None if self.start is None else self.start.kl

    def _static(self) -> None:
        """ValueError where algorithm, dataset and record do not go together."""
        if isinstance(self.algorithm, BC) and self.dataset is None:
            raise ConfigurationError("dataset_missing", key="dataset")
        if self.dataset is not None and isinstance(self.algorithm, Streamed):
            raise ConfigurationError("dataset_not_on_policy", algorithm=self.algorithm.name, key="dataset")
        if self.dataset is not None and self.record:
            raise ConfigurationError("record_with_dataset", key="record")


class EvaluationConfig(ConfigModel):
    """Whole episodes with exploration off, by a process of its own, on one set of seeds: in the test side of a split,
    in all members of another collection, else in the world itself (protocol/config/environment.py)."""

    every_steps: int | None = Field(default=None, ge=1)
    """Agent steps of the run from one evaluation to the next."""
    every_seconds: float | None = Field(default=None, gt=0)
    """Seconds from one evaluation to the next; with `every_steps`, whichever comes first."""
    episodes: int = Field(default=20, ge=1, le=1_000_000)
    """At least so many in each environment."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the episodes, which are the same in every evaluation, and in every run that has the same one."""

    @model_validator(mode="after")
    def _due(self) -> Self:
        if self.every_steps is None and self.every_seconds is None:
            raise ConfigurationError("evaluation_without_interval", key="evaluation")
        return self


class HookConfig(ConfigModel):
    """A class of the user's own that is told what happens (launch/docs/guides/hooks.md)."""

    hook: str
    """`module:Class`, which alone may stand in place of the section."""
    settings: Settings = Field(default_factory=dict)
    """What it is made with, as keyword arguments."""
    on_error: Literal["warn", "stop"] = "warn"
    """What an error of it is besides a finding: nothing, or the end of the run, incomplete."""

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        return {"hook": data} if isinstance(data, str) else data


class Run(ConfigModel):
    """Everything a run is."""

    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    """What is played."""
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    """What every policy has in common."""
    policies: dict[Name, Settings] = Field(default_factory=dict)
    """Overrides by policy name, or what a policy is that does not learn (protocol/config/fixed_policy.py)."""
    agents: dict[AgentName, Name] = Field(default_factory=dict)
    """agent -> policy; an agent not named has a policy of its own, called like the agent."""
    auxiliaries: dict[Name, AuxiliaryConfig] = Field(default_factory=dict)
    """What learns beside the policies from what their agents see, by name."""
    actors: int = Field(default=1, ge=0, le=10_000)
    """Actor processes; none where every policy has a dataset."""
    schedule: Literal["asynchronous", "lockstep"] = "asynchronous"
    """Actors never wait for learners, or all keep in step: the same bits with any number of actors, which share
    `environment.copies` then (protocol/config/checks.py)."""
    replay: str | None = None
    """Folder of a run with `record`, whose learners learn again by themselves, in one process and to the same bits."""
    commands: str | None = None
    """Lock-step: folder of a run whose commands to its policies (`rookery roster`) are followed again, each before the
    same round."""
    act_block: int = Field(default=16, ge=4)
    """Lock-step: copies that one actor plays together; single rows give other bits, so 4 at least."""
    lockstep_checkpoint_rounds: int = Field(default=100, ge=0)
    """Lock-step: rounds between checkpoints of all workers, to the last of which all go back when one dies; 0: none."""
    learners: Learners = "process"
    """Which policies and auxiliaries share a learner process (protocol/config/trainable.py)."""
    num_learner_processes: int | None = Field(default=None, ge=1)
    """Processes of `learners: cohort`, which a number alone implies, or at most of each kind of `auto`; None: one."""
    cohort: Computing = "auto"
    """How several policies in one process are computed."""
    steps: int = Field(default=10_000_000, ge=1, le=MOST_STEPS)
    """Agent steps until the run ends; without actors, rows that are trained on."""
    until: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Agent steps (rows) at which this run ends before `steps`, by which schedules go on as if it did not."""
    schedule_steps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Agent steps over which learning rate, entropy's weight, exploration and priorities go from their first values to
    their last, which hold from there; None: `steps`."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall-clock limit, whichever comes first."""
    target_return: float | None = Field(default=None, allow_inf_nan=False)
    """The run ends once the newest hundred episodes or so of every policy that learns earned this in the mean."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of worlds, first weights and everything that is drawn."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where learners compute; auto: on a GPU if there is one."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of what learners' networks multiply, and of what their hidden layers say; weights, moments, gradients, losses and
    what networks tell are float32."""
    act_device: Literal["cpu", "cuda"] = "cpu"
    """Where the policies of actors that tell a value compute; a GPU may be the learners' own."""
    device_per_agent: bool = False
    """Spread learners (and actors with `act_device: cuda`) over all GPUs of a node instead of using the first."""
    transport: Literal["auto", "memory", "tcp"] = "auto"
    """How segments and weights travel: shared memory where both ends see it, or always one of the two."""
    actor_timeout: float = Field(default=10.0, gt=0)
    """Seconds without a heartbeat until an actor is considered lost, and that it has to stop."""
    learner_timeout: float = Field(default=10.0, gt=0)
    """The same for a learner."""
    monitor_period: float = Field(default=1.0, gt=0, le=60)
    """Seconds between two looks at the workers' life."""
    stall_timeout: float = Field(default=120.0, gt=0)
    """Seconds without a turn of a worker's loop until it counts as hung, or without a step of anybody until it is told
    who waits for what."""
    lock_timeout: float = Field(default=1.0, gt=0, le=60)
    """Seconds that a worker waits for the lock of a `ring: locked` before it gives up."""
    starvation_sleep: float = Field(default=0.01, gt=0, le=10)
    """Longest sleep of a starved learner between two looks; data wake it at once."""
    restarts: int = Field(default=3, ge=0)
    """Times a worker that died is started again."""
    checkpoint_interval: float = Field(default=30.0, gt=0)
    """Seconds between two checkpoints of a policy; one more is written at the end."""
    checkpoint_steps: int | None = Field(default=None, ge=1)
    """Agent steps between two checkpoints as well, counted through all restarts; None: by time alone."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the newest checkpoints of a policy are kept, besides the best."""
    keep_checkpoint_every: int | None = Field(default=None, ge=1)
    """Train steps of each so many of which the first checkpoint is kept for good as well; None: none is."""
    logging: bool = True
    """Write a log file for each worker."""
    log_interval: int = Field(default=100, ge=1)
    """Train steps between two lines in a learner's log."""
    log_format: Literal["text", "json", "both"] = "text"
    """`<worker>.log` for people, `<worker>.jsonl` for programs."""
    log_mebibytes: int = Field(default=64, ge=1)
    """Size at which a log file is put aside; three of them are kept."""
    log_dir: str = "./logs"
    """Where logs go, relative to the run's folder."""
    loggers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Who gets the measurements besides `metrics.jsonl` and TensorBoard; each needs the extra of its name."""
    multiprocessing: Multiprocessing = Field(default_factory=Multiprocessing)
    """Three keys by the names that other documents have for them."""
    baseline_episodes: int = Field(default=200, ge=0)
    """Episodes of a random and of a scripted player, beside training, for returns to be compared with; 0: none."""
    evaluation: EvaluationConfig | None = None
    """How well the policies do without exploring, measured while they learn; None: it is not."""
    hooks: tuple[HookConfig, ...] = ()
    """Classes of the user's own that are told what happens, in the order in which they are called."""
    allow_entries: tuple[str, ...] | None = None
    """Code that policies may name which `rookery roster` adds, as `module:Class`; None: what this configuration names
    for its own. Hooks can never be added."""
    league: LeagueConfig | None = None
    """Who plays against whose past (protocol/config/league.py); None: all play with the newest weights of all."""

    @model_validator(mode="before")
    @classmethod
    def _in_games(cls, data: Any) -> Any:
        match data:
            case {"environment": {"id": str(id)}} if id.startswith(GAME):
                policy = data.get("policy", {})
                algorithm = policy.get("algorithm", {}) if isinstance(policy, Mapping) else None
                if isinstance(algorithm, Mapping) and algorithm.get("name", "ppo") == "ppo":
                    data = {**data, "policy": {**policy, "algorithm": {**_IN_GAMES, **algorithm}}}
        return data

    @model_validator(mode="after")
    def _agree(self) -> Self:
        mode = self.multiprocessing.mode
        if mode is not None:
            given = "publish_mode" in self.policy.model_fields_set
            if given and self.policy.publish_mode != mode:
                raise ConfigurationError("publish_mode_conflict", key="multiprocessing.mode")
            object.__setattr__(self, "policy", self.policy.model_copy(update={"publish_mode": mode}))
        learning = []
        learners = settled(self.learners, "learners" in self.model_fields_set, self.num_learner_processes)
        object.__setattr__(self, "learners", learners)
        for name in self.policies:
            try:
                if self.fixed(name) is None:
                    learning.append(self.policy_config(name))
            except ValidationError as fault:
                model = FixedConfig if fault.title == FixedConfig.__name__ else PolicyConfig
                raise complaint(fault, model, self.policies[name], f"policies.{name}") from None
        if self.until is not None and self.until > self.steps:
            raise ConfigurationError("until_beyond_steps", value=self.until, limit=self.steps, key="until")
        if self.target_return is not None and not self.actors:
            raise ConfigurationError("target_return_without_actors", key="target_return")
        if self.lockstep:
            check_lockstep(self, [self.policy, *learning])
        elif self.commands is not None:
            raise ConfigurationError("commands_without_lockstep", key="commands")
        if self.league is not None:
            check_league(self)
        if self.replay is not None and any(config.record for config in (self.policy, *learning)):
            raise ConfigurationError("record_with_replay", key="policy.record")
        return self

    @property
    def lockstep(self) -> bool:
        """Whether all workers keep in step."""
        return self.schedule == "lockstep"

    @property
    def end(self) -> int:
        """Agent steps, or rows, that this run makes at most."""
        return self.steps if self.until is None else self.until

    @property
    def horizon(self) -> int:
        """Agent steps, or rows, at which schedules have come to their ends."""
        return self.steps if self.schedule_steps is None else self.schedule_steps

    @property
    def lockstep_checkpoints(self) -> bool:
        """Whether checkpoints of all workers are made, to which all go back."""
        return self.lockstep and self.lockstep_checkpoint_rounds > 0

    @property
    def groups(self) -> int:
        """Groups of copies that are played in turn; in lock-step these are the blocks of all actors together."""
        return self.environment.copies // self.act_block if self.lockstep else self.environment.async_factor

    def on_cores(self, count: float) -> Self:
        """The same run, all of it on one machine with so many: where nothing says who shares a learner process, as is
        fastest there (workers/planning/cohorts.py)."""
        said = "learners" in self.model_fields_set and self.learners != "auto"
        if said or self.num_learner_processes or self.lockstep or self.cohort == "in_turn":
            return self
        return self.model_copy(update={"learners": "auto", "num_learner_processes": max(1, int(count))})

    def fixed(self, name: str) -> Fixed | None:
        """What policy `name` is if it does not learn; None if it does."""
        algorithm = self.policies.get(name, {}).get("algorithm")
        if not isinstance(algorithm, Mapping) or algorithm.get("name") not in FIXED:
            return None
        return FixedConfig.model_validate(self.policies[name]).algorithm

    @property
    def learning(self) -> list[PolicyConfig]:
        """What all have in common that learn, and what those are that have overrides."""
        return [self.policy, *(self.policy_config(name) for name in self.policies if self.fixed(name) is None)]

    def policy_config(self, name: str) -> PolicyConfig:
        """The configuration of policy `name`, which learns: the common one with its overrides, sections merged key by
        key.

        An override of `algorithm` that names another algorithm starts from that algorithm's defaults, and so do other
        keys where they are those of the common algorithm.
        """
        try:
            override = without_aliases(self.policies.get(name, {}))
        except ConfigurationError as fault:
            raise fault.within(f"policies.{name}", key=f"policies.{name}.{fault.key}", policy=name) from None
        base = self.policy.model_dump()
        usual = {**PolicyConfig().model_dump(), **_usual(base["algorithm"], base["network"])}
        parts: dict[str, Any] = {key: override[key] for key in ("algorithm", "network") if key in override}
        for key, value in {**parts, **override}.items():  # others last, as these drop what was given by default
            if key in parts and isinstance(value, Mapping):
                other = key == "algorithm" and value.get("name", base[key]["name"]) != base[key]["name"]
                if key == "algorithm" and value.get("entry", base[key].get("entry")) != base[key].get("entry"):
                    base[key] = self.policy.algorithm.model_dump(exclude=set(self.policy.algorithm.model_extra or ()))
                if key == "network":
                    base[key] = {} if _another(value, base.get(key, {})) else base.get(key, {})
                    value = {name: one for name, one in value.items() if (name, one) != ("entry", None)}
                if other:
                    base = {name: told for name, told in base.items() if told != usual[name]}
                elif base.get("segment_length") == usual["segment_length"]:
                    del base["segment_length"]  # which may be another one for who remembers or stacks, or does not
                base[key] = dict(value) if other else {**base.get(key, {}), **value}
            else:
                base[key] = value
        config = PolicyConfig.model_validate(base)
        algorithm = config.algorithm
        if isinstance(algorithm, ValueBased) and algorithm.exploration_steps is not None:
            part = {"exploration_fraction": min(1.0, algorithm.exploration_steps / self.horizon)}
            return config.model_copy(update={"algorithm": algorithm.model_copy(update=part)})
        return config

    def anchored(self) -> Run:
        """The same run, whose relative paths begin in the working directory of now: a user's code may change that."""
        data = self.model_dump()
        for policy in (data["policy"], *data["policies"].values()):
            if isinstance(policy.get("start"), str):
                policy["start"] = {"path": policy["start"]}
            for part in ("algorithm", "dataset", "start"):
                section = policy.get(part)
                if isinstance(section, dict) and isinstance(section.get("path"), str):
                    section["path"] = os.path.abspath(section["path"])
        folders = {key: data[key] and os.path.abspath(data[key]) for key in ("replay", "commands")}
        return self.model_validate(data | folders)

    def ranks(self, name: str) -> int:
        """Learner processes that train `name`, a policy or an auxiliary, together."""
        if name in self.auxiliaries or self.fixed(name) is not None:
            return 1
        return self.policy_config(name).ranks

    def policy_of(self, world: World) -> dict[str, str]:
        """agent -> policy for every agent of `world`; raises ConfigurationError where the two do not fit."""
        mapping = policy_map(world, self.agents)
        expected = self.multiprocessing.num_agents
        if expected is not None and expected != len(mapping):
            raise ConfigurationError(
                "agent_count_differs",
                expected=expected,
                environment=world.id,
                count=len(mapping),
                key="multiprocessing.num_agents",
            )
        players = self.league.players if self.league is not None else ()
        for policy in self.policies:
            if policy not in mapping.values() and policy not in players:
                raise ConfigurationError(
                    "policy_not_used", policy=policy, choices=sorted(set(mapping.values())), key="policies"
                )
        return mapping


def parse_run(data: Mapping[str, Any]) -> Run:
    """A `Run` from plain data; ConfigurationError with one sentence (key, fault, remedy) if it is not valid."""
    try:
        return Run.model_validate(with_named_algorithms(data))
    except ValidationError as fault:
        raise complaint(fault, Run, data) from None
