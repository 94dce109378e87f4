"""Work that is the same every time, recorded once as a CUDA graph and then replayed: it costs the host one call.

In flow: pieces of work on tensors that never move, independent of each other. Out flow: the work done, each piece as a
branch of one graph, several at a time on streams of their own. The first times, and wherever it cannot be recorded, the
pieces run as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

log = logging.getLogger(__name__)

Work = Callable[[], None]

_WARM = 3
"""Times that a piece runs as it is before it is recorded: libraries set themselves up the first time."""
_STREAMS = 8


class GraphCache:
    """On `device`. Without CUDA nothing is recorded, and all pieces run one after the other."""

    def __init__(self, device: torch.device, streams: int = _STREAMS) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) for _ in range(streams)] if self._cuda else []
        self._done: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._broken = False

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return len(self._graphs)

    def run(self, key: Hashable, pieces: Sequence[Work]) -> None:
        """All `pieces`, which are the same for the same `key`."""
        if not self._cuda:
            for piece in pieces:
                piece()
            return
        graph = self._graphs.get(key)
        if graph is None and not self._broken and self._done.get(key, 0) >= _WARM:
            graph = self._record(key, pieces)
        if graph is not None:
            graph.replay()
            return
        self._done[key] = self._done.get(key, 0) + 1
        self._branch(pieces)

    def forget(self, stale: Callable[[Any], bool]) -> None:
        """What was done for each key that is `stale`: it will not be asked for again, and its memory is given back."""
        for key in [key for key in self._done if stale(key)]:
            del self._done[key]
            if key in self._graphs:
                torch.cuda.synchronize(self._device)  # it may still be on its way
                del self._graphs[key]

    def _record(self, key: Hashable, pieces: Sequence[Work]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads copy weights meanwhile
                self._branch(pieces)
        except RuntimeError as fault:
            self._broken = True
            reason = str(fault.__context__ or fault).splitlines()[0]  # what ends the capture only says that it failed
            log.warning("event=capture_failed reason=%s remedy=updates run one operation at a time", reason)
            return None
        self._graphs[key] = graph
        log.info("event=captured graphs=%d branches=%d", len(self._graphs), len(pieces))
        return graph

    def _branch(self, pieces: Sequence[Work]) -> None:
        """Each on one of the streams, which all begin after what was asked for before and end before what follows."""
        here = torch.cuda.current_stream(self._device)
        if len(pieces) == 1:
            pieces[0]()
            return
        used = self._streams[: len(pieces)]
        for stream in used:
            stream.wait_stream(here)
        for number, piece in enumerate(pieces):
            with torch.cuda.stream(used[number % len(used)]):
                piece()
        for stream in used:
            here.wait_stream(stream)
