"""How a policy learns from streams: the sections of a run's configuration for its algorithm.

In flow: `policy.algorithm`. Out flows: its keys, and what an algorithm asks of ring and rows.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from protocol.config.base import ConfigModel
from protocol.config.trainable import Discounted
from protocol.errors import ConfigurationError
from protocol.spaces import Label

FEW_SEGMENTS = 16
"""Of a batch where an actor has more streams, and either one step is made of it or each of its minibatches is of few
segments, as rows of a segment are learned from together: on CartPole IMPALA made 625 updates in 2,000,000 steps, where
64 streams filled a batch, and four seeds ended between 220 and 462; with 16 ten seeds ended at 499 or above (RLlib's
batch of 500 rows would be 10). PPO with an LSTM, on CartPole without velocities, earned 376 and 500 without exploring
after 1,000,000 steps; with 16 498 to 500 (three seeds)."""
_MIXED = 16
"""Segments from which on a minibatch of whole ones is mixed enough: below, neighbours in an episode, which are alike,
are most of a step. Rows of all segments, shuffled, cost one more look at a batch; with them LunarLander, by the zoo's
numbers of Stable-Baselines3, came to 230 of its 242 without exploring, and to 79 by whole segments, one a step."""
_PARTS, _PART_ROWS, _PART_SEGMENTS = 16, 64, 4
"""Most minibatches that are chosen for a batch, the fewest rows of one (Stable-Baselines3's `batch_size`), and, where
policies remember, the fewest segments."""


class Curiosity(ConfigModel):
    """A bonus for what is new to an auxiliary of the run, beside the reward that the world gives."""

    auxiliary: Label
    """Its name under `auxiliaries`."""
    coefficient: float = Field(default=0.5, ge=0)
    """Weight of the bonus in the reward; the bonus's unit is the spread of its discounted returns."""


class Streamed(Discounted):
    """What all algorithms on streams have in common: whole segments, each once, corrected for lag by V-trace."""

    frames: int = Field(default=1, ge=1, le=64)
    """Observations that are stacked, the newest last; each is stored once."""
    segments: int | None = Field(default=None, ge=1)
    """Segments in a batch; None: as many as one actor has streams of this policy, but with `impala`, and where the
    policy remembers (`network.core`), 16 at most."""
    value_coefficient: float = Field(default=0.5, ge=0)
    """Weight of the value function's error in the loss."""
    entropy_coefficient: float | None = Field(default=None, ge=0)
    """Weight of the entropy bonus in the loss; at the start, where it is annealed. None: 0.01, or with `ppo` none where
    actions hold numbers (CleanRL's ppo_continuous_action.py), and 0.1 in OpenSpiel's games."""
    anneal_entropy: bool = False
    """Let the entropy bonus fall to 0 by the end of the run, for a policy that is sure of what it does."""
    rho_clip: float = Field(default=1.0, gt=0)
    """V-trace: greatest ratio that weights a row's own error."""
    c_clip: float = Field(default=1.0, gt=0)
    """V-trace: greatest ratio by which later errors reach an earlier row."""
    normalize_observation: bool | None = None
    """Observations by their running mean and deviation; None: with `ppo`, where all that is seen is boxes of floats,
    but for OpenSpiel's games (as Sample Factory). LunarLander, as PPO comes, earned 197, -35 and 100 without, and 195,
    175 and 89 with it."""
    normalize_return: bool = True
    """Values in units of the running deviation of returns, where that is above 1."""
    anneal_learning_rate: bool = True
    """Let the learning rate fall to 0 by the end of the run."""
    max_lag: int | None = Field(default=None, ge=0)
    """Publications by which the oldest row of a segment may be behind when it is received; older ones are dropped, but
    never those of the newest weights that are known to be in use. None: V-trace alone corrects for lag."""
    zero_start: bool = False
    """Train a recurrent policy as if it remembered nothing before each segment, as implementations that do not keep its
    state do."""
    zero_last: bool = False
    """Give a segment's last row no advantage, as implementations that do not look beyond a segment do."""
    central_critic: bool = False
    """MAPPO (Yu et al. 2022): the value function is a network of its own, which sees all evaluation-only observations
    besides what the actor sees; it stays with the learner."""
    curiosity: Curiosity | None = None
    """Reward what is new as well; None: what the world gives alone."""

    @property
    def entropy_weight(self) -> float:
        """`entropy_coefficient`, where no world says what actions are."""
        return 0.01 if self.entropy_coefficient is None else self.entropy_coefficient

    def parts(self, segments: int, length: int, remembers: bool) -> int:
        """Minibatches of a batch of so many segments of `length` rows, of a policy that `remembers` or not."""
        return 1

    @property
    def mode(self) -> Literal["stream", "replay"]:
        """How the ring is used."""
        return "stream"

    @property
    def before(self) -> int:
        """Rows of history in front of each segment, for stacked frames."""
        return self.frames - 1

    @property
    def row_fields(self) -> tuple[tuple[str, str], ...]:
        """(name, dtype) of the scalar fields this algorithm adds to every row."""
        said = (("log_probability", "<f4"),)
        return said if self.central_critic else (*said, ("value", "<f4"))


class PPO(Streamed):
    """Proximal policy optimisation: several steps on each batch, none of which goes far."""

    name: Literal["ppo"] = "ppo"
    epochs: int | None = Field(default=None, ge=1)
    """Times that each batch is trained on; None: 4, as CleanRL's ppo.py, or 10 where actions hold numbers, as its
    ppo_continuous_action.py: HalfCheetah earned 1,114 after 1,000,000 steps by 10 without an entropy bonus, 705 by 10
    with one, and 630 by 4 with it (seed 0)."""
    minibatches: int | None = Field(default=None, ge=1)
    """Parts of a batch, each of which makes one step; None: up to 16, each of which has 64 rows or more, or, where the
    policy remembers, four segments."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """λ of generalised advantage estimation."""
    clip: float = Field(default=0.2, gt=0)
    """How far from 1 a ratio still counts in the surrogate."""
    value_clip: float | None = Field(default=None, gt=0)
    """How far a value may move from what it was when acting; null: any way."""
    normalize_advantage: bool = True
    """Advantages with mean 0 and deviation 1 in each minibatch."""
    priority_alpha: float = Field(default=0.0, ge=0, le=1)
    """How much more often segments of large advantages are trained on; 0: all alike, each once an epoch."""
    priority_beta: float = Field(default=0.6, ge=0, le=1)
    """How much of that is made up for by their weight in the loss, at first; with `priority_alpha` it grows to the
    run's end."""

    @property
    def passes(self) -> int:
        """`epochs`, where no world says what actions are."""
        return 4 if self.epochs is None else self.epochs

    def shuffles(self, segments: int, length: int, remembers: bool) -> bool:
        """Whether minibatches of so many segments of `length` rows are rows of all of them, shuffled."""
        parts = self.minibatches or self._most(segments, length, remembers)
        return parts > 1 and segments < _MIXED * parts and not remembers and not self.priority_alpha

    def units(self, segments: int, length: int, remembers: bool) -> int:
        """Of how many rows or segments minibatches are made; a loss of the user's own may want whole segments."""
        apart = self.entry is None and self.shuffles(segments, length, remembers)
        return segments * length if apart else segments

    def parts(self, segments: int, length: int, remembers: bool) -> int:
        """Minibatches of a batch of so many segments of `length` rows; chosen ones divide it evenly."""
        if self.minibatches is not None:
            return self.minibatches
        most, units = self._most(segments, length, remembers), self.units(segments, length, remembers)
        return next((parts for parts in range(most, 1, -1) if units % parts == 0), 1)

    @staticmethod
    def _most(segments: int, length: int, remembers: bool) -> int:
        return min(_PARTS, segments // _PART_SEGMENTS if remembers else segments * length // _PART_ROWS)


class IMPALA(Streamed):
    """V-trace actor-critic (Espeholt et al. 2018): one step on each batch, along the policy gradient as it is.

    `rho_clip` and `c_clip` are the paper's truncation levels (rho-bar, c-bar), `value_coefficient` and
    `entropy_coefficient` its baseline and entropy costs, `segments` its batch and `segment_length` its unroll.
    """

    name: Literal["impala"] = "impala"
    passes: ClassVar[int] = 1
    gae_lambda: ClassVar[float] = 1.0
    value_clip: ClassVar[None] = None
    normalize_advantage: ClassVar[bool] = False
    priority_alpha: ClassVar[float] = 0.0
    priority_beta: ClassVar[float] = 0.0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.rho_clip < self.c_clip:
            raise ConfigurationError("rho_clip_below_c_clip", value=self.rho_clip, limit=self.c_clip, key="rho_clip")
        return self


OnStream = PPO | IMPALA
"""All of them."""
