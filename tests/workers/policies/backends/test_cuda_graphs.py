"""Graphs are recorded once they are warm, replayed from then on, and done without where they cannot be."""

from __future__ import annotations

import logging
import re

import pytest
import torch

from workers.policies.backends.cuda_graphs import GraphCache

HOST = torch.device("cpu")


class Piece:
    """Adds `given` to `total`, and counts how often it is asked to."""

    def __init__(self, device: torch.device) -> None:
        self.given, self.total, self.asked = torch.ones((), device=device), torch.zeros((), device=device), 0

    def __call__(self) -> None:
        self.asked += 1
        self.total.add_(self.given)


def test_without_cuda_everything_runs_every_time() -> None:
    recorder, pieces = GraphCache(HOST), [Piece(HOST), Piece(HOST)]
    for _ in range(6):
        recorder.run("a", pieces)
    assert [(piece.asked, piece.total.item()) for piece in pieces] == [(6, 6.0)] * 2
    assert recorder.captured == 0


def test_work_is_recorded_once_warm_and_replayed_then_each_key_by_itself(cuda: torch.device) -> None:
    recorder, pieces = GraphCache(cuda), {"a": Piece(cuda), "b": Piece(cuda)}
    for _ in range(6):
        for key, piece in pieces.items():
            recorder.run(key, [piece])
    assert [piece.asked for piece in pieces.values()] == [4, 4], "three times as it is, once for the graph"
    assert [piece.total.item() for piece in pieces.values()] == [6, 6]
    assert recorder.captured == 2


def test_what_is_forgotten_is_recorded_anew_and_nothing_else(cuda: torch.device) -> None:
    recorder, pieces = GraphCache(cuda), {"a": Piece(cuda), "b": Piece(cuda)}

    def run(times: int) -> None:
        for _ in range(times):
            for key, piece in pieces.items():
                recorder.run(key, [piece])

    run(5)
    recorder.forget(lambda key: key == "a")
    assert recorder.captured == 1
    run(5)
    assert [piece.asked for piece in pieces.values()] == [8, 4], "three times as it is, once for the graph"
    assert [piece.total.item() for piece in pieces.values()] == [10, 10]
    assert recorder.captured == 2


def test_branches_begin_after_what_was_before_and_end_before_what_follows(cuda: torch.device) -> None:
    recorder, pieces, after = GraphCache(cuda, streams=2), [Piece(cuda) for _ in range(3)], torch.zeros(3, device=cuda)
    for number in range(1, 7):
        for piece in pieces:
            piece.given.fill_(number)
        recorder.run("a", pieces)
        after.add_(torch.stack([piece.total for piece in pieces]))
    assert after.tolist() == [1 + 3 + 6 + 10 + 15 + 21] * 3
    assert recorder.captured == 1


def test_what_cannot_be_recorded_runs_as_it_is_and_the_log_says_so_once(
    cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, piece, seen = GraphCache(cuda), Piece(cuda), []
    for _ in range(8):
        recorder.run("a", [piece, lambda: seen.append(piece.total.item())])
    assert recorder.captured == 0
    assert piece.asked == 9, "once in vain"
    assert piece.total.item() == len(seen) == 8
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    reason = "event=capture_failed reason=(CUDA error: )?operation not permitted when stream is capturing"
    assert re.match(reason, record.getMessage()), record.getMessage()
