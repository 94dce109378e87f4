"""A policy as it acts outside: the leaves that it is deployed with go in, actions in the world's own units come out.

In flows, in the order of `ExportedModule.inputs`: a column for each leaf that acting needs, masks of legal actions, and
the state of a recurrent policy. Out flows, in the order of `ExportedModule.outputs`: the likeliest action, column by
column, and what the network says of it. All of it are torch operations, so that it can be recorded for other programs.

Legend: `n` rows (any number), `F` stacked frames, `I` numbers shown, `C` values of all heads, `D` amounts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from protocol.spaces import Leaf, dtype_of
from workers.policies.build import Policy
from workers.policies.export.export_manifest import ArraySpec
from workers.policies.export.reference_forward import NetworkOutput, evaluate
from workers.policies.interface import Interface
from workers.policies.observation_encoding import EncodedField

STATE, NEXT_STATE = "state", "next_state"


def ports_in(interface: Interface, frames: int, state: int) -> tuple[ArraySpec, ...]:
    """What a policy that stacks `frames` and remembers `state` numbers has to be given."""
    leaves = {"common" if leaf.common else leaf.name: leaf for leaf in interface.place.leaves}
    stacked = (frames,) if frames > 1 else ()
    ports = [_port(part.column, leaves[part.column], stacked) for part in interface.observation_encoding.parts]
    ports += [_port(leaf.name, leaf) for leaf in interface.place.leaves if leaf.role == "action_mask"]
    if state:
        ports.append(ArraySpec(name=STATE, dtype="<f4", shape=(state,)))
    return tuple(ports)


class _Choice(NamedTuple):
    """A leaf of the action that is chosen among: first values [k], how many there are of each."""

    start: Tensor
    sizes: tuple[int, ...]
    mask: str | None


class _Number(NamedTuple):
    """A leaf of the action that is k numbers: the network's times `scale` plus `middle`, cut to `low`..`high` [k]."""

    size: int
    scale: Tensor
    middle: Tensor
    low: Tensor
    high: Tensor


