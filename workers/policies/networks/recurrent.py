"""What a policy remembers: a core in front of its perceptrons, an LSTM, a GRU or another (workers/policies/cores/).

In flows: inputs and, for each stream, the state before them. Out flow: features, which the perceptrons take beside the
inputs themselves. A state is one row of numbers, so that it travels as one field (the output, then an LSTM's cell);
zeros are none.

Legend: `I` inputs, `U` units, `S` numbers of a state (U, or 2U for an LSTM), `T` segment length, `b` segments, `k`
true last observations, `N = (T + 1) * b + k` rows, `r` runs, `l` steps of the longest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from workers.policies.networks import numpy_unroll
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.kernels import to_float32

Kind = Literal["lstm", "gru"]

_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an LSTM (Hochreiter & Schmidhuber 1997, with forget gates) as torch defines it: the sums of its gates
    [..., n, 4U], in the order enter, forget, new, leave, and its cell [..., n, U] -> output and cell after the step."""
    enter, forget, new, leave = to_float32(gates).chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_cell(entering: Tensor, staying: Tensor, output: Tensor) -> Tensor:
    """One step of a GRU (Cho et al. 2014) as torch defines it: what inputs and the output before say to its gates
    [..., n, 3U], in the order reset, update, new, and that output [..., n, U] -> the output after it."""
    reset, update, new = to_float32(entering).chunk(3, -1)
    held_reset, held_update, held_new = to_float32(staying).chunk(3, -1)
    fresh = (new + (reset + held_reset).sigmoid() * held_new).tanh()
    return fresh + (update + held_update).sigmoid() * (output - fresh)


class Core(nn.Module):
    """What remembers: it gives `size` (U) features, and its state is `state_size` (S) numbers."""

    size: int
    state_size: int

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of n streams: x [n, I], state [n, S] -> features [n, U] and the states after it [n, S]."""
        outputs, after = self._run(x[None], state)
        return outputs[0], after

    def unroll(self, x: Tensor, recall: RecurrentContext) -> Tensor:
        """Features [N, U] of rows x [N, I], of which row t of segment i is at t * b + i and the rest are true last
        observations; with gradients for the parameters, and for `x` where it wants one.

        Rows are cut into runs that nothing crosses: each begins with a segment, in its state, or with an episode, in
        none, and a true last observation is one more step of its own. Runs of like length are one call, which is many
        times faster than step by step.
        """
        order, begin, length = _episode_runs(recall, len(x))
        first, segments = order[begin], recall.ended.shape[1]
        state = recall.state[first % segments].masked_fill((first >= segments)[:, None], 0.0)
        # not every processor has one of less, and on CUDA torch would make it float16, in which small gradients vanish
        in_float32 = torch.autocast(x.device.type, enabled=False)
        parts, places = [], []
        for runs, steps in _length_buckets(length):
            step = torch.arange(steps, device=x.device)[:, None]
            real = step < length[runs]
            place = order[(begin[runs] + step).clamp(max=len(x) - 1)]
            with in_float32:
                found, _ = self._run(x[place], state[runs])
            parts.append(to_float32(found[real]))
            places.append(place[real])
        features = torch.empty(len(x), self.size, dtype=x.dtype, device=x.device)
        return features.index_copy(0, torch.cat(places), torch.cat(parts))

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[l, r, I] from states [r, S] -> [l, r, U] and the states after the last step."""
        raise NotImplementedError


def recalled(core: Core | None, x: Tensor, recall: RecurrentContext | None) -> Tensor:
    """Rows x [N, I] with what `core`, where there is one, remembers of them beside it, as `Core.unroll` says."""
    if core is None:
        return x
    assert recall is not None
    return torch.cat([x, core.unroll(x, recall)], 1)


class RecurrentCore(Core):
    """An LSTM or a GRU."""

    def __init__(self, inputs: int, size: int, kind: Kind) -> None:
        super().__init__()
        self.size, self.kind, self.state_size = size, kind, 2 * size if kind == "lstm" else size
        self.cell = nn.LSTM(inputs, size) if kind == "lstm" else nn.GRU(inputs, size)
        with torch.no_grad():
            for parameter in self.cell.parameters():
                if parameter.dim() == 1:
                    parameter.zero_()
                else:
                    for gate in parameter.chunk(4 if kind == "lstm" else 3):
                        nn.init.orthogonal_(gate)
            if kind == "lstm":  # to remember is the habit, to forget is learned (Jozefowicz et al. 2015, section 5)
                self.cell.get_parameter("bias_ih_l0")[size : 2 * size] = 1.0

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same, on CUDA by a cell: for one step cuDNN's kernel is several times slower."""
        if not x.is_cuda:
            return super().step(x, state)
        weights = [self.cell.get_parameter(f"{name}_l0") for name in _WEIGHTS]
        if self.kind == "gru":
            features = after = torch.gru_cell(x, state, *weights)
        else:
            features, cell = torch.lstm_cell(x, [*state.split(self.size, 1)], *weights)
            after = torch.cat([features, cell], 1)
        return features, after

    def unroll(self, x: Tensor, recall: RecurrentContext) -> Tensor:
        """The same, of a GRU in host memory by numpy, as a stack of one."""
        if self.kind != "gru" or not numpy_unroll.is_supported(x) or x.requires_grad:
            return super().unroll(x, recall)
        own = (len(recall.ended) + 1) * recall.ended.shape[1]
        place = torch.arange(own, len(x))
        weights = [self.cell.get_parameter(f"{name}_l0")[None] for name in _WEIGHTS]
        return numpy_unroll.unroll(x[None], recall, torch.zeros_like(place), place, weights)[0]

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "gru":
            found, after = self.cell(x, state[None])
            return found, after[0]
        output, cell = state[None].split(self.size, 2)
        found, (output, cell) = self.cell(x, (output.contiguous(), cell.contiguous()))
        return found, torch.cat([output[0], cell[0]], 1)


def _episode_runs(recall: RecurrentContext, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The places [N] of all rows, run after run; where in these each run begins [r]; and its steps [r]."""
    (length, segments), device = recall.ended.shape, recall.ended.device
    time = torch.arange(length + 1, device=device)[:, None]
    segment = torch.arange(segments, device=device)
    moment = 2 * (segment * (length + 1) + time).flatten()
    order = torch.cat([moment, moment[recall.final_place] + 1]).argsort()
    begins = torch.zeros(rows, dtype=torch.bool, device=device)
    begins[:segments] = True
    begins[segments : (length + 1) * segments] = recall.ended.flatten()
    begin = begins[order].nonzero()[:, 0]
    return order, begin, torch.diff(begin, append=begin.new_tensor([rows]))


def _length_buckets(length: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Runs in groups, each with its most steps, of which none has less than half."""
    ordered, index = length.sort(descending=True)
    steps = ordered.tolist()
    start = 0
    while start < len(steps):
        end = bisect_right(steps, -(steps[start] / 2), start, key=int.__neg__)
        yield index[start:end], steps[start]
        start = end
