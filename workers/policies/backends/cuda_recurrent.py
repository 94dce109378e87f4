"""What one recurrent policy remembers, in shapes that never change, as CUDA graphs ask: one call of torch's LSTM or
GRU, on CUDA cuDNN's.

In flows: as of `RecurrentCore.unroll`, and its weights. Out flow: the same features.

Each run (recurrent.py) is a column of its own, as long as the longest can be, and there are columns for as many runs as
there can be: how many there are, and how long they are, only decides where rows lie. A true last observation lies
behind the row that it comes after, which is the last of its run. What nothing lies in is computed for nothing. It is
columns that there are more of, and not steps (an LSTM could be made to forget by a step between two episodes), as on a
GPU steps wait for each other and columns do not.

cuDNN wants weights side by side, without the padding between those of a policy, and would copy each into memory of its
own in every call, with a warning; `cat` does the same as one operation, and hands their gradients back as one.

Legend: as in recurrent.py; `R` columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.kernels import to_float32


def unroll(x: Tensor, recall: RecurrentContext, weights: Sequence[Tensor]) -> Tensor:
    """Features [N, U] of rows x [N, I], as `RecurrentCore.unroll` gives them, with gradients for `weights`, in order:
    of inputs, of the output before, and both biases; four gates are an LSTM's. Of R = `recall.runs` columns.

    True last observations after row T are none, and may get any features. More runs than columns are an IndexError, on
    CUDA an assertion on the device.
    """
    length, columns = len(recall.ended), recall.runs
    step, column = _places(recall)
    given = x.new_zeros(length + 2, columns, x.shape[1])  # what is none lies in the last step, which nobody makes
    given[step, column] = x
    begun = recall.state
    state = torch.cat([begun, begun.new_zeros(columns - len(begun), begun.shape[1])])
    with torch.autocast(x.device.type, enabled=False):  # as in Core.unroll
        found = _run(given[:-1], state, weights)
    return to_float32(found).flatten(0, 1).index_select(0, step.clamp(max=length) * columns + column)


def _places(recall: RecurrentContext) -> tuple[Tensor, Tensor]:
    """Step and column of each row [N]."""
    ended = recall.ended
    begins = torch.cat([torch.ones_like(ended[:1]), ended])
    time = torch.arange(len(begins), device=ended.device)[:, None]
    number = begins.flatten().cumsum(0).view_as(begins) - 1
    column = torch.where(begins, number, 0).cummax(0).values
    step = time - torch.where(begins, time, 0).cummax(0).values
    step, column, final = step.flatten(), column.flatten(), recall.final_place
    behind = torch.where(final < ended.numel(), step[final] + 1, len(begins))
    return torch.cat([step, behind]), torch.cat([column, column[final]])


def _run(x: Tensor, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """[l, R, I] from states [R, S] -> [l, R, U]."""
    flat = torch.cat([weight.flatten() for weight in weights]).split([weight.numel() for weight in weights])
    side_by_side = [part.view_as(weight) for part, weight in zip(flat, weights, strict=True)]
    # biases, layers, dropout, training (or there would be no gradient), both directions, streams first
    how = True, 1, 0.0, True, False, False
    gates, units = weights[1].shape
    if gates == 3 * units:
        return torch.gru(x, state[None], side_by_side, *how)[0]
    output, cell = (part.contiguous() for part in state[None].split(units, 2))
    return torch.lstm(x, (output, cell), side_by_side, *how)[0]
