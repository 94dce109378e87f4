"""The keys of everything that is trained, policy or auxiliary, and the key `learners`: who shares a learner process.

In flows: what is written under `learners` and `num_learner_processes`. Out flow: the one of them that says it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from protocol.config.base import ConfigModel, Name
from protocol.errors import ConfigurationError


class Trainable(ConfigModel):
    """What a learner's member is told, whatever it learns."""

    learning_rate: float = Field(default=0.00025, gt=0)
    """Of Adam; at the start, where it is annealed. With `sac` 0.0003 by default (Stable-Baselines3), with `impala`
    0.0005 (RLlib), with `ppo` that remembers (`network.core`) 0.001 (Stable-Baselines3's zoo)."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Norm to which the gradient of an update is clipped; with `impala` 40 by default (RLlib)."""
    credits: int | None = Field(default=None, ge=1)
    """Segments an actor may have unacknowledged, a multiple of `environment.copies`; None: twice its streams."""
    compress: tuple[str, ...] = ()
    """Fields of segments that travel compressed (zstd) to other nodes."""
    ring: Literal["lock_free", "locked"] = "lock_free"
    """How a learner on the same node reads an actor's memory: it checks each copy, or (the reference) it locks besides,
    so that no slot is taken from under a copy; the actor then waits for its learners, up to `lock_timeout`."""
    checksums: bool | None = None
    """Check every copy by CRC-32 as well; None: only where a processor shows stores in another order."""
    publish_mode: Literal["double_buffer", "snapshot"] = "snapshot"
    """Weights in shared memory: two copies and a flip, or one copy."""
    wire_weights: Literal["float32", "bf16"] = "float32"
    """How float32 weights travel to other nodes: exactly, or rounded to half the bytes. Memory is exact always."""
    publish_interval: int = Field(default=10, ge=1)
    """Train steps from one publication of weights to the next; with `impala` 1 by default."""
    largest_number: float = Field(default=1e12, gt=0, le=1e18)
    """Size of a reward, an observation or another number in a segment, beyond which its learner rejects the segment."""


Parts = Annotated[tuple[str, ...], BeforeValidator(lambda said: (said,) if isinstance(said, str) else said)]
"""Of a policy; one may stand alone."""


class Freeze(ConfigModel):
    """What of a policy stays as it was taken."""

    only: Parts = Field(min_length=1)
    """Parts that stay, as in `start.only`; with a value head the statistics of returns stay as well."""
    steps: int | None = Field(default=None, ge=1)
    """Agent steps of this policy for which they stay so; None: for good."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {"only": data} if isinstance(data, str | list | tuple) else data


class StartKL(ConfigModel):
    """How near a policy is kept to what it started as: its loss is raised by this times its KL divergence from that, so
    that what a clone can do is not lost before values are learned."""

    coefficient: float = Field(gt=0)
    """Of the divergence in the loss, at the start where it fades."""
    steps: int | None = Field(default=None, ge=1)
    """Agent steps of this policy over which it fades, linearly, to nothing; None: it stays."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping) else {"coefficient": data}


class Start(ConfigModel):
    """Weights of an earlier run that a policy begins with, by name and shape."""

    path: str = Field(min_length=1)
    """The folder of a run, as `RUN`, `RUN@best`, `RUN@STEP`, `RUN/POLICY` or `RUN@best/POLICY`: by default its newest
    checkpoint of the policy that is called so too, or of its only one. Or a file of weights (safetensors)."""
    only: Parts = ()
    """Parts that are taken, of `encoder`, `core`, `hidden`, `heads` and `normalizer`, or beginnings of weights' names;
    none: all."""
    skip: Parts = ()
    """Parts that are not."""
    normalizer: bool = True
    """Take the statistics of observations and returns as well."""
    freeze: Freeze | None = None
    """What stays as it was taken, as a section or by its `only` alone."""
    kl: StartKL | None = None
    """Keep near what it started as, as a section or by its `coefficient` alone; with ppo and impala, without memory."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {"path": data} if isinstance(data, str) else data


class DeclaredOutput(ConfigModel):
    """An output of the network that a class of the user's own declares."""

    name: str
    shape: tuple[int, ...] = ()
    """Of what it says of a row."""
    dtype: str | None = None
    """Of the column in which segments keep what it said when the policy acted; None: they do not."""


class AlgorithmConfig(ConfigModel):
    """What the sections of algorithms have in common whose loss a class of the user's own may make."""

    model_config = ConfigDict(extra="allow")

    name: str
    entry: str | None = Field(default=None, pattern=r"^[^:]+:[^:]+$")
    """A class of your own whose `loss` is descended instead: `module:Class`, found as `environment.id` is. `name` says
    what it builds on (network, acting, rows), and keys that are none here are its own."""
    declares: tuple[DeclaredOutput, ...] | None = None
    """What that class declares as its `outputs` and `columns`: found out, and written into checkpoints; not to be given
    in a run's configuration."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        extra = (self.model_extra or {}).items() if self.entry is None else ()
        strange: Any = [{"type": "extra_forbidden", "loc": (key,), "input": value} for key, value in extra]
        if strange:
            raise ValidationError.from_exception_data(type(self).__name__, strange)
        return self


_DISCOUNT = 0.99


class Discounted(AlgorithmConfig):
    """What algorithms have in common that value what comes later."""

    gamma: float | None = Field(default=None, ge=0, le=1)
    """Discount of a reward by each step; None: 0.99, or 1 - 1/steps where the world says that its episodes end after
    fewer than 100 steps, but for OpenSpiel's games, which end by themselves. What no episode is long enough for is
    never seen, and a value that counts on it is a guess."""

    @property
    def discount(self) -> float:
        """`gamma`, where no world says how long its episodes are."""
        return _DISCOUNT if self.gamma is None else self.gamma

    def discount_in(self, episode_steps: int | None) -> float:
        """`gamma` in a world whose episodes end after so many steps, if it says so."""
        if self.gamma is not None or episode_steps is None:
            return self.discount
        return min(_DISCOUNT, 1 - 1 / episode_steps)


Learners = Literal["process", "cohort", "auto"] | dict[Name, Annotated[tuple[Name, ...], Field(min_length=1)]]
"""`process`: each policy has a process of its own; `cohort`: they share `num_learner_processes` (one); `auto`: those
that can be computed as one share a process, where that is known to pay, or at most `num_learner_processes`, unless
these are enough for all; or cohorts by name, each with its policies."""

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
    if learners not in ("cohort", "auto"):
        what = "lists cohorts" if isinstance(learners, dict) else f"is {learners}"
        raise ConfigurationError("learners_conflict", reason=what, key="num_learner_processes")
    return learners
