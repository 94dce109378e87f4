"""Algorithms that learn from replayed transitions: their sections of a run's configuration.

In flow: `policy.algorithm`. Out flows: keys, and what an algorithm asks of ring and rows. `Replayed` holds what the
replay mode itself reads, whatever is learned from its batches.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from protocol.config.trainable import Discounted
from protocol.errors import ConfigurationError


class Replayed(Discounted):
    """What all algorithms on replay have in common."""

    batch_size: int = Field(default=64, ge=1)
    """Transitions in a batch."""
    buffer_capacity: int = Field(default=10_000, ge=1)
    """Rows kept for replay, over all actors."""
    learning_starts: int = Field(default=1_000, ge=1)
    """Rows that must be there before the first update."""
    replay_ratio: float = Field(default=4.0, gt=0)
    """Transitions trained for each row made; the rate limiter keeps to it."""
    error_buffer: float | None = Field(default=None, gt=0)
    """Transitions by which training may run ahead of that ratio or fall behind it; None: not ahead, and behind by two
    of an actor's messages and a batch."""
    frames: int = Field(default=1, ge=1, le=64)
    """Observations that are stacked, the newest last."""
    n_step: int = Field(default=3, ge=1)
    """Rewards that are summed before the target's value."""
    priority_alpha: float = Field(default=0.0, ge=0, le=1)
    """Exponent of priorities: rows are drawn in proportion to their last error to this power; 0: all alike."""
    priority_beta: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the weights that make up for it, at the start of the run; it grows to 1 by the end."""
    checkpoint_replay: int = Field(default=0, ge=0)
    """Newest rows that each checkpoint keeps, for a restarted learner to go on from; 0: its buffer begins empty."""
    anneal_learning_rate: bool = False
    """Let the learning rate fall to 0 by the end of the run, so that the policy settles."""

    mode: ClassVar[Literal["stream", "replay"]] = "replay"
    """How the ring is used."""
    row_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(name, dtype) of the scalar fields this algorithm adds to every row."""

    @property
    def before(self) -> int:
        """Rows of history in front of each segment."""
        return self.frames - 1


class ValueBased(Replayed):
    """What algorithms have in common that do what they value most, but at times anything.

    Where no source is named, defaults are those of CleanRL's dqn.py (github.com/vwxyzjn/cleanrl): 10 steps to an update
    of 128 transitions, 500 to a target.
    """

    batch_size: int = Field(default=128, ge=1)
    buffer_capacity: int = Field(default=100_000, ge=1)
    """Rows kept for replay, over all actors (Stable-Baselines3's zoo for CartPole: 100,000)."""
    replay_ratio: float = Field(default=12.8, gt=0)

    double: bool = True
    """The online network chooses the action of a target, the target network values it (van Hasselt 2016)."""
    dueling: bool = False
    """A value and advantages instead of action values alone."""
    noisy: bool = False
    """A last layer that explores by itself, its weights drawn anew for each row; epsilon 0 then leaves it alone."""
    target_update_freq: int = Field(default=50, ge=1)
    """Train steps between two updates of the target network."""
    target_update: Literal["soft", "hard"] = "hard"
    """A step of `tau` towards the online network, or a copy of it."""
    tau: float = Field(default=1e-3, gt=0, le=1)
    """The size of a soft step."""
    epsilon: float = Field(default=1.0, ge=0, le=1)
    """Share of actions drawn uniformly, at the start."""
    epsilon_min: float = Field(default=0.05, ge=0, le=1)
    """Where epsilon arrives, and stays."""
    exploration_fraction: float = Field(default=0.1, gt=0, le=1)
    """Part of the run's agent steps in which it falls from the one to the other, on a line (Stable-Baselines3: 0.1)."""
    exploration_steps: int | None = Field(default=None, ge=1)
    """The same as a number of the run's agent steps; None: by the fraction."""
    epsilon_decay: float | None = Field(default=None, ge=0, lt=1)
    """Let epsilon fall by this part of itself each `epsilon_decay_freq` train steps instead; None: along that line."""
    epsilon_decay_freq: int = Field(default=100, ge=1)
    """Train steps between two such decays."""
    burn_in: int = Field(default=0, ge=0)
    """With `network.core`: steps at the beginning of a segment that only bring the state up to date which it was stored
    with, and are not trained on (Kapturowski et al. 2019); an episode that begins there needs none."""


