"""The memories of several recurrent policies as one: each step of all their streams is one batched product.

In flows: inputs of all policies' rows, the states before them, the policies' weights. Out flow: features, as
`RecurrentCore` gives them for each policy alone.

Legend: `K` policies, `T` segment length, `b` segments of each, `k` true last observations of all, `I` inputs, `U`
units, `G` numbers of all gates, `M` rows of each: (T + 1) * b, row t of segment i at t * b + i, then true last
observations, padded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from workers.policies.backends import cuda_recurrent
from workers.policies.networks import numpy_unroll
from workers.policies.networks.recurrent import RecurrentCore, gru_cell, lstm_cell
from workers.policies.networks.recurrent_context import RecurrentContext


class StackedCore:
    """Of cores like `alike`; `views`: their parameters by name, [K, ...] each."""

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
