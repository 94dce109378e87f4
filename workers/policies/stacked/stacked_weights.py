"""The weights of several policies of equal shape side by side in one memory, and gradients for each.

In flows: the policies' weights (`load`). Out flows: all of them as one tensor a layer, with a policy in each row, and
the weights back (`store`). No number of one policy reaches another. Policies of DQN or IQN become one like them, that
gives for rows [K, B, ...] what each gives for its own.

Legend: `K` policies, `P` numbers of the trainable parameters of each, `B` rows of each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from workers.policies.networks.q_policy import QPolicy
from workers.policies.tensors.flat_weights import flatten_

_DTYPES = {"<f4": torch.float32, "<f8": torch.float64, "<i8": torch.int64}


class StackedWeights:
    """Of `policies`, which stay where they are and as they are until `store`. Entries of whose names `rows` says so
    are added to rows: [K, 1, ...] here."""

    def __init__(self, policies: Sequence[nn.Module], rows: Callable[[str], bool]) -> None:
        self.members = len(policies)
        self._flat, self._rows = [flatten_(policy) for policy in policies], rows
        weights = self._flat[0]
        self._storage = torch.zeros(self.members, weights.nbytes, dtype=torch.uint8, device=weights.storage.device)
        self.parameters = self._storage[:, : 4 * weights.parameters.numel()].view(torch.float32)
        """[K, P]"""
        self.gradient = torch.zeros_like(self._storage).view(torch.float32)[:, : self.parameters.shape[1]]
        """[K, P]"""
        self._leaves: list[tuple[Tensor, Tensor]] = []
        """Parameters, and where their gradients go."""
        self.views = {
            entry.name: self._view(entry.name, entry.offset, entry.dtype, entry.shape) for entry in weights.entries
        }
        """[K, *shape] of every entry, by name; parameters are leaves."""

    def load(self) -> None:
        """The policies' weights of this moment."""
        torch.stack([flat.storage for flat in self._flat], out=self._storage)

    def row(self, member: int) -> Tensor:
        """[bytes]: the weights of one, as they are here."""
        return self._storage[member]

    def adopt(self, member: int, policy: nn.Module) -> None:
        """The weights of one, from `policy`, which is like it."""
        self._storage[member].copy_(flatten_(policy).storage)

    def store(self, *members: int) -> None:
        """What has become of them, to these policies."""
        if members:
            torch._foreach_copy_([self._flat[i].storage for i in members], [self._storage[i] for i in members])

    def span(self, prefix: str) -> Tensor:
        """[K, n]: the adjacent float32 entries of each whose names start with `prefix`."""
        one = self._flat[0].slice(prefix)
        start = one.data_ptr() - self._flat[0].storage.data_ptr()
        return self._storage[:, start : start + 4 * len(one)].view(torch.float32)

    def backward(self, loss: Tensor) -> None:
        """Replaces `gradient` by those of `loss` [K]."""
        self.gradient.zero_()
        found = torch.autograd.grad(loss.sum(), [leaf for leaf, _ in self._leaves])
        for (_, place), gradient in zip(self._leaves, found, strict=True):
            place.copy_(gradient)

    def _view(self, name: str, offset: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        size = _DTYPES[dtype].itemsize
        count = torch.Size(shape).numel()
        whole = self._storage[:, offset : offset + size * count].view(_DTYPES[dtype])
        form = (self.members, 1, *shape) if self._rows(name) else (self.members, *shape)
        if offset >= 4 * self.parameters.shape[1]:
            return whole.view(form)
        leaf = whole.view(form).detach().requires_grad_()
        self._leaves.append((leaf, self.gradient[:, offset // 4 : offset // 4 + count].view(form)))
        return leaf


Kind = TypeVar("Kind", bound=QPolicy)


def stack_policies(policies: Sequence[Kind]) -> tuple[Kind, StackedWeights]:
    """All of `policies` as one, and its weights. They stay as they are until these are stored."""
    weights = StackedWeights(policies, lambda name: name.endswith((".bias", ".bias_scale")))
    stacked = copy.deepcopy(policies[0])
    for name, view in weights.views.items():
        owner, _, leaf = name.rpartition(".")
        layer = stacked.get_submodule(owner)
        delattr(layer, leaf)
        setattr(layer, leaf, view)
    return stacked, weights
