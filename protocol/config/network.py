"""What a policy's network consists of: `policy.network`, its encoder, which reads an observation first, and its core,
which remembers.

In flow: names and sections. Out flow: sections with their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError

Units = Annotated[int, Field(ge=1, le=65_536)]
_Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Entry = Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]


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
    scale: _Scale | None = None
    """What the image is divided by; null: bytes by the greatest one of their space, bits and floats by nothing."""


class ResidualEncoder(ConfigModel):
    """The residual network of IMPALA (Espeholt et al. 2018, figure 3): each section a convolution, pooling by 2 and two
    residual blocks."""

    name: Literal["impala"] = "impala"
    channels: tuple[Units, ...] = (16, 32, 32)
    """Of each section."""
    features: Units = 256
    """Units of the layer behind them."""
    scale: _Scale | None = None
    """What the image is divided by; null: bytes by the greatest one of their space, bits and floats by nothing."""


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


class OwnModule(ConfigModel):
    """A torch module of the user's own; all other keys are its keyword arguments."""

    model_config = ConfigDict(extra="allow")

    entry: _Entry

    @property
    def settings(self) -> dict[str, Any]:
        """Its keyword arguments."""
        return dict(self.model_extra or {})


class EntryEncoder(OwnModule):
    """One that reads."""

    entry: _Entry
    """`module:Class`, found as `environment.id` is. It is built with an `ObservationSpec`, says how many `features` it
    gives and has `forward(observation) -> [N, features]`."""


class CellCore(ConfigModel):
    """A recurrent layer."""

    name: Literal["lstm", "gru"] = "lstm"
    size: Units = 128
    """Its units."""

    @property
    def state(self) -> int:
        """Numbers that a stream's memory consists of: an LSTM's output and cell, a GRU's output."""
        return self.size * {"gru": 1, "lstm": 2}[self.name]


class AttentionCore(ConfigModel):
    """Attention over the rows of the episode that came last."""

    name: Literal["attention"] = "attention"
    size: Units = 128
    """Features that it gives, a part from each head."""
    heads: Units = 4
    """Questions asked of the past, each of which takes an equal part of `size`."""
    window: int = Field(default=16, ge=1, le=4096)
    """Rows that are remembered before the present one."""

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.size % self.heads:
            raise ConfigurationError("core_heads_do_not_divide", value=self.size, heads=self.heads, key="heads")
        return self


class EntryCore(OwnModule):
    """One that remembers."""

    entry: _Entry
    """`module:Class`, found as `environment.id` is. It is built with the number of features that it is given, says how
    many `features` it gives, and has `initial_state(rows)` and `forward(features, state, first)`."""


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


_CORES = ("none", "lstm", "gru", "attention")


def _core(given: Any) -> Any:
    """One core with its name as a key, or None; ConfigurationError for what is none."""
    if given is None or isinstance(given, ConfigModel):
        return given
    section = {"name": given} if isinstance(given, str) else given
    own = isinstance(section, Mapping) and "entry" in section and "name" not in section
    if not own and (not isinstance(section, Mapping) or "entry" in section or section.get("name") not in _CORES):
        raise ConfigurationError("core_unknown", value=given, choices=_CORES)
    return None if section.get("name") == "none" else section


def _core_kind(given: Any) -> str:
    return str(given.get("name", "own") if isinstance(given, Mapping) else getattr(given, "name", "own"))


Core = Annotated[
    Annotated[CellCore, Tag("lstm")]
    | Annotated[CellCore, Tag("gru")]
    | Annotated[AttentionCore, Tag("attention")]
    | Annotated[EntryCore, Tag("own")],
    Discriminator(_core_kind),
]


class Network(ConfigModel):
    """An encoder of what is seen, a core that remembers, and a multi-layer perceptron, which sees what both give: units
    of the hidden layers and their activation."""

    encoder: Encoder | None = None
    """What reads an observation first: `mlp`, `cnn`, `impala`, `tokens`, `entities`, a section with one of these as
    `name`, `{entry: module:Class}` for a torch module of your own, or one for each part, as `{image: cnn}`; null: `cnn`
    for images of bytes from 0 to 255 or of bits, all else as numbers."""
    core: Annotated[Core | None, BeforeValidator(_core)] = None
    """What remembers the episode: `lstm`, `gru`, `attention`, a section with one of these as `name`, or `{entry:
    module:Class}` for a torch module of your own; null, or `none`: nothing."""
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Of the hidden layers."""
    share_layers: bool = False
    """Let the value be told from the policy's hidden layers, which then cost half as much; false: it has its own."""
    autoregressive: bool | tuple[str, ...] | None = None
    """Let each choice of an action see those before it, and numbers all of them, with `ppo`, `impala` and `bc`: true,
    in the order of the action's parts, or the parts in the order in which they are chosen, as `[target, weapon]`; null:
    all are independent of one another."""

    @property
    def parts(self) -> tuple[Encoder | Core | EntryNetwork | None, ...]:
        """What of it may be the user's own code."""
        return (self.encoder, self.core)

    @property
    def entries(self) -> set[str]:
        """The user's own code that it names."""
        given = self.encoder.values() if isinstance(self.encoder, Mapping) else (self.encoder,)
        return {one.entry for one in (*given, self.core) if isinstance(one, OwnModule)}


class EntryNetwork(OwnModule):
    """A whole network of the user's own, which has none of the parts of ours."""

    encoder: ClassVar[None] = None
    core: ClassVar[None] = None
    hidden: ClassVar[tuple[int, ...]] = ()
    activation: ClassVar[Literal["tanh"]] = "tanh"
    share_layers: ClassVar[bool] = False
    autoregressive: ClassVar[None] = None

    entry: _Entry
    """`module:Class`, found as `environment.id` is. It is built with an `ObservationSpec`, an `ActionSpec` and the
    shapes of the outputs that the algorithm needs, and has `forward(observation) -> {name: [N, *shape]}`."""

    @property
    def parts(self) -> tuple[Encoder | Core | EntryNetwork | None, ...]:
        """What of it may be the user's own code."""
        return (self,)

    @property
    def entries(self) -> set[str]:
        """The user's own code that it names."""
        return {self.entry}


def _network_kind(given: Any) -> str:
    own = "entry" in given if isinstance(given, Mapping) else isinstance(given, EntryNetwork)
    return "own" if own else "parts"


AnyNetwork = Annotated[
    Annotated[Network, Tag("parts")] | Annotated[EntryNetwork, Tag("own")], Discriminator(_network_kind)
]
"""Encoder, core and perceptron, or `{entry: module:Class, ...}`, a torch module of the user's own that is all of it."""
