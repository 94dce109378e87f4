"""From a row of what a policy is shown to features, by the encoder that the configuration names.

In flow: rows [N, (F,) *shown]. Out flow: features [N, features] float32, with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor, nn

from protocol.config.network import CNNEncoder, EntitiesEncoder, EntryEncoder, MLPEncoder, OneEncoder, TokensEncoder
from protocol.errors import ConfigurationError
from workers.policies.encoders.cnn import CNN, Residual
from workers.policies.encoders.composite import Composite
from workers.policies.encoders.entities import Entities
from workers.policies.encoders.entry import build_entry
from workers.policies.encoders.mlp import MLP
from workers.policies.encoders.observation_spec import LeafSpec, ObservationSpec
from workers.policies.encoders.own_network import OwnNetwork
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.encoders.tokens import Tokens, token_range
from workers.policies.networks.layers import RowEncoder
from workers.policies.networks.normalization import RunningMoments
from workers.policies.observation_encoding import ObservationEncoding
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.kernels import Activation, to_float32

_KEY = "policy.network.encoder"
_WHAT = {
    **dict.fromkeys(
        ("cnn", "impala"), "images (bytes or bits of two or three dimensions, or floats from 0 to 1 of three)"
    ),
    "tokens": "choices, text and whole numbers of at most 65,536 values",
    "entities": "numbers of two dimensions, a row for each entity",
}
"""What each of ours reads that does not read everything."""


class PolicyEncoder(RowEncoder):
    """The encoder `config`, or what that makes, of a policy that is shown rows in `encoding`, of which it stacks
    `frames`. With `normalize` leaves of floats, but for sets of entities, are read in units of their running
    deviation."""

    def __init__(
        self,
        config: OneEncoder | Mapping[str, OneEncoder] | Callable[[ObservationSpec], nn.Module],
        encoding: ObservationEncoding,
        activation: Activation,
        *,
        frames: int = 1,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self._splitter = RowSplitter(encoding, frames)
        self.spec = self._splitter.spec
        self.network = config(self.spec) if callable(config) else _built(config, self.spec, activation)
        floats = [path for path, leaf in self.spec.items() if normalize and leaf.dtype.is_floating_point]
        # in a set no place is like another, and zeros are nobody
        self._normalized = [path for path in floats if not isinstance(self._reading(path), Entities)]
        self.moments = nn.ModuleList(RunningMoments(prod(self.spec[path].shape)) for path in self._normalized)
        self.features = int(self.network.features)  # type: ignore[arg-type] # a number

    def forward(self, rows: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Rows [N, (F,) *shown], or the leaves' own columns by path -> [N, features]."""
        leaves = self._splitter.split(rows)
        for path, moments in self._statistics():
            leaf = leaves[path]
            leaves[path] = moments.standard(leaf.reshape(-1, moments.mean.numel())).view(leaf.shape)
        return to_float32(self.network(self.spec.given(leaves)))

    def observe(self, rows: Tensor, ranks: Collective = SINGLE_PROCESS) -> None:
        """Adds rows that all `ranks` saw to the statistics."""
        leaves = self._splitter.split(rows)
        for path, moments in self._statistics():
            moments.update(leaves[path].reshape(-1, moments.mean.numel()).to(torch.float32), ranks)

    def reader(self, path: str) -> str:
        """What reads the leaf `path`, in a word or two."""
        network = self._reading(path)
        if isinstance(network, OwnNetwork):
            return f"{type(network.module).__name__}, {network.features} outputs"
        return f"{type(network).__name__}, {network.features} features"

    def flattens(self, path: str) -> bool:
        """Whether each number of the leaf `path` is an input of its own."""
        return isinstance(self._reading(path), MLP)

    def scale(self, path: str) -> float | None:
        """What the bytes of the image at `path` are divided by; None: it is none, or nothing of ours reads it so."""
        network = self._reading(path)
        return network.scale if isinstance(network, CNN | Residual) and network.leaf.dtype == torch.uint8 else None

    def _reading(self, path: str) -> nn.Module:
        return self.network.reading(path) if isinstance(self.network, Composite) else self.network

    def _statistics(self) -> list[tuple[str, RunningMoments]]:
        return list(zip(self._normalized, self.moments, strict=True))  # type: ignore[arg-type] # as they were made


def _built(
    config: OneEncoder | Mapping[str, OneEncoder], observation: ObservationSpec, activation: Activation
) -> nn.Module:
    """What reads all of `observation`."""
    if isinstance(config, EntryEncoder):
        return build_entry(config, observation, _KEY)
    if isinstance(config, MLPEncoder):
        return MLP(observation, config.hidden, activation)
    if isinstance(config, Mapping):
        named = dict(config)
        for path in named:
            if path not in observation:
                raise ConfigurationError("encoder_part_unknown", key=_KEY, value=path, choices=list(observation))
    elif observation.alone:
        return _of_one(config, observation, activation)
    else:
        tokens = isinstance(config, TokensEncoder)  # among several leaves those that are nothing else
        fit = {path: leaf for path, leaf in observation.items() if reads(config, leaf)}
        named = {path: config for path, leaf in fit.items() if leaf.choices or not tokens}
        if not named:
            raise _cannot_read(config.name, _KEY, observation)
    pictures = (path for path, leaf in observation.items() if leaf.holds_pixels)
    named |= {path: CNNEncoder() for path in pictures if path not in named}
    if observation.alone:
        return _of_one(named.get(observation.leaf.path, MLPEncoder()), observation, activation)
    encoders: dict[tuple[str, ...], nn.Module] = {
        (path,): _of_one(one, observation.part(path), activation) for path, one in named.items()
    }
    others = tuple(path for path in observation if path not in named)
    if others:
        encoders[others] = MLP(observation.part(*others), (), activation)
    return Composite(encoders, observation)


def reads(config: OneEncoder, leaf: LeafSpec) -> bool:
    """Whether `config`, one of ours for one leaf, can read this one."""
    if isinstance(config, TokensEncoder):
        return token_range(leaf) is not None
    return len(leaf.shape) == 2 and not leaf.choices if isinstance(config, EntitiesEncoder) else leaf.is_image


def _of_one(config: OneEncoder, part: ObservationSpec, activation: Activation) -> nn.Module:
    """What reads one leaf."""
    where = f"{_KEY}.{part.leaf.path}"
    if isinstance(config, EntryEncoder):
        return build_entry(config, part, where)
    if isinstance(config, MLPEncoder):
        return MLP(part, config.hidden, activation)
    if not reads(config, part.leaf):
        raise _cannot_read(config.name, where, part)
    if isinstance(config, TokensEncoder):
        return Tokens(part, config.size, config.features, config.by)
    if isinstance(config, EntitiesEncoder):
        return Entities(part, config.size, config.heads, config.features)
    if isinstance(config, CNNEncoder):
        return CNN(part, config.features, config.scale)
    return Residual(part, config.channels, config.features, config.scale)


def _cannot_read(name: str, key: str, seen: ObservationSpec) -> ConfigurationError:
    return ConfigurationError("encoder_cannot_read", key=key, value=name, reads=_WHAT[name], found=seen)
