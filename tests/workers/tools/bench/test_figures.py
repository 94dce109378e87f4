"""What the figures of the benchmarks mean, with times that are known: which way a ratio goes, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workers.tools.bench.transport import segments
from workers.tools.bench.transport.load import TransportLoad, copy_out, fill

SECONDS = {"same_node_floor": 1.0, "same_node": 2.0, "tcp_floor": 3.0, "tcp": 4.0}
MEMCPY = 0.5


def test_the_transports_ratios_are_the_limits_time_over_ours_and_what_is_encrypted_has_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pretended processes, which take twice as long with keys."""

    @contextmanager
    def pretended(load: TransportLoad) -> Iterator[tuple[Any, Callable[[str, int], float]]]:
        slower = 2 if load.keys else 1
        assert not load.keys or (Path(load.keys) / "actor.secret").exists()
        yield SimpleNamespace(memcpy=lambda count: MEMCPY), lambda name, count: slower * SECONDS[name]

    monkeypatch.setattr(segments, "two_processes", pretended)
    monkeypatch.setattr(segments, "microseconds", lambda times: 1.0)
    figures = segments.measure(rounds=1)
    assert figures["same_node.large_ratio"] == figures["same_node.small_ratio_to_floor"] == 0.5
    assert figures["same_node.small_ratio"] == figures["same_node.large_ratio_to_memcpy"] == 0.25
    assert figures["tcp.large_ratio"] == 0.75
    assert figures["tcp.curve_ratio"] == 0.5
    bytes_per_second = figures["same_node.large_message_mib"] * 2**20 / SECONDS["same_node"]
    assert figures["same_node.large_gib_per_second"] == pytest.approx(bytes_per_second / 2**30)


def test_a_message_is_written_and_read_whole_and_nothing_beside_it() -> None:
    """What both ways of the transport do with the bytes, so that their ratio is that of the messages alone."""
    load = TransportLoad(floats=3, segments=2, blocks=4, folder="")
    nbytes = load.layout.offsets(load.slots)[1]
    memory = memoryview(bytearray(b"\x55" * nbytes))
    columns = load.layout.columns(memory, load.slots)
    before = {name: column.copy() for name, column in columns.items()}
    slots = load.block(1)
    fill(columns, slots, 7)
    batch = {name: np.zeros_like(column) for name, column in columns.items()}
    copy_out(columns, slots, batch, load.place(1))
    for name, column in columns.items():
        written = -1 if name == "final_row" else 1
        assert (column[slots] == written).all()
        assert (batch[name][load.place(1)] == written).all()
        beside = np.setdiff1d(np.arange(load.slots), np.arange(load.slots)[slots])
        assert column[beside].tobytes() == before[name][beside].tobytes()
