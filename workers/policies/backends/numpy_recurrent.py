"""What one recurrent policy remembers, step by step in host memory by numpy alone: of one stream at a quarter (LSTM) to
half (GRU) of the price of torch, whose calls cost more than what they compute. Of many streams it is no dearer or a
little dearer, and spares the rest of acting its way through torch (numpy_actor.py).

In flows: inputs and the state before them, the weights of a `RecurrentCore` as they are. Out flows: features, and the
state after them, to within the order of sums what `RecurrentCore.step` says.

Legend: `n` streams, `I` inputs, `U` units, `S` numbers of a state, `G` numbers of all gates (4U, or 3U of a GRU).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.policies.networks.recurrent import RecurrentCore
from workers.policies.tensors.kernels import gru_cell_, lstm_cell_

Array = NDArray[np.float32]

_AT_ONCE = 256
"""Streams whose gates are formed at once: those of more leave the processor's cache before they are used."""


class NumpyRecurrentCore:
    """`core`, whose weights it sees as they are: they must stay where they lie (`flatten_`)."""

    def __init__(self, core: RecurrentCore) -> None:
        self.size, self._lstm = core.size, core.kind == "lstm"
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        entering, staying, self._bias, self._staying_bias = (
            core.cell.get_parameter(name).detach().numpy() for name in names
        )
        self._entering, self._staying = entering.T, staying.T
        self._held = np.empty((2, 0), np.float32)
        """Memory of both products, of as many rows as there ever were at once."""

    def step(self, x: Array, state: Array, features: Array) -> Array:
        """One step of x [n, I] in `state` [n, S]: writes `features` [n, U], returns the states after it [n, S]."""
        after = np.empty(state.shape, np.float32)
        for start in range(0, len(x), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            self._step(x[some], state[some], features[some], after[some])
        return after

    def _step(self, x: Array, state: Array, features: Array, after: Array) -> None:
        units = self.size
        gates, staying = self._rooms(len(x))
        np.matmul(x, self._entering, out=gates)
        gates += self._bias
        np.matmul(state[:, :units], self._staying, out=staying)
        staying += self._staying_bias
        if self._lstm:
            gates += staying
            lstm_cell_(gates, state[:, units:], after[:, units:], features, features)
        else:
            gru_cell_(gates, staying, state, features)
        after[:, :units] = features

    def _rooms(self, rows: int) -> tuple[Array, Array]:
        """[n, G] for each product, without content."""
        gates = self._entering.shape[1]
        if self._held.shape[1] < rows * gates:
            self._held = np.empty((2, rows * gates), np.float32)
        entering, staying = self._held[:, : rows * gates].reshape(2, rows, gates)
        return entering, staying
