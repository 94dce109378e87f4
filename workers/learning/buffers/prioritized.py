"""Which rows are worth replaying: drawn in proportion to a power of their last error (Schaul et al. 2016).

In flows: which records there are, and the errors of the rows drawn last. Out flow: rows drawn, with the weights that
make up for drawing them more or less often than others.

Priorities are sums in a binary tree over rows, made anew from their two parts wherever something changes, so that no
rounding adds up. Records are known by how many were admitted before them; record i of at most `segments` has the
leaves of place `i % segments`.

Legend: `b` rows drawn, `T` segment length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LEAST = 1e-6
"""Added to each error, so that none is never drawn again."""


class SumTree:
    """Weights of `leaves` leaves, 0 at first. Node 1 is the root, and the children of i are 2 i and 2 i + 1."""

    def __init__(self, leaves: int) -> None:
        self._depth = max(1, (leaves - 1).bit_length())
        self._first = 1 << self._depth
        self._nodes = np.zeros(2 * self._first, np.float64)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def weights(self, leaf: NDArray[np.int64]) -> NDArray[np.float64]:
        """Those of leaves [n]."""
        return self._nodes[self._first + leaf]

    def set(self, leaf: NDArray[np.int64], weight: NDArray[np.float64] | float) -> None:
        """Gives leaves [n] new weights, [n] or one for all; of a leaf named twice, the later."""
        if not len(leaf):
            return
        node = self._first + leaf
        self._nodes[node] = weight
        for _ in range(self._depth):
            node = np.unique(node >> 1)
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def find(self, mass: NDArray[np.float64]) -> NDArray[np.int64]:
        """The leaves [n] at which the weights, summed from the first on, exceed `mass` [n] in [0, total); never one of
        weight 0 while there are others."""
        node = np.ones(len(mass), np.int64)
        for _ in range(self._depth):
            left = self._nodes[2 * node]
            right = (mass >= left) & (self._nodes[2 * node + 1] > 0)
            mass = np.where(right, mass - left, mass)
            node = 2 * node + right
        return node - self._first


class PrioritizedSample(NamedTuple):
    """Rows [b] that were drawn."""

    record: NDArray[np.int64]
    row: NDArray[np.int64]
    weight: NDArray[np.float32]
    """(rows * probability)^-beta, divided by the greatest of them"""


class PrioritizedSampler:
    """Of at most `segments` records of `length` rows; rows are drawn in proportion to (error + 1e-6)^alpha, and new
    ones as those that had the greatest yet."""

    def __init__(self, segments: int, length: int, alpha: float) -> None:
        self._segments, self._length, self._alpha = segments, length, alpha
        self._tree = SumTree(segments * length)
        self._head = self._tail = 0
        self.greatest = 1.0
        """The greatest priority yet, which new rows are given."""
        self.rows = 0
        """Rows that may be drawn."""

    def sync(self, head: int, tail: int, valid: NDArray[np.uint16]) -> None:
        """There are now the records head..tail-1, no more than `segments`, with so many `valid` rows [tail - head]."""
        self.forget(np.arange(self._head, min(head, self._tail)))
        new = np.arange(max(head, self._tail), tail)
        row = np.arange(self._length)
        there = row < valid[new - head, None]
        self._tree.set(self._leaves(new)[there], self.greatest)
        self.rows += int(there.sum())
        self._head, self._tail = head, tail

    def forget(self, record: NDArray[np.int64]) -> None:
        """No row of records [n] is drawn again."""
        leaves = self._leaves(record).reshape(-1)
        self.rows -= int((self._tree.weights(leaves) > 0).sum())
        self._tree.set(leaves, 0.0)

    def weights(self, record: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n, T] of the rows of records [n], 0 where there is none."""
        return self._tree.weights(self._leaves(record))

    def restore(self, first: int, weights: NDArray[np.float64]) -> None:
        """Gives the records from `first` on, which are followed, the weights [n, T] that `weights` gave; rows that
        there are not keep none."""
        leaves = self._leaves(np.arange(first, first + len(weights)))
        there = self._tree.weights(leaves) > 0
        self._tree.set(leaves[there], weights[there])
        self.rows -= int((weights[there] == 0).sum())

    def draw(self, size: int, beta: float, rng: np.random.Generator) -> PrioritizedSample | None:
        """`size` rows, one from each of as many equal parts of the sum of all priorities (appendix B.2.1): every row in
        proportion to its own, and one with much of it several times. None if there are no rows."""
        total = self._tree.total
        if not total > 0:
            return None
        leaf = self._tree.find((np.arange(size) + rng.random(size)) * (total / size))
        weight = (self.rows * self._tree.weights(leaf) / total) ** -beta
        record = self._head + (leaf // self._length - self._head) % self._segments
        return PrioritizedSample(record, leaf % self._length, (weight / weight.max()).astype(np.float32))

    def learn(self, drawn: PrioritizedSample, errors: NDArray[np.float32]) -> None:
        """The rows `drawn` had these `errors` [b], not negative."""
        priority = (errors.astype(np.float64) + _LEAST) ** self._alpha
        self._tree.set(drawn.record % self._segments * self._length + drawn.row, priority)
        self.greatest = max(self.greatest, float(priority.max()))

    def _leaves(self, record: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n, T] of records [n]."""
        return record[:, None] % self._segments * self._length + np.arange(self._length)
