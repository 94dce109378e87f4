"""The run's configuration: typed, validated, frozen; an unknown key is an error.

In flows: a mapping (from YAML, `--set` or the wire). Out flow: a `Run`. Defaults follow the source documents where
they name one; the presets override them where training is better served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protocol.errors import ConfigurationError
from protocol.spaces import Label, World

__all__ = ["IQN", "PPO", "EnvironmentConfig", "Multiprocessing", "Network", "PolicyConfig", "Run", "parse_run"]


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class EnvironmentConfig(_Frozen):
    """Which world, and how many copies of it each actor steps at once."""

    id: str = "treasure_hunt"
    """`treasure_hunt`, `gymnasium:ID`, `pettingzoo:MODULE` or the user's own `module:function`."""
    copies: int = Field(default=64, ge=1, le=1_000_000)
    turn_mode: Literal["sequential", "simultaneous"] | None = None
    """Do agents act one after another, each seeing what the one before did, or all at once? None: the world's way."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the world."""
    processes: int = Field(default=0, ge=0, le=1_024)
    """Processes that step the copies, equally many each; 0: the actor's own process does."""
    async_factor: int = Field(default=1, ge=1, le=64)
    """Groups of copies that take turns: while processes step one group, the actor chooses the actions of another."""
    step_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a process that has not stepped its copies is taken to hang, and is started again."""
    restarts: int = Field(default=3, ge=0)
    """Times that each process is started again after a crash or a hang."""

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.async_factor > 1 and not self.processes:
            raise ValueError(
                f"async_factor {self.async_factor} needs processes that step one group while another one's actions are "
                "chosen; set processes to 1 or more, or async_factor to 1"
            )
        shares = max(1, self.processes) * self.async_factor
        if self.copies % shares:
            below, above = self.copies // shares * shares, -(-self.copies // shares) * shares
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"copies {self.copies} cannot be divided into {self.async_factor} groups over {self.processes} "
                f"processes equally; set copies to {nearest}"
            )
        return self


class Network(_Frozen):
    """A multi-layer perceptron: units of the hidden layers and their activation."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"


