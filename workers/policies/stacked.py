"""Several policies of equal shape as one: their weights side by side in one memory, each layer one batched product.

In flows: the policies' weights (`gather`), and rows of all of them side by side. Out flows: outputs and values of every
row by its own policy, gradients for each, and the weights back (`scatter`). No number of one policy reaches another.

Legend: `K` policies, `T` segment length, `b` segments of each, `k` true last observations of all, `I` inputs, `A`
outputs, `D` amounts, `M = (T + 1) * b + m` rows of each, of which m, the most true last observations that one has, are
padded; `N = (T + 1) * K * b + k`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.policies.actor_critic import ActorCritic
from workers.policies.core import Recall
from workers.policies.flat import flatten_
from workers.policies.networks import CLIP, RunningMoments
from workers.policies.stacked_core import StackedCore
from workers.policies.towers import towers
from workers.policies.workspace import Workspace

__all__ = ["StackedActorCritic"]

_DTYPES = {"<f4": torch.float32, "<f8": torch.float64, "<i8": torch.int64}
_ROWS = ("layer_0_bias", "value_bias")
"""Biases that are added to rows: [K, 1, ...] here."""


class StackedActorCritic:
    """Of `policies`, which stay where they are and as they are until `scatter`."""

    def __init__(self, policies: Sequence[ActorCritic]) -> None:
        first, self.members = policies[0], len(policies)
        self.heads, self.shape, self.activation = first.heads, first.shape, first.activation
        self._features, self._scratch = first.features, Workspace()
        self._flat = [flatten_(policy) for policy in policies]
        weights = self._flat[0]
        self._storage = torch.zeros(self.members, weights.nbytes, dtype=torch.uint8, device=weights.storage.device)
        self.parameters = self._storage[:, : 4 * weights.parameters.numel()].view(torch.float32)
        """[K, P]"""
        self.gradient = torch.zeros_like(self._storage).view(torch.float32)[:, : self.parameters.shape[1]]
        """[K, P]"""
        self._leaves: list[tuple[Tensor, Tensor]] = []
        """Parameters, and where their gradients go."""
        self._views = {
            entry.name: self._view(entry.name, entry.offset, entry.dtype, entry.shape) for entry in weights.entries
        }
        names = [name for name, _ in first.named_parameters()]
        self._towers = [self._views[name] for name in names if name != "log_std" and not name.startswith("core.")]
        self._core = None if first.core is None else StackedCore(first.core, self._views)
        self.observations = None if first.observations is None else self._moments("observations", first.observations)
        self.returns = self._moments("returns", first.returns)

    def gather(self) -> None:
        """The policies' weights of this moment."""
        torch.stack([flat.storage for flat in self._flat], out=self._storage)

    def scatter(self, member: int) -> None:
        """What has become of them, to one policy."""
        self._flat[member].storage.copy_(self._storage[member])

    def backward(self, loss: Tensor) -> None:
        """Replaces `gradient` by those of `loss` [K]."""
        self.gradient.zero_()
        found = torch.autograd.grad(loss.sum(), [leaf for leaf, _ in self._leaves])
        for (_, place), gradient in zip(self._leaves, found, strict=True):
            place.copy_(gradient)

    def said(
        self, observation: Tensor, final_place: Tensor, segments: int, recall: Recall | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Rows `observation` [N, *shape] of `segments` = K * b segments, row t of segment i at t * K * b + i and the
        true last observations, after rows `final_place` [k], behind -> outputs [A, T * K * b], normalised values [N],
        both with gradients, values in the unit of the reward [N] without, and log_std [D, T * K * b] where actions have
        amounts."""
        rows = len(observation) - len(final_place)
        member = final_place % segments // (segments // self.members)
        x, place = self._inputs(observation, rows, segments, member)
        if self._core is not None:
            assert recall is not None
            x = torch.cat([x, self._core.unroll(x, recall, member, place)], 2)
        logits, values = towers(x, self._towers, self.activation, self._scratch)
        own = rows // self.members
        width = segments // self.members
        steps = own // width
        outputs = logits[..., : own - width].view(self.members, -1, steps - 1, width).permute(1, 2, 0, 3)
        along = values[:, :own].view(self.members, steps, width).transpose(0, 1).reshape(rows)
        real = self._real(values.detach())
        real_along = real[:, :own].view(self.members, steps, width).transpose(0, 1).reshape(rows)
        if len(final_place):
            along = torch.cat([along, values[member, place]])
            real_along = torch.cat([real_along, real[member, place]])
        log_std = self._views.get("log_std")
        if log_std is not None:
            log_std = log_std.T[:, None, :, None].expand(-1, steps - 1, -1, width).reshape(len(log_std.T), -1)
        return outputs.reshape(outputs.shape[0], -1), along, real_along, log_std

    def normal_value(self, value: Tensor) -> Tensor:
        """Values [T, K * b] in the unit of the reward as the value heads would say them, float32."""
        width = value.shape[1] // self.members
        mean, std = (of.float().repeat_interleave(width) for of in (self.returns.mean, self.returns.std))
        return (value - mean) / std

    @torch.no_grad()
    def update_returns(self, targets: Tensor) -> None:
        """Adds value targets [R, K] as `Scaled.update_returns` does."""
        mean, std = self.returns.mean.clone(), self.returns.std
        self.returns.update(targets)
        weight, bias = self._views["value_weight"], self._views["value_bias"]
        weight.mul_((std / self.returns.std).float()[:, None, None])
        moved = (bias * std[:, None, None] + (mean - self.returns.mean)[:, None, None]) / self.returns.std[
            :, None, None
        ]
        bias.copy_(moved)

    def _inputs(self, observation: Tensor, rows: int, segments: int, member: Tensor) -> tuple[Tensor, Tensor]:
        """[K, M, I] float32 in scratch memory, normalised where policies do that; and the place [k] of each true last
        observation among its policy's rows."""
        width, own = segments // self.members, rows // self.members
        counts = torch.bincount(member, minlength=self.members)
        most = int(counts.max()) if len(member) else 0
        shape = (self.members, own + most, self._features)
        x = self._scratch.take("inputs", shape, self.parameters)
        flat = observation.reshape(-1, self._features)
        x[:, :own].view(self.members, -1, width, self._features).copy_(
            flat[:rows].view(-1, self.members, width, self._features).transpose(0, 1)
        )
        place = own + torch.arange(len(member), device=member.device) - (counts.cumsum(0) - counts)[member]
        if most:
            x[:, own:] = 0
            x[member, place] = flat[rows:].to(x.dtype)
        if self.observations is not None:
            moments = self.observations
            x.sub_(moments.mean[:, None]).div_(moments.std[:, None]).clamp_(-CLIP, CLIP)
        return x, place

    def _real(self, values: Tensor) -> Tensor:
        """Normalised values [K, M] in the unit of the reward."""
        return values * self.returns.std.float()[:, None] + self.returns.mean.float()[:, None]

    def _view(self, name: str, offset: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """[K, *shape] of an entry of the weights; parameters are leaves."""
        size = _DTYPES[dtype].itemsize
        count = torch.Size(shape).numel()
        whole = self._storage[:, offset : offset + size * count].view(_DTYPES[dtype])
        form = (self.members, 1, *shape) if name in _ROWS else (self.members, *shape)
        if offset >= 4 * self.parameters.shape[1]:
            return whole.view(form)
        leaf = whole.view(form).detach().requires_grad_()
        self._leaves.append((leaf, self.gradient[:, offset // 4 : offset // 4 + count].view(form)))
        return leaf

    def _moments(self, name: str, alike: RunningMoments) -> RunningMoments:
        """Of all policies, over the columns of rows [R, K, ...]."""
        moments = RunningMoments(memory=alike.memory, floor=alike.floor)
        mean = self._views[f"{name}.mean"]
        moments.mean, moments.variance = mean, self._views[f"{name}.variance"]
        moments.count = self._views[f"{name}.count"].view(self.members, *[1] * (mean.dim() - 1))
        return moments
