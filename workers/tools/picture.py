"""A network as a Mermaid flowchart, by what a row goes through.

In flow: a policy and one row of what it is given. Out flow: the chart: each layer with the shape of its weights and of
what it gives of the row, and what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from workers.planning.policy_plan import PolicyPlan
from workers.policies.export.module import ExportedModule
from workers.rollout.acting_policy import ActingPolicy

_TOLD = ("log_probabilities", "action_values", "log_std", "amount")
"""Of what an export gives: what is beside the action."""


def chart(plan: PolicyPlan) -> str:
    """The network of one policy."""
    acting = ActingPolicy(plan.interface, plan.config)
    exported = ExportedModule(plan.interface, acting.module, plan.config.algorithm.frames, acting.state)
    given = dict(zip((port.name for port in exported.inputs), exported.example(1), strict=True))
    with torch.inference_mode(), _Tracing(acting.module, given) as tracing:
        told = exported.describe(tuple(given.values()))
    ends = {f"{name} ": tracing.sources(one) for name, one in told.items() if name not in _TOLD}
    labels = {name: f"{name}<br/>{_form(one)} {one.dtype}".replace("torch.", "") for name, one in given.items()}
    labels |= {name: f"{tracing.layers[name]}<br/>gives {_form(one)}" for name, one in tracing.given.items()}
    labels |= {name: name.strip() for name in ends}
    return "\n".join(["flowchart LR", *_arrows({**tracing.reads, **ends}, labels)])


def _arrows(reads: Mapping[str, list[str]], labels: Mapping[str, str]) -> Iterator[str]:
    """A line for each thing and what it reads; each has its label where it is named first."""
    numbers: dict[str, int] = {}

    def named(name: str) -> str:
        known = name in numbers
        number = numbers.setdefault(name, len(numbers))
        return f"n{number}" if known else f'n{number}["{labels[name]}"]'

    for name, sources in reads.items():
        if sources:
            yield f"  {' & '.join(map(named, sources))} --> {named(name)}"


class _Tracing(TorchFunctionMode):
    """In here it is written down which layer of `network` reads which other, or which of `given`."""

    def __init__(self, network: nn.Module, given: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.reads: dict[str, list[str]] = {}
        """Layer -> what it reads, in the order in which they compute."""
        self.given: dict[str, Tensor] = {}
        """Layer -> what it gives."""
        self.layers: dict[str, str] = {}
        """Layer -> its kind, and the shape of its weights."""
        self._weights = {id(weight): name for name, weight in self._named(network)}
        self._made = {id(one): [name] for name, one in given.items()}
        self._kept: list[Tensor] = []
        """So that no other tensor gets the identity of one of these."""

    def sources(self, *tensors: Tensor) -> list[str]:
        """What these are made of."""
        return list(dict.fromkeys(name for one in tensors for name in self._made.get(id(one), ())))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What `function` gives is made of what it was given."""
        found = function(*args, **(kwargs or {}))
        used = [*_tensors((args, kwargs))]
        layers, sources = [self._weights[id(one)] for one in used if id(one) in self._weights], self.sources(*used)
        for one in _tensors(found):
            self._kept.append(one)
            if layers and sources:
                before = self.reads.setdefault(layers[0], [])
                before += [name for name in sources if name not in (layers[0], *before)]
                self.given[layers[0]], self._made[id(one)] = one, [layers[0]]
            elif layers:  # a weight in another shape
                self._weights[id(one)] = layers[0]
            elif sources:
                self._made[id(one)] = sources
        return found

    def _named(self, network: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """The layer of each weight: a module without parts, or what it is called in one with parts."""
        for path, module in network.named_modules():
            for name, weight in module.named_parameters(recurse=False):
                part = name.removesuffix("weight").removesuffix("bias").rstrip("_") if any(module.children()) else ""
                layer = f"{path}.{part}"
                self.layers.setdefault(layer, f"{part or type(module).__name__} {_form(weight)}")
                yield layer, weight


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, Mapping):
        yield from _tensors([*found.values()])
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _tensors(one)


def _form(one: Tensor) -> str:
    return "x".join(str(size) for size in one.shape if size > 1) or "1"
