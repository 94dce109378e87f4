"""Outputs of a policy's network that an algorithm of the user's own declares, beside those that it has anyway, and
which of them segments keep as columns.

In flow: `outputs` and `columns` of the class that `policy.algorithm.entry` names. Out flows: their forms, or a
ConfigurationError in one sentence; what the network says of rows, by name.

Legend: `N` rows, `F` features, `W` numbers of all outputs, `C` of all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor, nn

from protocol.config.network import EntryNetwork
from protocol.config.run import C51, DQN, IQN, PolicyConfig, Streamed
from protocol.config.trainable import DeclaredOutput
from protocol.errors import ConfigurationError
from protocol.experience.layout import OUTPUT
from workers.policies.action_encoding import ActionEncoding, ActionSpec
from workers.policies.networks.layers import Perceptron, orthogonal_layer
from workers.policies.tensors.kernels import Activation, to_float32
from workers.runtime.entry_points import calling, import_entry_point

ENTRY = "policy.algorithm.entry"
FORMS = "module:Class, a rookery.StreamAlgorithm or rookery.ReplayAlgorithm"
_KNOWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ppo", "impala"), ("policy", "value")),
    **dict.fromkeys(("dqn", "vdn", "qmix"), ("q",)),
    "c51": ("atoms",),
    "iqn": ("quantiles",),
    "sac": ("policy", "q"),
}
"""Outputs that networks have anyway, by the algorithm's name."""
_TAKEN = {"legal", *(name for names in _KNOWN.values() for name in names)}
_DTYPES = ("f2", "f4", "f8")


class Output(NamedTuple):
    """An output of the network: `shape` of what it says of a row, or what makes that of the action."""

    name: str
    shape: tuple[int, ...] | Callable[[ActionSpec], tuple[int, ...]] = ()


class RowColumn(NamedTuple):
    """A column of segments: what the output of this name says when the policy acts. Where `outputs` has none of this
    name, the network is given one, a number."""

    name: str
    dtype: str = "f4"


def declared_outputs(config: PolicyConfig, actions: ActionEncoding) -> tuple[DeclaredOutput, ...] | None:
    """What the class declares that `config` names, for a policy that acts by `actions`; None: nothing.
    ConfigurationError where it cannot be had."""
    algorithm: Any = config.algorithm
    entry = getattr(algorithm, "entry", None)
    if entry is None:
        return None
    kind = import_entry_point(entry, ENTRY, FORMS)
    found: dict[str, DeclaredOutput] = {}
    spec, facts = actions.spec, {"key": ENTRY, "value": entry}
    known = _KNOWN[algorithm.name]
    for one in _listed(kind, "outputs"):
        if isinstance(one, str) and one in known:
            continue
        shape: Any = one.shape if isinstance(one, Output) else None
        if callable(shape):
            with calling(entry, lambda **at: ConfigurationError("algorithm_failed", **facts, **at)):
                shape = shape(spec)
        fits = isinstance(shape, tuple) and all(type(size) is int and size > 0 for size in shape)
        if not fits or one.name in found or not _nameable(one.name):
            expected = f"a rookery.Output with a name of its own and a shape, or one of {', '.join(known)}"
            raise ConfigurationError("declared_output_unfit", **facts, field="outputs", found=one, expected=expected)
        found[one.name] = DeclaredOutput(name=one.name, shape=shape)
    for one in _listed(kind, "columns"):
        fits = isinstance(one, RowColumn) and one.dtype in _DTYPES and _nameable(one.name)
        before = found.get(one.name, DeclaredOutput(name=one.name)) if fits else None
        if before is None or before.dtype is not None:
            expected = f"a rookery.Column with a name of its own and a dtype of {', '.join(_DTYPES)}"
            raise ConfigurationError("declared_output_unfit", **facts, field="columns", found=one, expected=expected)
        found[one.name] = before.model_copy(update={"dtype": f"<{one.dtype}"})
    if found and not _possible(config):
        raise ConfigurationError("declared_outputs_refused", **facts, found=", ".join(found), algorithm=algorithm.name)
    return tuple(found.values()) or None


def _listed(kind: Any, field: str) -> Sequence[Any]:
    said = getattr(kind, field, ())
    return said if isinstance(said, tuple | list) else [said]


def _nameable(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and name not in _TAKEN


def _possible(config: PolicyConfig) -> bool:
    """Whether its networks can have more outputs."""
    if isinstance(config.algorithm, Streamed):
        return not config.algorithm.central_critic
    return isinstance(config.algorithm, DQN | C51 | IQN) and not isinstance(config.network, EntryNetwork)


class DeclaredOutputs(nn.Module):
    """The outputs `declared` of F `features`, by hidden layers and a last one of their own. Without these they are
    among what a whole network of the user's own gives, before the value, which is last."""

    def __init__(
        self,
        declared: Sequence[DeclaredOutput],
        features: int | None,
        hidden: Sequence[int],
        activation: Activation,
    ) -> None:
        super().__init__()
        self._forms = {one.name: one.shape for one in declared}
        self.kept = {one.name: one.shape for one in declared if one.dtype is not None}
        """Shapes of what a row keeps, by name."""
        self._width = sum(map(prod, self._forms.values()))
        self.perceptron = self.head = None
        if features is not None:
            self.perceptron = Perceptron(features, hidden, activation)
            self.head = orthogonal_layer(nn.Linear(self.perceptron.outputs, self._width), 1.0)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """[N, F] -> what is said, [N, *shape] each."""
        if self.perceptron is None or self.head is None:
            return _split(features[:, -1 - self._width : -1], self._forms)
        return _split(to_float32(self.head(self.perceptron(features))), self._forms)

    def columns(self, features: Tensor) -> dict[str, Tensor]:
        """What a row keeps of what is said, as its fields are called."""
        said = self(features)
        return {OUTPUT + name: said[name] for name in self.kept}

    def acted(self, features: Tensor) -> dict[str, NDArray]:
        """`columns` as arrays."""
        return {name: one.cpu().numpy() for name, one in self.columns(features).items()}


def kept(policy: nn.Module, columns: Tensor | None) -> dict[str, Tensor]:
    """Columns of `policy` that lie side by side [..., C], by name [..., *shape]; TypeError where none are declared."""
    declared = getattr(policy, "declared", None)
    if columns is None or declared is None:
        raise TypeError("no columns are declared; list them as `columns` of the class")
    return _split(columns, declared.kept)


def _split(rows: Tensor, forms: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    parts = rows.split([*map(prod, forms.values())], -1)
    return {name: part.reshape(*part.shape[:-1], *forms[name]) for name, part in zip(forms, parts, strict=True)}
