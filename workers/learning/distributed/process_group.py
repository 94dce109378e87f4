"""The ranks of one policy as torch.distributed joins them: what they add up, and when all of them are ready.

In flow: a tensor of each rank. Out flow: the same on all of them. While an update is made ranks wait for each other;
until all have something to train on they only ask, and go on receiving meanwhile. One that dies is seen by all others.

Legend: `R` ranks, `F` facts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from protocol.errors import RookeryError

_LONGEST = timedelta(days=30)
"""For the question whether all are ready: who waits for what is told by the coordinator long before."""
_LOOK_EVERY = 0.0002


class RankLost(RookeryError):
    """Another rank of this policy is gone; none can go on without it."""


class ProcessGroup:
    """`size` ranks of `policy`, of which this is `rank`; they meet at `store` and reach this one at `host`. No wait
    within an update takes longer than `patience` seconds. `nccl`: each has a GPU of its own, `device`."""

    def __init__(
        self,
        policy: str,
        store: dist.Store,
        rank: int,
        size: int,
        host: str = "127.0.0.1",
        patience: float = 120.0,
        device: torch.device | None = None,
        nccl: bool = False,
    ) -> None:
        self.size, self.rank, self._policy = size, rank, policy
        self._work: Any = None
        self._facts = torch.empty(0)
        with self._together():
            self._gloo = _gloo(dist.PrefixStore("gloo", store), rank, size, host, patience)
            self._gpus = _nccl(dist.PrefixStore("nccl", store), rank, size, patience, device) if nccl else None

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, which may be changed in place."""
        with self._together():
            if self._gpus is not None and x.is_cuda:
                self._gpus.allreduce([x]).wait()
                return x
            there = x.cpu()
            self._gloo.allreduce([there]).wait()
            return there.to(x.device)

    def gather(self, x: Tensor) -> Tensor:
        """[R, *shape]: the `x` of each, in host memory where they are gathered there."""
        with self._together():
            there = x.cpu().contiguous()
            each = [torch.empty_like(there) for _ in range(self.size)]
            self._gloo.allgather([each], [there]).wait()
            return torch.stack(each).to(x.device)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's become everybody's."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        with self._together():
            for tensor in tensors:
                there = tensor.detach().cpu().contiguous()
                self._gloo.broadcast([there], options).wait()
                with torch.no_grad():
                    tensor.copy_(there)

    @property
    def poll_ready(self) -> bool:
        """Whether an answer is still to come."""
        return self._work is not None

    def announce_ready(self, facts: Sequence[float]) -> None:
        """Tells all others `facts` [F], without waiting for theirs."""
        self._facts = torch.zeros(self.size, len(facts), dtype=torch.float64)
        self._facts[self.rank] = torch.tensor(facts, dtype=torch.float64)
        options = dist.AllreduceOptions()
        options.timeout = _LONGEST
        with self._together():
            self._work = self._gloo.allreduce([self._facts], options)

    def answer(self, seconds: float) -> Tensor | None:
        """What all ranks told, [R, F], as soon as the last of them has, if that is within `seconds`."""
        end = time.monotonic() + seconds
        while not self._work.is_completed():
            if time.monotonic() >= end:
                return None
            time.sleep(_LOOK_EVERY)
        work, self._work = self._work, None
        with self._together():
            work.wait()
        return self._facts

    def close(self) -> None:
        """Leaves the others, also while they owe an answer: torch waits for that, which is no reason to stay."""
        left, asked = [self._work, self._gloo, self._gpus], self.poll_ready
        self._work = self._gloo = self._gpus = None
        if asked:
            threading.Thread(target=left.clear, name="leaving", daemon=True).start()

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as fault:  # what torch.distributed raises says who, at which address
            said = str(fault).split(". ")[0].rpartition("] ")[2]
            raise RankLost("rank_lost", policy=self._policy, reason=said) from fault


def _gloo(store: dist.Store, rank: int, size: int, host: str, patience: float) -> Any:
    """On the network interface of `host` alone: a process group of torch's own would listen wherever this machine's
    name leads."""
    backend: Any = dist.ProcessGroupGloo
    options = backend._Options()
    options._devices = [backend.create_device(hostname=host)]
    options._timeout = timedelta(seconds=patience)
    return backend(store, rank, size, options)


def _nccl(store: dist.Store, rank: int, size: int, patience: float, device: torch.device | None) -> Any:
    backend: Any = dist.ProcessGroupNCCL
    torch.cuda.set_device(device)
    options = backend.Options()
    options._timeout = timedelta(seconds=patience)
    return backend(store, rank, size, options)