class ExportedModule(nn.Module):
    """`policy`, which sees and acts through `interface`, in host memory; it shares the policy's parameters."""

    def __init__(self, interface: Interface, policy: Policy, frames: int = 1, state: int = 0) -> None:
        super().__init__()
        self.policy, self.interface, self.frames = policy, interface, frames
        self.inputs = ports_in(interface, frames, state)
        self._held = {leaf.name: (_dtype(leaf), leaf.space.shape) for leaf in interface.place.acted.leaves}
        self._choices, self._numbers = _leaves(interface)
        self._values = {part.column: _values(part) for part in interface.observation_encoding.parts if part.choices}
        with torch.no_grad():
            told = self.describe(self.example(2))
        self.outputs = tuple(_told(name, column) for name, column in told.items())

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of the right form: zeros, and everything legal."""
        masks = {choice.mask for choice in self._choices.values()}
        columns = [np.full((rows, *port.shape), port.name in masks, port.dtype) for port in self.inputs]
        return tuple(map(torch.from_numpy, columns))

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """Columns [n, *shape] as in `inputs` -> columns as in `outputs`."""
        return tuple(self.describe(columns).values())

    def describe(self, columns: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The same by name."""
        given = {port.name: column for port, column in zip(self.inputs, columns, strict=True)}
        shown = self._shown(given) if self.interface.encoder is None else self._leaves_of(given)
        legal = self._legal(given)
        said = evaluate(self.policy, shown, given.get(STATE), legal)
        told = {**self._chosen(said, legal), **self._amounts(said)}
        found = {name: told.pop(name) for name in self._held} | told  # the action as its space has it, then the rest
        if said.value is not None:
            found["value"] = said.value
        if said.state is not None:
            found[NEXT_STATE] = said.state
        return found | said.declared

    def _leaves_of(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """What an encoder takes: columns by their paths."""
        return {part.path: given[part.column] for part in self.interface.observation_encoding.parts}

    def _shown(self, given: dict[str, Tensor]) -> Tensor:
        """[n, F * I] float32."""
        columns = [(part, given[part.column]) for part in self.interface.observation_encoding.parts]
        if self.frames > 1:
            columns = [(part, column.flatten(0, 1)) for part, column in columns]
        x = torch.cat([self._vector(part, column) for part, column in columns], 1)
        return x.reshape(-1, self.frames * self.interface.observation_encoding.width)

    def _vector(self, part: EncodedField, column: Tensor) -> Tensor:
        """[m, *shape] -> [m, width] float32, as `EncodedField.write` fills it."""
        rows = column.reshape(column.shape[0], -1)
        if not part.choices:
            return rows.to(torch.float32)
        element, value = self._values[part.column]
        return (rows.to(torch.int64)[:, element] == value).to(torch.float32)

    def _legal(self, given: dict[str, Tensor]) -> Tensor | None:
        """[n, C]; None where all values are legal, always."""
        if all(choice.mask is None for choice in self._choices.values()):
            return None
        rows = given[self.inputs[0].name].shape[0]
        masks = [
            torch.ones(1, sum(choice.sizes), dtype=torch.bool).expand(rows, -1)
            if choice.mask is None
            else given[choice.mask]
            for choice in self._choices.values()
        ]
        return torch.cat(masks, 1)

    def _chosen(self, said: NetworkOutput, legal: Tensor | None) -> dict[str, Tensor]:
        """The best of each choice, and what the network says of all."""
        best, heads = said.choices, list[Tensor]()
        if said.scores is not None:
            scores = said.scores if legal is None else said.scores.masked_fill(~legal, -1e9)
            heads = list(scores.split([size for choice in self._choices.values() for size in choice.sizes], 1))
            best = torch.stack([head.argmax(1) for head in heads], 1)
        found, at = dict[str, Tensor](), 0
        for name, choice in self._choices.items():
            assert best is not None
            found[name] = self._as(name, best[:, at : at + len(choice.sizes)] + choice.start)
            at += len(choice.sizes)
        if said.scores is None:
            return found
        if said.chances:
            return {**found, "log_probabilities": torch.cat([head.log_softmax(1) for head in heads], 1)}
        return {**found, "action_values": scores}

    def _amounts(self, said: NetworkOutput) -> dict[str, Tensor]:
        """Numbers in the world's units, and in the network's with the spread that acting gives them."""
        if said.amount is None:
            return {}
        found, at = {}, 0
        for name, number in self._numbers.items():
            chosen = said.amount[:, at : at + number.size] * number.scale + number.middle
            found[name] = self._as(name, chosen.maximum(number.low).minimum(number.high))
            at += number.size
        if said.log_std is not None:
            found |= {"amount": said.amount, "log_std": said.log_std.expand_as(said.amount).clone()}
        return found

    def _as(self, name: str, column: Tensor) -> Tensor:
        """[n, k] as the action's column `name` is held."""
        dtype, shape = self._held[name]
        return column.to(dtype).reshape(-1, *shape)


def _leaves(interface: Interface) -> tuple[dict[str, _Choice], dict[str, _Number]]:
    choices, numbers = {}, {}
    for told in interface.action_encoding.describe():
        name = told["column"]
        if "sizes" in told:
            mask = name.replace("action", "action_mask", 1) if told["masked"] else None
            choices[name] = _Choice(torch.tensor(told["start"]), tuple(told["sizes"]), mask)
        else:
            low = [-math.inf if one is None else one for one in told["low"]]
            high = [math.inf if one is None else one for one in told["high"]]
            numbers[name] = _Number(len(low), *map(torch.tensor, (told["scale"], told["middle"], low, high)))
    return choices, numbers


def _values(part: EncodedField) -> tuple[Tensor, Tensor]:
    """[width] each: which element of its column a number is about, and for which of its values it is 1."""
    element = [k for k, (_, count) in enumerate(part.choices) for _ in range(count)]
    value = [first + i for first, count in part.choices for i in range(count)]
    return torch.tensor(element), torch.tensor(value)


def _port(name: str, leaf: Leaf, stacked: tuple[int, ...] = ()) -> ArraySpec:
    return ArraySpec(name=name, dtype=dtype_of(leaf.space).str, shape=(*stacked, *leaf.space.shape))


def _told(name: str, column: Tensor) -> ArraySpec:
    return ArraySpec(name=name, dtype=column.numpy().dtype.str, shape=tuple(column.shape[1:]))


def _dtype(leaf: Leaf) -> torch.dtype:
    return torch.from_numpy(np.empty(0, leaf.space.dtype)).dtype
