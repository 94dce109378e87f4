"""What reads an observation before the rest of a network: `policy.network.encoder`.

In flow: a name, a section, or one of these for each part of an observation. Out flow: a section with its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError

Units = Annotated[int, Field(ge=1, le=65_536)]


class MLPEncoder(ConfigModel):
    """Numbers as they are, each choice one-hot, through layers of their own."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Units, ...] = ()
    """Units of each layer; none: what is seen goes on as it is."""


class CNNEncoder(ConfigModel):
    """Convolutions over an image and one layer behind them. From 64 pixels on those of Mnih et al. (2015): 32 of 8x8 by
    4, 64 of 4x4 by 2, 64 of 3x3; below, 16 and 32 of 3x3."""

    name: Literal["cnn"] = "cnn"
    features: Units | None = None
    """Units of the layer behind the convolutions; null: 512 from 64 pixels on, 128 below."""


class ResidualEncoder(ConfigModel):
    """The residual network of IMPALA (Espeholt et al. 2018, figure 3): each section a convolution, pooling by 2 and two
    residual blocks."""

    name: Literal["impala"] = "impala"
    channels: tuple[Units, ...] = (16, 32, 32)
    """Of each section."""
    features: Units = 256
    """Units of the layer behind them."""


class TokensEncoder(ConfigModel):
    """Text and other rows of tokens: an embedding of each token and of its place."""

    name: Literal["tokens"] = "tokens"
    size: Units = 32
    """Numbers of an embedding."""
    features: Units = 64
    """Units of the layer behind it."""
    by: Literal["attention", "gru"] = "attention"
    """What brings tokens together: attention among them and their mean, or a GRU from the first to the last."""


class EntitiesEncoder(ConfigModel):
    """A set of entities, each a row of numbers, in any order; a row of zeros is nobody."""

    name: Literal["entities"] = "entities"
    size: Units = 64
    """Units of the two layers for each entity."""
    heads: Units = 4
    """Questions asked of all of them, each a mean weighted by attention."""
    features: Units = 64
    """Units of the layer behind it."""


class EntryEncoder(ConfigModel):
    """A torch module of the user's own; all other keys are its keyword arguments."""

    model_config = ConfigDict(extra="allow")

    entry: str = Field(pattern=r"^[^:]+:[^:]+$")
    """`module:Class`, found as `environment.id` is. It is built with an `ObservationSpec`, says how many `features` it
    gives and has `forward(observation) -> [N, features]`."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its keyword arguments."""
        return dict(self.model_extra or {})


_NAMES = ("mlp", "cnn", "impala", "tokens", "entities")


def _kind(given: Any) -> str:
    if not isinstance(given, Mapping):
        return str(getattr(given, "name", "own"))
    return "own" if "entry" in given else str(given["name"]) if "name" in given else "each"


def _section(given: Any) -> Any:
    """One encoder with its name as a key; ConfigurationError for what is none."""
    if isinstance(given, ConfigModel):
        return given
    given = {"name": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or ("entry" not in given and given.get("name") not in _NAMES):
        value = given.get("name", given) if isinstance(given, Mapping) else given
        raise ConfigurationError("encoder_unknown", value=value, choices=_NAMES)
    if "entry" in given and "name" in given:
        raise ConfigurationError("encoder_name_and_entry", value=given["name"])
    return given


def _whole(given: Any) -> Any:
    """The same, or one for each part."""
    return given if isinstance(given, Mapping) and given and not {"name", "entry"} & {*given} else _section(given)


OneEncoder = (
    Annotated[MLPEncoder, Tag("mlp")]
    | Annotated[CNNEncoder, Tag("cnn")]
    | Annotated[ResidualEncoder, Tag("impala")]
    | Annotated[TokensEncoder, Tag("tokens")]
    | Annotated[EntitiesEncoder, Tag("entities")]
    | Annotated[EntryEncoder, Tag("own")]
)
_Part = Annotated[OneEncoder, Discriminator(_kind), BeforeValidator(_section)]


Encoder = Annotated[
    OneEncoder | Annotated[dict[str, _Part], Field(min_length=1), Tag("each")],
    Discriminator(_kind),
    BeforeValidator(_whole),
]
"""One for all that is seen, or one for each part by its path, as `{image: cnn, mission: tokens}`: what they give is
joined, and parts that are not named are read as they are without a section."""


def entries(encoder: OneEncoder | Mapping[str, OneEncoder] | None) -> set[str]:
    """The user's own code that `encoder` names."""
    given = encoder.values() if isinstance(encoder, Mapping) else (encoder,)
    return {one.entry for one in given if isinstance(one, EntryEncoder)}