class IQN(ValueBased):
    """Implicit quantile networks on replay: n-step double Q, dueling on request, stacked frames."""

    name: Literal["iqn"] = "iqn"
    quantiles: int = Field(default=12, ge=1)
    """Quantile fractions drawn for the loss (N = N')."""
    acting_quantiles: int = Field(default=12, ge=1)
    """Quantile fractions drawn for acting."""
    cosines: int = Field(default=64, ge=1)
    """Cosines that a fraction is embedded by."""
    kappa: float = Field(default=1.0, gt=0)
    """Error beyond which the loss is linear."""


class DQN(ValueBased):
    """Deep Q-networks on replay: mean returns, n-step double Q, dueling on request, stacked frames."""

    name: Literal["dqn"] = "dqn"
    kappa: float | None = Field(default=None, gt=0)
    """Error beyond which the loss is linear; None: it is the square throughout, as large values need."""


class C51(ValueBased):
    """Categorical distributions of returns on replay, with all else as `dqn`."""

    name: Literal["c51"] = "c51"
    atoms: int = Field(default=101, ge=2, le=1_001)
    """Values that a return is taken to have, at equal distances from `v_min` to `v_max`; all as CleanRL's c51.py."""
    v_min: float = -100.0
    """The least return that can be told."""
    v_max: float = 100.0
    """The greatest."""

    @model_validator(mode="after")
    def _span(self) -> Self:
        if self.v_min >= self.v_max:
            raise ConfigurationError("value_span_empty", low=self.v_min, high=self.v_max, key="v_min")
        return self


class VDN(ValueBased):
    """Value decomposition networks, for teams: each agent has values of its own, and their sum is the team's."""

    name: Literal["vdn"] = "vdn"
    kappa: float | None = Field(default=None, gt=0)
    """Error beyond which the loss is linear; None: it is the square throughout, as large values need."""
    shared: bool = True
    """One network for all agents of the team, which is told whose values it is asked for; else one for each."""


class QMIX(ValueBased):
    """Monotonic value decomposition, for teams: a network mixes the agents' values by what the whole team sees."""

    name: Literal["qmix"] = "qmix"
    kappa: float | None = Field(default=None, gt=0)
    """Error beyond which the loss is linear; None: it is the square throughout, as large values need."""
    shared: bool = True
    """One network for all agents of the team, which is told whose values it is asked for; else one for each."""
    mixing: int = Field(default=32, ge=1)
    """Units of the network that mixes."""


class SAC(Replayed):
    """Soft actor-critic on replay, for actions that are numbers within bounds, or one choice."""

    name: Literal["sac"] = "sac"
    batch_size: int = Field(default=256, ge=1)
    buffer_capacity: int = Field(default=100_000, ge=1)
    replay_ratio: float = Field(default=256.0, gt=0)
    n_step: int = Field(default=1, ge=1)
    tau: float = Field(default=5e-3, gt=0, le=1)
    """By how much the target critics follow at each train step."""
    temperature: float = Field(default=1.0, gt=0)
    """Weight of the entropy, at the start where it is learned."""
    learn_temperature: bool = True
    """Learn the temperature, or leave it as it is."""
    target_entropy: float | None = None
    """Entropy that the learned temperature keeps, of actions in (-1, 1); None: minus their number. Of a choice it is a
    part of what drawing evenly has; None: 0.89 (CleanRL's sac_atari.py)."""
