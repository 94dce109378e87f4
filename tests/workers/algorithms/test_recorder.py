"""Graphs are recorded once they are warm, replayed from then on, and done without where they cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from workers.algorithms.recorder import Recorder

HOST = torch.device("cpu")


class Stream:
    """One that keeps no order."""

    def __init__(self, *_: Any) -> None:
        self.waited = 0

    def wait_stream(self, _: Any) -> None:
        """Counted."""
        self.waited += 1


class Graph:
    """One that is told what is recorded, and does it again."""

    recording: Graph | None = None
    broken = False

    def __init__(self) -> None:
        self.pieces: list[Callable[[], None]] = []
        self.replays = 0

    def replay(self) -> None:
        """Counted."""
        self.replays += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A machine that seems to have one."""

    @contextmanager
    def graph(_: Graph, **__: str) -> Iterator[None]:
        yield
        if Graph.broken:
            raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be")

    @contextmanager
    def stream(_: Stream) -> Iterator[None]:
        yield

    here = Stream()
    for name, value in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "graph": graph,
        "stream": stream,
        "synchronize": lambda _: None,
        "current_stream": lambda _: here,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Graph, "broken", False)
    return torch.device("cuda")


def test_without_cuda_everything_runs_every_time() -> None:
    done: list[int] = []
    recorder = Recorder(HOST)
    for _ in range(6):
        recorder.run("a", [lambda: done.append(1), lambda: done.append(2)])
    assert done == [1, 2] * 6
    assert recorder.recorded == 0


def test_work_is_recorded_once_warm_and_replayed_then_each_key_by_itself(cuda: torch.device) -> None:
    done: list[str] = []
    recorder = Recorder(cuda)
    for _ in range(6):
        for key in ("a", "b"):
            recorder.run(key, [lambda key=key: done.append(key)])  # type: ignore[misc] # of no argument
    assert done == ["a", "b"] * 4, "three times as it is, once for the graph"
    assert recorder.recorded == 2
    assert [graph.replays for graph in recorder._graphs.values()] == [3, 3]  # type: ignore[attr-defined] # Graph's


def test_what_is_forgotten_is_recorded_anew_and_nothing_else(cuda: torch.device) -> None:
    done: list[str] = []
    recorder = Recorder(cuda)

    def run(times: int) -> None:
        for _ in range(times):
            for key in ("a", "b"):
                recorder.run(key, [lambda key=key: done.append(key)])  # type: ignore[misc] # of no argument

    run(5)
    recorder.forget(lambda key: key == "a")
    assert recorder.recorded == 1
    done.clear()
    run(5)
    assert done == ["a"] * 4, "three times as it is, once for the graph"
    assert recorder.recorded == 2


def test_branches_begin_after_what_was_before_and_end_before_what_follows(cuda: torch.device) -> None:
    recorder = Recorder(cuda, streams=2)
    recorder.run("a", [lambda: None] * 3)
    assert [stream.waited for stream in recorder._streams] == [1, 1]  # type: ignore[attr-defined] # Stream's
    assert torch.cuda.current_stream(cuda).waited == 2  # type: ignore[attr-defined] # Stream's


def test_what_cannot_be_recorded_runs_as_it_is_and_the_log_says_so_once(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Graph, "broken", True)
    done: list[int] = []
    recorder = Recorder(cuda)
    for _ in range(8):
        recorder.run("a", [lambda: done.append(1)])
    assert recorder.recorded == 0
    assert len(done) == 9, "once in vain"
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=capture_failed reason=operation not permitted when stream is capturing" in record.getMessage()
