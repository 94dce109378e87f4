"""Several policies of equal shape as one: their weights side by side in one memory, each layer one batched product.

In flows: the policies' weights (stacked_weights.py), and rows of all of them side by side. Out flows: outputs and
values of every row by its own policy. No number of one policy reaches another.

Legend: `K` policies, `T` segment length, `b` segments of each, `k` true last observations of all, `I` inputs, `A`
outputs, `D` amounts, `M = (T + 1) * b + m` rows of each, of which m, the most true last observations that one has, are
padded, row t of segment i at t * b + i; `N = (T + 1) * K * b + k`; of memories `U` units, `G` numbers of all gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workers.policies.backends import cuda_recurrent
from workers.policies.networks import numpy_unroll
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.actor_critic_mlp import actor_critic_mlp
from workers.policies.networks.normalization import CLIP, RunningMoments, keep_values_
from workers.policies.networks.recurrent import RecurrentCore, gru_cell, lstm_cell
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.stacked.stacked_weights import StackedWeights
from workers.policies.tensors.scratch import ScratchBuffers

_ROWS = ("layer_0_bias", "value_bias")
"""Biases that are added to rows: [K, 1, ...] here."""


class StackedActorCritic:
    """Of `policies`, which stay as they are until their weights are scattered."""

    def __init__(self, policies: Sequence[ActorCritic]) -> None:
        first, self.members = policies[0], len(policies)
        self.heads, self.shape, self.activation = first.heads, first.shape, first.activation
        self._features, self._scratch = first.features, ScratchBuffers()
        self.weights = StackedWeights(policies, _ROWS.__contains__)
        self._views = self.weights.views
        names = [name for name, _ in first.named_parameters()]
        self.towers = [self._views[name] for name in names if name != "log_std" and not name.startswith("core.")]
        self.core = StackedCore(first.core, self._views) if isinstance(first.core, RecurrentCore) else None
        self.observations = None if first.observations is None else self._moments("observations", first.observations)
        self.returns = self._moments("returns", first.returns)

    def forward(
        self,
        observation: Tensor,
        final_place: Tensor,
        segments: int,
        recall: RecurrentContext | None,
        even: bool = False,
        ahead: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Rows `observation` [N, *shape] of `segments` = K * b segments, row t of segment i at t * K * b + i and the
        true last observations, after rows `final_place` [k] (`even`: equally many of each segment), behind -> outputs
        [A, T * K * b] and normalised values [(T + 1) * K * b], both with gradients, values in the unit of the reward
        [N] without, and log_std [D, T * K * b] where actions have amounts. With `ahead` 0 there is no row T."""
        rows = len(observation) - len(final_place)
        member = final_place % segments // (segments // self.members)
        x, place = self._inputs(observation, rows, segments, member, even)
        if self.core is not None:
            assert recall is not None
            x = torch.cat([x, self.core.unroll(x, recall, member, place)], 2)
        logits, values = actor_critic_mlp(x, self.towers, self.activation, self._scratch)
        own = rows // self.members
        width = segments // self.members
        steps = own // width
        outputs = logits[..., : own - ahead * width].view(self.members, -1, steps - ahead, width).permute(1, 2, 0, 3)
        along = values[:, :own].view(self.members, steps, width).transpose(0, 1).reshape(rows)
        real = self.real(values.detach())
        real_along = real[:, :own].view(self.members, steps, width).transpose(0, 1).reshape(rows)
        if len(final_place):
            real_along = torch.cat([real_along, real[member, place]])
        log_std = self._views.get("log_std")
        if log_std is not None:
            log_std = log_std.T[:, None, :, None].expand(-1, steps - ahead, -1, width).reshape(len(log_std.T), -1)
        return outputs.reshape(outputs.shape[0], -1), along, real_along, log_std

    def acting_inputs(self, observation: Tensor) -> Tensor:
        """[K, n, *shape] -> [K, n, I] float32 in scratch memory, normalised where policies do that."""
        rows = observation.reshape(*observation.shape[:2], self._features)
        return self._normal(self._scratch.take("acting", tuple(rows.shape), self.weights.parameters).copy_(rows))

    def normalize(self, value: Tensor) -> Tensor:
        """Values [T, K * b] in the unit of the reward as the value heads would say them, float32."""
        width = value.shape[1] // self.members
        mean, std = (of.float().repeat_interleave(width) for of in (self.returns.mean, self.returns.std))
        return (value - mean) / std

    @torch.no_grad()
    def update_returns(self, targets: Tensor) -> None:
        """Adds value targets [R, K] as `PopArtValue.update_returns` does."""
        before = self._spread()
        self.returns.update(targets)
        keep_values_(self._views["value_weight"], self._views["value_bias"], before, self._spread())

    def _spread(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of returns [K, 1, 1], of this moment."""
        return self.returns.mean.clone()[:, None, None], self.returns.std[:, None, None]

    def _inputs(
        self, observation: Tensor, rows: int, segments: int, member: Tensor, even: bool
    ) -> tuple[Tensor, Tensor]:
        """[K, M, I] float32 in scratch memory, normalised where policies do that; and the place [k] of each true last
        observation among its policy's rows."""
        width, own = segments // self.members, rows // self.members
        if even:
            most = len(member) // self.members
            first = member * most
        else:
            counts = torch.bincount(member, minlength=self.members)
            most = int(counts.max()) if len(member) else 0
            first = (counts.cumsum(0) - counts)[member]
        shape = (self.members, own + most, self._features)
        x = self._scratch.take("inputs", shape, self.weights.parameters)
        flat = observation.reshape(-1, self._features)
        x[:, :own].view(self.members, -1, width, self._features).copy_(
            flat[:rows].view(-1, self.members, width, self._features).transpose(0, 1)
        )
        place = own + torch.arange(len(member), device=member.device) - first
        if most:
            x[:, own:] = 0
            x[member, place] = flat[rows:].to(x.dtype)
        return self._normal(x), place

    def _normal(self, x: Tensor) -> Tensor:
        """Inputs [K, M, I], normalised in place where policies do that."""
        if self.observations is None:
            return x
        return x.sub_(self.observations.mean[:, None]).div_(self.observations.std[:, None]).clamp_(-CLIP, CLIP)

    def real(self, values: Tensor) -> Tensor:
        """Normalised values [K, M] in the unit of the reward."""
        return values * self.returns.std.float()[:, None] + self.returns.mean.float()[:, None]

    def _moments(self, name: str, alike: RunningMoments) -> RunningMoments:
        """Of all policies, over the columns of rows [R, K, ...]."""
        moments = RunningMoments(memory=alike.memory, floor=alike.floor, least=alike.least)
        mean = self._views[f"{name}.mean"]
        moments.mean, moments.variance = mean, self._views[f"{name}.variance"]
        moments.count = self._views[f"{name}.count"].view(self.members, *[1] * (mean.dim() - 1))
        return moments


class StackedCore:
    """The memories of cores like `alike` as one: each step of all their streams is one batched product, and each policy
    gets what its own would give. `views`: their parameters by name, [K, ...] each."""

    def __init__(self, alike: RecurrentCore, views: Mapping[str, Tensor]) -> None:
        self._size, self._lstm = alike.size, alike.kind == "lstm"
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        self._weights = [views[f"core.cell.{name}"] for name in names]
        self._entering, self._staying, self._bias, self._staying_bias = self._weights

    def unroll(self, x: Tensor, recall: RecurrentContext, member: Tensor, place: Tensor) -> Tensor:
        """Features [K, M, U] of rows x [K, M, I], with gradients for the parameters. True last observations are those
        of policies `member` [k], at `place` [k] of M. Where runs were counted, it is one policy, and one call; in host
        memory, where no product is rounded, numpy does it."""
        if recall.runs:
            return cuda_recurrent.unroll(x[0], recall, [weight.squeeze(0) for weight in self._weights])[None]
        if numpy_unroll.is_supported(x) and not torch.is_autocast_enabled("cpu"):
            return numpy_unroll.unroll(x, recall, member, place, self._weights)
        (length, segments), many = recall.ended.shape, len(x)
        width, own = segments // many, (length + 1) * (segments // many)
        gates = torch.baddbmm(self._bias[:, None], x, self._entering.mT)
        along = gates[:, :own].view(many, length + 1, width, -1)
        kept = (~recall.ended).view(length, many, width, 1).to(x.dtype)
        output, cell = recall.state.view(many, width, -1).tensor_split([self._size], 2)
        outputs, cells = [], []
        for step in range(length + 1):
            if step:
                output, cell = output * kept[step - 1], cell * kept[step - 1]
            output, cell = self._step(along[:, step], output, cell)
            outputs.append(output)
            cells.append(cell)
        found = torch.stack(outputs, 1).view(many, own, -1)
        if x.shape[1] == own:
            return found
        at = recall.final_place // segments * width + recall.final_place % width
        to = member, place - own
        before = (self._padded(of, (member, at), to, x.shape[1] - own) for of in (found, torch.stack(cells, 1)))
        return torch.cat([found, self._step(gates[:, own:], *before)[0]], 1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of n streams of each: x [K, n, I], state [K, n, S] -> features [K, n, U] and states after it."""
        output, cell = state.tensor_split([self._size], 2)
        output, cell = self._step(torch.baddbmm(self._bias[:, None], x, self._entering.mT), output, cell)
        return output, torch.cat([output, cell], 2) if self._lstm else output

    def _step(self, gates: Tensor, output: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """What goes into `gates` [K, n, G] and the state before it -> output [K, n, U] and cell after it."""
        staying = torch.baddbmm(self._staying_bias[:, None], output, self._staying.mT)
        if self._lstm:
            return lstm_cell(gates + staying, cell)
        return gru_cell(gates, staying, output), cell

    def _padded(self, rows: Tensor, of: tuple[Tensor, Tensor], to: tuple[Tensor, Tensor], most: int) -> Tensor:
        """Rows `of` [k] of `rows` [K, ...] at places `to` of [K, most, ...]."""
        flat = rows.flatten(1, -2)
        return flat.new_zeros(len(flat), most, flat.shape[2]).index_put(to, flat[of])