class PPO(_Frozen):
    """Proximal policy optimisation on streams, with V-trace corrected advantages."""

    name: Literal["ppo"] = "ppo"
    segments: int | None = Field(default=None, ge=1)
    """Segments in a batch; None: as many as one actor has streams of this policy."""
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=4, ge=1)
    gamma: float = Field(default=0.99, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    clip: float = Field(default=0.2, gt=0)
    value_clip: float | None = Field(default=None, gt=0)
    value_coefficient: float = Field(default=0.5, ge=0)
    entropy_coefficient: float = Field(default=0.01, ge=0)
    rho_clip: float = Field(default=1.0, gt=0)
    c_clip: float = Field(default=1.0, gt=0)
    normalize_advantage: bool = True
    normalize_observation: bool = False
    normalize_return: bool = True
    anneal_learning_rate: bool = True

    @property
    def discipline(self) -> Literal["stream", "replay"]:
        """How the ring is used."""
        return "stream"

    @property
    def before(self) -> int:
        """Rows of history in front of each segment."""
        return 0

    @property
    def row_fields(self) -> tuple[tuple[str, str], ...]:
        """(name, dtype) of the scalar fields this algorithm adds to every row."""
        return (("log_probability", "<f4"), ("value", "<f4"))


class IQN(_Frozen):
    """Implicit quantile networks on replay: n-step double Q, dueling on request, stacked frames."""

    name: Literal["iqn"] = "iqn"
    batch_size: int = Field(default=64, ge=1)
    """Transitions in a batch."""
    buffer_capacity: int = Field(default=10_000, ge=1)
    """Rows kept for replay, over all actors."""
    learning_starts: int = Field(default=1_000, ge=1)
    """Rows that must be there before the first update."""
    replay_ratio: float = Field(default=4.0, gt=0)
    """Transitions trained for each row made; the governor keeps to it."""
    error_buffer: float | None = Field(default=None, gt=0)
    """Transitions by which training may run ahead of that ratio or fall behind it; None: not ahead, and behind by two
    of an actor's messages and a batch."""
    frames: int = Field(default=1, ge=1, le=64)
    n_step: int = Field(default=3, ge=1)
    gamma: float = Field(default=0.99, ge=0, le=1)
    quantiles: int = Field(default=12, ge=1)
    """Quantile fractions drawn for the loss (N = N')."""
    acting_quantiles: int = Field(default=12, ge=1)
    cosines: int = Field(default=64, ge=1)
    kappa: float = Field(default=1.0, gt=0)
    double: bool = True
    dueling: bool = False
    target_update_freq: int = Field(default=4, ge=1)
    target_update: Literal["soft", "hard"] = "soft"
    tau: float = Field(default=1e-3, gt=0, le=1)
    epsilon: float = Field(default=1.0, ge=0, le=1)
    epsilon_decay_freq: int = Field(default=100, ge=1)
    epsilon_decay: float = Field(default=1e-4, ge=0, lt=1)
    epsilon_min: float = Field(default=0.01, ge=0, le=1)

    @property
    def discipline(self) -> Literal["stream", "replay"]:
        """How the ring is used."""
        return "replay"

    @property
    def before(self) -> int:
        """Rows of history in front of each segment."""
        return self.frames - 1

    @property
    def row_fields(self) -> tuple[tuple[str, str], ...]:
        """(name, dtype) of the scalar fields this algorithm adds to every row."""
        return ()


class PolicyConfig(_Frozen):
    """One policy: its algorithm, network, optimiser, ring and publication."""

    algorithm: Annotated[PPO | IQN, Field(discriminator="name")] = Field(default_factory=PPO)
    network: Network = Field(default_factory=Network, alias="model_config")
    learning_rate: float = Field(default=0.00025, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    segment_length: int = Field(default=64, ge=1, le=65_535)
    flow: Literal["block", "drop_oldest", "drop_newest"] = "block"
    """What an actor does that has no credit: wait, overwrite its oldest segment, or discard the new one."""
    credits: int | None = Field(default=None, ge=1)
    """Segments an actor may have unacknowledged, a multiple of `environment.copies`; None: twice its streams of this
    policy."""
    compress: tuple[str, ...] = ()
    """Fields of segments that travel compressed (zstd) to other nodes."""
    ring: Literal["lock_free", "locked"] = "lock_free"
    """How a learner on the same node reads an actor's memory: it checks each copy, or (the reference) it locks besides,
    so that no slot is taken from under a copy; the actor then waits for its learners, up to `lock_timeout`."""
    checksums: bool | None = None
    """Check every copy by CRC-32 as well; None: only where a processor shows stores in another order."""
    flush_after: float | None = Field(default=None, gt=0)
    """Seconds after which a segment is sent although it is not full; None: never."""
    publish_mode: Literal["double_buffer", "snapshot"] = "snapshot"
    wire_weights: Literal["float32", "bf16"] = "float32"
    """How float32 weights travel to other nodes: exactly, or rounded to half the bytes. Memory is exact always."""
    publish_interval: int = Field(default=10, ge=1)
    """Train steps from one publication of weights to the next."""
    sync_interval: int = Field(default=50, ge=1)
    """Turns from one look for new weights to the next."""

    @model_validator(mode="before")
    @classmethod
    def _alias(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            data = _without_aliases(data)
            if isinstance(data.get("algorithm"), Mapping):
                data["algorithm"] = {"name": "ppo", **data["algorithm"]}
        return data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        algorithm = self.algorithm
        if isinstance(algorithm, IQN):
            if algorithm.learning_starts > algorithm.buffer_capacity:
                raise ValueError(
                    f"learning_starts {algorithm.learning_starts} can never be reached with buffer_capacity "
                    f"{algorithm.buffer_capacity}; lower learning_starts or raise buffer_capacity"
                )
            if self.flow == "drop_newest":
                raise ValueError(
                    "flow drop_newest cannot serve replay, whose ring overwrites its oldest; use block or drop_oldest"
                )
        if isinstance(algorithm, PPO):
            segments = algorithm.segments
            if segments is not None and segments % algorithm.minibatches:
                raise ValueError(
                    f"{segments} segments cannot be divided into {algorithm.minibatches} minibatches; "
                    "make segments a multiple"
                )
        return self


class Multiprocessing(_Frozen):
    """The source documents' section; `enabled: false` means `--sequential`."""

    enabled: bool | None = None
    mode: Literal["double_buffer", "snapshot"] | None = None
    """The same as `policy.publish_mode`."""
    num_agents: int | None = Field(default=None, ge=1)
    """Refused when the world has another number of agents."""


class Run(_Frozen):
    """Everything a run is."""

    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    """What every policy has in common."""
    policies: dict[Label, dict[str, Any]] = Field(default_factory=dict)
    """Overrides by policy name."""
    agents: dict[str, Label] = Field(default_factory=dict)
    """agent -> policy; an agent not named has a policy of its own, called like the agent."""
    actors: int = Field(default=1, ge=1, le=10_000)
    num_learner_processes: int | None = Field(default=None, ge=1)
    """None: one learner process a policy; fewer: policies share them in turn."""
    steps: int = Field(default=10_000_000, ge=1)
    """Agent steps until the run ends."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall-clock limit, whichever comes first."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    device_per_agent: bool = False
    """Spread learners over all GPUs of a node instead of using the first."""
    transport: Literal["auto", "memory", "tcp"] = "auto"
    """How segments and weights travel: shared memory where both ends see it, or always one of the two."""
    actor_timeout: float = Field(default=10.0, gt=0)
    """Seconds without a heartbeat until an actor is considered lost, and that it has to stop."""
    learner_timeout: float = Field(default=10.0, gt=0)
    """The same for a learner."""
    monitor_period: float = Field(default=1.0, gt=0, le=60)
    """Seconds between two looks at the workers' life."""
    lock_timeout: float = Field(default=1.0, gt=0, le=60)
    """Seconds that a worker waits for the lock of a `ring: locked` before it gives up."""
    starvation_sleep: float = Field(default=0.01, gt=0, le=10)
    """Longest sleep of a starved learner between two looks; data wake it at once."""
    restarts: int = Field(default=3, ge=0)
    """Times a worker that died is started again."""
    checkpoint_interval: float = Field(default=30.0, gt=0)
    """Seconds between two checkpoints of a policy; one more is written at the end."""
    keep_checkpoints: int = Field(default=2, ge=1)
    logging: bool = True
    """Write a log file for each worker."""
    log_interval: int = Field(default=100, ge=1)
    """Train steps between two lines in a learner's log."""
    log_dir: str = "./logs"
    """Where logs go, relative to the run's folder."""
    multiprocessing: Multiprocessing = Field(default_factory=Multiprocessing)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        mode = self.multiprocessing.mode
        if mode is not None:
            given = "publish_mode" in self.policy.model_fields_set
            if given and self.policy.publish_mode != mode:
                raise ValueError("multiprocessing.mode and policy.publish_mode differ; keep policy.publish_mode")
            object.__setattr__(self, "policy", self.policy.model_copy(update={"publish_mode": mode}))
        for name in self.policies:
            try:
                self.policy_config(name)
            except ValidationError as fault:
                raise ValueError(_sentence(fault, f"policies.{name}")) from None
        return self

    def policy_config(self, name: str) -> PolicyConfig:
        """The configuration of policy `name`: the common one with its overrides, sections merged key by key.

        An override of `algorithm` that names another algorithm starts from that algorithm's defaults.
        """
        try:
            override = _without_aliases(self.policies.get(name, {}))
        except ValueError as fault:
            raise ConfigurationError(f"policies.{name}: {fault}") from None
        base = self.policy.model_dump()
        for key, value in override.items():
            if key in ("algorithm", "network") and isinstance(value, Mapping):
                other = key == "algorithm" and value.get("name", base[key]["name"]) != base[key]["name"]
                base[key] = dict(value) if other else {**base[key], **value}
            else:
                base[key] = value
        return PolicyConfig.model_validate(base)

    def policy_of(self, world: World) -> dict[str, str]:
        """agent -> policy for every agent of `world`; raises ConfigurationError where the two do not fit."""
        names = [agent.name for agent in world.agents]
        for agent in self.agents:
            if agent not in names:
                raise ConfigurationError(
                    f"agents names {agent!r}, which {world.id} does not have; its agents are {', '.join(names)}"
                )
        expected = self.multiprocessing.num_agents
        if expected is not None and expected != len(names):
            raise ConfigurationError(
                f"multiprocessing.num_agents is {expected} but {world.id} has {len(names)} agents; "
                "set environment.settings to make them equal or remove the key"
            )
        mapping = {name: self.agents.get(name, name) for name in names}
        for policy in self.policies:
            if policy not in mapping.values():
                raise ConfigurationError(
                    f"policies names {policy!r}, which no agent uses; "
                    f"the policies are {', '.join(sorted(set(mapping.values())))}"
                )
        for policy in set(mapping.values()):
            kinds = {(a.observation, a.action) for a in world.agents if mapping[a.name] == policy}
            if len(kinds) > 1:
                raise ConfigurationError(
                    f"policy {policy!r} is shared by agents with different spaces; give them policies of their own"
                )
        return mapping


def parse_run(data: Mapping[str, Any]) -> Run:
    """A `Run` from plain data; ConfigurationError with one sentence (key, fault, remedy) if it is not valid."""
    try:
        return Run.model_validate(dict(data))
    except ValidationError as fault:
        raise ConfigurationError(_sentence(fault)) from None


def _without_aliases(data: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's section with each thing under its one name; ValueError if it is named twice, differently."""
    data = dict(data)
    if "train_interval" in data:
        if data.get("publish_interval", data["train_interval"]) != data["train_interval"]:
            raise ValueError(
                "train_interval and publish_interval name the same thing with different values; keep publish_interval"
            )
        data["publish_interval"] = data.pop("train_interval")
    if "model_config" in data:
        if "network" in data:
            raise ValueError("model_config and network name the same thing; keep network")
        data["network"] = data.pop("model_config") or {}
    return data


def _sentence(fault: ValidationError, prefix: str = "") -> str:
    first = fault.errors()[0]
    parts = [prefix] if prefix else []
    for before, part in zip(("", *first["loc"]), first["loc"], strict=False):
        if before != "algorithm" and part != "[key]":  # after it comes the union's branch, which is no key
            parts.append(str(part))
    place = ".".join(parts)
    if first["type"] == "extra_forbidden":
        return (
            f"unknown configuration key {place!r}; "
            "remove it or correct its spelling (see launch/README.md for all keys)"
        )
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{place}: {message}" if place else message
    return f"{place}: {message}, got {first['input']!r}; correct it"
