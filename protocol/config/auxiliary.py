"""Auxiliaries: what learns beside the policies from what their agents see, and acts for nobody.

In flow: `auxiliaries` of a run's configuration. Out flows: their keys, and what an auxiliary asks of its ring.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from protocol.config.base import ConfigModel
from protocol.config.network import Network
from protocol.config.trainable import Trainable
from protocol.errors import ConfigurationError
from protocol.spaces import Label


class RND(ConfigModel):
    """Random network distillation (Burda et al. 2018): what a trained network cannot yet say of a random one is new."""

    name: Literal["rnd"] = "rnd"
    features: int = Field(default=64, ge=1, le=65_536)
    """Outputs of the random network, which the other one learns to predict."""
    segments: int | None = Field(default=None, ge=1)
    """Segments in a batch; None: as many as one actor has streams of what is watched."""
    epochs: int = Field(default=1, ge=1)
    """Times that each batch is trained on."""
    minibatches: int = Field(default=4, ge=1)
    """Parts of a batch, each of which makes one step."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount of the intrinsic returns whose spread is the bonus's unit."""

    mode: ClassVar[Literal["stream", "replay"]] = "stream"
    """How the ring is used."""


class AuxiliaryConfig(Trainable):
    """One auxiliary: what it observes and how it learns."""

    algorithm: RND = Field(default_factory=RND)
    """What it learns."""
    network: Network = Field(default_factory=lambda: Network(hidden=(128, 128), activation="relu"))
    """Of both networks, the random one and the other."""
    observes: tuple[Label, ...] = ()
    """Policies whose agents it observes, which must be shown the same; none named: all."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """How much of what is seen it is told of: so many of each agent's segments, at equal distances."""
    publish_interval: int = Field(default=4, ge=1)

    flow: ClassVar[Literal["drop_oldest"]] = "drop_oldest"
    """Nobody who acts ever waits for an auxiliary."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.network.encoder is not None:
            raise ConfigurationError("auxiliary_has_encoder", key="network.encoder")
        if self.network.core is not None:
            raise ConfigurationError("auxiliary_recurrent", key="network.core")
        if self.network.share_layers:
            raise ConfigurationError("auxiliary_shares_layers", key="network.share_layers")
        if self.network.autoregressive:
            raise ConfigurationError("autoregressive_refused", algorithm="rnd", key="network.autoregressive")
        segments = self.algorithm.segments
        if segments is not None and segments < self.algorithm.minibatches:
            raise ConfigurationError(
                "fewer_segments_than_minibatches",
                count=segments,
                minibatches=self.algorithm.minibatches,
                key="algorithm.segments",
            )
        return self
