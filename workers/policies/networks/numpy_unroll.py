"""What recurrent policies remember of whole segments, in host memory by numpy, with its gradient written out: one
policy's GRU, which torch runs step by step on a processor, and the LSTMs or GRUs of several policies as one.

In flows: inputs of all policies' rows, the states before them, the weights. Out flow: features, as `Core` gives them
for each policy alone, with gradients for the weights (none for inputs and states).

Rows lie as they are: no run is cut out, as what an episode leaves is multiplied by 0 where it ends. A true last
observation is one more step behind the row that it comes after.

Legend: as in stacked_actor_critic.py; `n` some rows of each policy, `S` numbers of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.kernels import gru_cell_, lstm_cell_

Array = NDArray[np.float32]


def is_supported(x: Tensor) -> bool:
    """Whether inputs `x` are where numpy sees them; it computes in float32, also where products are rounded to less."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()


def unroll(x: Tensor, recall: RecurrentContext, member: Tensor, place: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Features [K, M, U] of rows x [K, M, I], of which true last observations are those of policies `member` [k], at
    `place` [k] of M; `weights` as torch names them, of inputs, of the output before, and both biases, [K, ...] each:
    four gates are an LSTM's."""
    found: Tensor = _Unrolled.apply(x, recall, member, place, *weights)
    return found


class _Ends(NamedTuple):
    """Where episodes end, and what comes behind rows."""

    kept: Array
    """[T, K, b, 1]: 0 where nothing is remembered beyond a row"""
    behind: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Policy and row [k] that each true last observation comes after"""
    final: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Policy and column [k] of each true last observation"""

    @classmethod
    def of(cls, recall: RecurrentContext, member: Tensor, place: Tensor, many: int) -> _Ends:
        """Of the segments of `many` policies."""
        length, segments = recall.ended.shape
        width = segments // many
        kept = (~recall.ended).view(length, many, width, 1).numpy().astype(np.float32)
        row = recall.final_place // segments * width + recall.final_place % width
        whose = member.numpy()
        return cls(kept, (whose, row.numpy()), (whose, place.numpy() - (length + 1) * width))


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, recall: RecurrentContext, member: Tensor, place: Tensor, *weights: Tensor
    ) -> Tensor:
        inner = [weight.detach().numpy() for weight in weights]
        lstm = inner[1].shape[1] == 4 * inner[1].shape[2]
        ends = _Ends.of(recall, member, place, len(x))
        ctx.memory = memory = (_LSTM if lstm else _GRU)(x.detach().numpy(), inner, ends)
        memory.forward(recall.state.numpy())
        return torch.from_numpy(memory.output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        memory, ctx.memory = ctx.memory, None  # there is one gradient to take: it uses up what was kept
        found = memory.backward(gradients[0].numpy())
        return (None, None, None, None, *(torch.from_numpy(gradient) for gradient in found))


class _Memory:
    """All that a gradient needs of every row."""

    def __init__(self, x: Array, weights: Sequence[Array], ends: _Ends) -> None:
        self._x, (self.weight_ih, self.weight_hh, self._bias, self._staying_bias) = x, weights
        self._ends, (self._steps, _, self._width, _) = ends, ends.kept.shape
        self._own, self._units = (self._steps + 1) * self._width, self.weight_hh.shape[2]
        many, rows, _ = x.shape
        self.gates = np.matmul(x, self.weight_ih.swapaxes(1, 2))
        """[K, M, G]: what inputs say, then each gate."""
        self.gates += self._bias[:, None]
        self.output, self._before = (np.empty((many, rows, self._units), np.float32) for _ in range(2))
        """[K, M, U] after each row, and before it."""

    def forward(self, state: Array) -> None:
        """Forward, from `state` [K * b, S]."""
        self._begin(state.reshape(len(self._x), self._width, -1))
        for step in range(self._steps + 1):
            if step:
                self._follow(self._rows(step), self._rows(step - 1), self._ends.kept[step - 1])
            self._step(self._rows(step))
        if self._x.shape[1] > self._own:
            self._follow_finals(slice(self._own, None))
            self._step(slice(self._own, None))

    def backward(self, gradient: Array) -> tuple[Array, Array, Array, Array]:
        """Gradients of the weights, of that of `output`; uses up the gates."""
        onto, own, ends = gradient.copy(), self._own, self._ends
        onto_cell = np.zeros_like(onto)
        if self._x.shape[1] > own:
            before, cell = self._step_back(slice(own, None), onto[:, own:], onto_cell[:, own:])
            onto[ends.behind] += before[ends.final]
            onto_cell[ends.behind] += cell[ends.final]
        for step in range(self._steps, -1, -1):
            here = self._rows(step)
            before, cell = self._step_back(here, onto[:, here], onto_cell[:, here])
            if step:
                last, kept = self._rows(step - 1), ends.kept[step - 1]
                onto[:, last] += before * kept
                onto_cell[:, last] += cell * kept
        staying = self._onto_staying()
        return (
            np.matmul(self.gates.swapaxes(1, 2), self._x),
            np.matmul(staying.swapaxes(1, 2), self._before),
            self.gates.sum(1),
            staying.sum(1),
        )

    def _rows(self, step: int) -> slice:
        return slice(step * self._width, (step + 1) * self._width)

    def _begin(self, state: Array) -> None:
        """What is remembered before the first rows, [K, b, S]."""
        self._before[:, : state.shape[1]] = state[..., : self._units]

    def _follow(self, here: slice, last: slice, kept: Array) -> None:
        """What is left of what was remembered after rows `last`."""
        np.multiply(self.output[:, last], kept, out=self._before[:, here])

    def _follow_finals(self, here: slice) -> None:
        """What is remembered after the rows that true last observations come after."""
        self._before[:, here] = 0
        self._before[:, here][self._ends.final] = self.output[self._ends.behind]

    def _stayed(self, here: slice) -> Array:
        """What the output before says to the gates of rows `here`, [K, n, G]."""
        said = np.matmul(self._before[:, here], self.weight_hh.swapaxes(1, 2))
        said += self._staying_bias[:, None]
        return said

    def _step(self, here: slice) -> None:
        """Rows `here` of all policies, of which what was before is there."""
        raise NotImplementedError

    def _step_back(self, here: slice, onto: Array, onto_cell: Array) -> tuple[Array, Array]:
        """Gradients of output and cell before rows `here`, of those after them; puts that of what inputs say in the
        place of the gates."""
        raise NotImplementedError

    def _onto_staying(self) -> Array:
        """Gradient of what the output before says, [K, M, G]."""
        raise NotImplementedError


class _LSTM(_Memory):
    def _begin(self, state: Array) -> None:
        super()._begin(state)
        self._cell, self._cell_before, self._bent = (np.empty_like(self.output) for _ in range(3))
        """[K, M, U]: cells after each row and before it, and tanh of the former."""
        self._cell_before[:, : state.shape[1]] = state[..., self._units :]

    def _follow(self, here: slice, last: slice, kept: Array) -> None:
        super()._follow(here, last, kept)
        np.multiply(self._cell[:, last], kept, out=self._cell_before[:, here])

    def _follow_finals(self, here: slice) -> None:
        super()._follow_finals(here)
        self._cell_before[:, here] = 0
        self._cell_before[:, here][self._ends.final] = self._cell[self._ends.behind]

    def _step(self, here: slice) -> None:
        gates = self.gates[:, here]
        gates += self._stayed(here)
        made = self._cell[:, here], self._bent[:, here], self.output[:, here]
        lstm_cell_(gates, self._cell_before[:, here], *made)

    def _step_back(self, here: slice, onto: Array, onto_cell: Array) -> tuple[Array, Array]:
        enter, forget, new, leave = self._gates(here)
        bent = self._bent[:, here]
        onto_cell = onto_cell + onto * leave * (1 - bent * bent)
        before = onto_cell * forget
        leave *= (1 - leave) * bent * onto
        forget *= (1 - forget) * self._cell_before[:, here] * onto_cell
        entered = (1 - new * new) * enter * onto_cell
        enter *= (1 - enter) * new * onto_cell
        new[:] = entered
        return np.matmul(self.gates[:, here], self.weight_hh), before

    def _onto_staying(self) -> Array:
        return self.gates

    def _gates(self, here: slice) -> tuple[Array, Array, Array, Array]:
        """Enter, forget, new, leave: torch's order, [K, n, U] each."""
        gates, units = self.gates[:, here], self._units
        enter, forget, new, leave = (gates[..., i * units : (i + 1) * units] for i in range(4))
        return enter, forget, new, leave


class _GRU(_Memory):
    def _begin(self, state: Array) -> None:
        super()._begin(state)
        self._held = np.empty_like(self.output)
        """[K, M, U]: what the output before says to what is new, then the gradient of that."""

    def _step(self, here: slice) -> None:
        stayed = self._stayed(here)
        self._held[:, here] = stayed[..., 2 * self._units :]
        gru_cell_(self.gates[:, here], stayed, self._before[:, here], self.output[:, here])

    def _step_back(self, here: slice, onto: Array, onto_cell: Array) -> tuple[Array, Array]:
        reset, update, new = self._gates(here)
        held, units = self._held[:, here], self._units
        before = onto * update
        entered = (onto - before) * (1 - new * new)
        update *= (1 - update) * (self._before[:, here] - new) * onto
        new[:] = entered
        through = entered * reset
        reset *= (1 - reset) * held * entered
        held[:] = through
        before += np.matmul(self.gates[:, here, : 2 * units], self.weight_hh[:, : 2 * units])
        before += np.matmul(held, self.weight_hh[:, 2 * units :])
        return before, onto_cell

    def _onto_staying(self) -> Array:
        return np.concatenate([self.gates[..., : 2 * self._units], self._held], 2)

    def _gates(self, here: slice) -> tuple[Array, Array, Array]:
        """Reset, update, new: torch's order, [K, n, U] each."""
        gates, units = self.gates[:, here], self._units
        reset, update, new = (gates[..., i * units : (i + 1) * units] for i in range(3))
        return reset, update, new
