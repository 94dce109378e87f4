"""A second thread of a learner's process, which computes half of each gradient while a core is free.

In flow: the rows of a minibatch. Out flow: their loss and gradient, as one thread computes them but for the order in
which numbers are added. Both halves are ranks (workers/policies/tensors/collectives.py) on the same parameters. torch
gives the interpreter back in all that takes long, and so both compute at once.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from workers.algorithms.common.adam import FlatGradient
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.time_major import Rows
from workers.policies.tensors.collectives import Collective
from workers.policies.tensors.scratch import ScratchBuffers


class Halved(Protocol):
    """An update whose gradients may be computed in halves (workers/algorithms/stream.py)."""

    policy: Any
    optimizer: Any
    scratch: ScratchBuffers
    ranks: Collective
    halved: Callable[[Rows], tuple[Loss, Tensor]] | None

    def gradient(self, rows: Rows) -> tuple[Loss, Tensor]:
        """What `rows` ask of the policy, and the norm of its gradient."""


class _Half:
    """One of both threads, as `Collective` says."""

    size = 2

    def __init__(self, rank: int, told: list[Tensor], barrier: threading.Barrier) -> None:
        self.rank, self._told, self._barrier = rank, told, barrier

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of both."""
        self._told[self.rank] = x
        self._barrier.wait()
        total = self._told[0] + self._told[1]
        self._barrier.wait()  # who called may write over its own
        return total

    def gather(self, x: Tensor) -> Tensor:
        """[2, *shape]: that of each."""
        self._told[self.rank] = x
        self._barrier.wait()
        both = torch.stack(self._told)
        self._barrier.wait()
        return both


class SecondThread:
    """For `update`, whose policy is in host memory and stays there. Raises whatever the policy's modules raise when
    they are copied, and RuntimeError where the process may have no more threads."""

    def __init__(self, update: Halved) -> None:
        self._update, self._barrier = update, threading.Barrier(2)
        told = [torch.empty(0), torch.empty(0)]
        self._ranks = [_Half(rank, told, self._barrier) for rank in range(2)]
        self._policy = copy.deepcopy(update.policy)
        self._gradient, self._scratch = FlatGradient(self._policy), ScratchBuffers()
        for name in ("parameters", "buffers"):
            for mine, theirs in zip(getattr(self._policy, name)(), getattr(update.policy, name)(), strict=True):
                mine.data = theirs.data
        self.pool = ThreadPoolExecutor(1, "learner-half")
        self.pool.submit(_yield_to_actors).result()

    def gradient(self, rows: Rows) -> tuple[Loss, Tensor]:
        """As `StreamAlgorithm.gradient`."""
        if len(rows.index) < 2:
            return self._update.gradient(rows)
        first, second = (copy.copy(self._update) for _ in range(2))
        first.ranks, second.ranks = self._ranks
        second.policy, second.optimizer, second.scratch = self._policy, self._gradient, self._scratch
        mine, other = rows.halves()
        running = self.pool.submit(second.gradient, other)
        running.add_done_callback(lambda half: self._barrier.abort() if half.exception() else None)
        try:
            found, norm = first.gradient(mine)
        except threading.BrokenBarrierError:
            running.result()  # says why
            raise
        except BaseException:
            self._barrier.abort()
            raise
        finally:
            running.exception()
            self._barrier.reset()
        also, _ = running.result()
        return _merged(found, also), norm

    def close(self) -> None:
        """Ends the thread."""
        self.pool.shutdown()


def _yield_to_actors() -> None:
    """Lowers the priority of this thread where that is allowed: actors, who feed the learner, have the cores first."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5))


def _merged(first: Loss, second: Loss) -> Loss:
    """Of both halves: what they ask for and tell are terms of sums."""
    metrics = {name: one + second.metrics[name] for name, one in first.metrics.items()}
    joined = [
        None if one is None or two is None else torch.cat([one, two])
        for one, two in zip(first[2:], second[2:], strict=True)
    ]
    return Loss(first.total.detach() + second.total.detach(), metrics, *joined)
