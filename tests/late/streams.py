"""Work in streams, none of which is done before somebody waits for it: the latest that CUDA allows.

In flows: work, events, waits of streams for each other, graphs that are captured and replayed. Out flow: the work done,
in an order that CUDA could have chosen: what somebody waits for, what it waits for itself, and nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["CAPTURING", "Captured", "Event", "Machine", "Stream"]

Work = Callable[[], None]

CAPTURING = "operation not permitted when stream is capturing"


class Stream:
    """A queue of work and of waits for work of other streams."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.queue: deque[Work | Event] = deque()
        self.asked = self.done = 0

    def wait_stream(self, other: Stream) -> None:
        """What is asked for from now on comes after what `other` was asked for."""
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        """What is asked for from now on comes after `event`."""
        self.machine.wait(self, event)

    def record_event(self, event: Event | None = None) -> Event:
        """Happens when all is done that was asked for."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """All is done that was asked for."""
        self.machine.finish(self, self.asked)

    def query(self) -> bool:
        """Whether all is done; asking is no waiting, but time goes by."""
        return self.record_event().query()


class Event:
    """A place in a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stream: Stream | None = None
        self.place = self._asked = 0
        self.captured: Captured | None = None
        self.known: dict[Stream, int] = {}
        """Within what is captured: up to where all that comes after it comes after other streams."""

    def record(self, stream: Stream) -> None:
        """Happens when all is done that `stream` was asked for."""
        self.stream, self.place, self._asked = stream, stream.machine.end(stream), 0
        self.captured = stream.machine.capturing(stream)
        if self.captured is not None:
            self.known = {**self.captured.known.get(stream, {}), stream: self.place}

    def query(self) -> bool:
        """Whether it has happened; when it is asked for the third time it has."""
        self._asked += 1
        if self.stream is not None and self._asked > 2:
            self.stream.machine.finish(self.stream, self.place)
        return self.stream is None or self.stream.done >= self.place

    def synchronize(self) -> None:
        """It has happened."""
        if self.stream is not None:
            self.stream.machine.finish(self.stream, self.place)

    def wait(self, stream: Stream) -> None:
        """What `stream` is asked for from now on comes after it."""
        stream.wait_event(self)

    def elapsed_time(self, _: Event) -> float:
        """Milliseconds, of which there are none."""
        return 1.0


class Captured:
    """What a graph is made of: the streams that take part, and what each was asked for, in order."""

    def __init__(self, first: Stream) -> None:
        self.first = first
        self.log: list[tuple[Stream, Work | tuple[Stream, int]]] = []
        self.ends: dict[Stream, int] = {first: 0}
        self.known: dict[Stream, dict[Stream, int]] = {}
        """Up to where each stream has waited for the others, by itself or by another one."""
        self.over = False


class Machine:
    """All streams, and who captures what. With `hasty` all is done at once: the soonest that CUDA allows."""

    def __init__(self, hasty: bool = False) -> None:
        self._hasty = hasty
        self._lock = threading.RLock()
        self._local = threading.local()
        self.streams: list[Stream] = []
        self.default = self.stream()
        self.waited = 0
        """How often the host has."""

    def stream(self) -> Stream:
        """A new one."""
        stream = Stream(self)
        self.streams.append(stream)
        return stream

    @property
    def current(self) -> Stream:
        """That of this thread."""
        return getattr(self._local, "stream", self.default)

    @contextmanager
    def using(self, stream: Stream | None) -> Iterator[None]:
        """`stream` is this thread's."""
        before = self.current
        self._local.stream = before if stream is None else stream
        try:
            yield
        finally:
            self._local.stream = before

    @property
    def capture(self) -> Captured | None:
        """What this thread is capturing."""
        return getattr(self._local, "capture", None)

    def capturing(self, stream: Stream) -> Captured | None:
        """What `stream` takes part in, in this thread."""
        capture = self.capture
        return capture if capture is not None and stream in capture.ends else None

    def end(self, stream: Stream) -> int:
        """Where what is asked next will lie."""
        capture = self.capturing(stream)
        return stream.asked if capture is None else capture.ends[stream]

    def ask(self, stream: Stream, work: Work) -> None:
        """`work` is done after all that `stream` was asked for before."""
        with self._lock:
            capture = self.capturing(stream)
            if capture is not None:
                capture.log.append((stream, work))
                capture.ends[stream] += 1
                return
            stream.queue.append(work)
            stream.asked += 1
            if self._hasty:
                self._do(stream, stream.asked)

    def wait(self, stream: Stream, event: Event) -> None:
        """What `stream` is asked for from now on comes after `event`."""
        if event.stream is None:
            return
        with self._lock:
            mine, other = self.capturing(stream), event.captured
            if other is not None and other.over:
                other = None
            if other is None and mine is not None:
                raise RuntimeError("dependency created on uncaptured work in another stream")
            if other is not None:
                other.ends.setdefault(stream, 0)
                other.log.append((stream, (event.stream, event.place)))
                other.ends[stream] += 1
                mine_known = other.known.setdefault(stream, {})
                for one, place in event.known.items():
                    mine_known[one] = max(place, mine_known.get(one, 0))
                return
            stream.queue.append(event)
            stream.asked += 1

    def finish(self, stream: Stream, place: int) -> None:
        """The host waits until what `stream` was asked for up to `place` is done, and nothing that it need not be."""
        if self.capturing(stream) is not None:
            raise RuntimeError(CAPTURING)
        self.waited += 1
        self._do(stream, place)

    def _do(self, stream: Stream, place: int) -> None:
        with self._lock:
            while stream.done < place:
                what = stream.queue.popleft()
                stream.done += 1
                if isinstance(what, Event):
                    assert what.stream is not None
                    self._do(what.stream, what.place)
                else:
                    what()

    def synchronize(self) -> None:
        """All is done, of the youngest stream first."""
        if self.capture is not None:
            raise RuntimeError(CAPTURING)
        self.waited += 1
        for stream in [*reversed(self.streams)]:
            self._do(stream, stream.asked)

    @contextmanager
    def captures(self, graph: Any) -> Iterator[None]:
        """What this thread asks of its stream, and of those that wait for it, is not done but becomes `graph`."""
        self.synchronize()
        stream = self.stream()
        capture = self._local.capture = Captured(stream)
        try:
            with self.using(stream):
                try:
                    yield
                except RuntimeError:  # torch ends the capture all the same, and that is what it tells
                    raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
            for other, end in capture.ends.items():
                if other is not stream and capture.known.get(stream, {}).get(other, 0) < end:
                    raise RuntimeError("capturing stream has unjoined work")
        finally:
            capture.over = True
            self._local.capture = None
        graph.captured = capture

    def replay(self, capture: Captured) -> None:
        """All of it again, after what this thread's stream was asked for, and before what it is asked for next."""
        here, streams = self.current, {stream: Stream(self) for stream in capture.ends}
        streams[capture.first].wait_stream(here)
        shift = {stream: new.asked for stream, new in streams.items()}
        for stream, what in capture.log:
            if isinstance(what, tuple):
                event = Event()
                event.stream = streams[what[0]]
                event.place = what[1] + shift[what[0]]
                self.wait(streams[stream], event)
            else:
                self.ask(streams[stream], what)
        here.wait_stream(streams[capture.first])
