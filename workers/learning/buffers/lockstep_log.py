"""What happened in each round of lock-step, one line of JSON a round, so that two runs can be compared step by step.

In flows: a round's segments, what updates said of themselves, the weights after them. Out flow: `rounds/POLICY.jsonl`,
the same bytes for the same bits. Data and weights are told by their checksum; numbers as they are.
Legend: `S` streams, `T` segment length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.experience.layout import Layout
from protocol.experience.receiver import Arrival
from workers.runtime.files import AppendFile, SafeWriter
from workers.runtime.state_capture import State

_PRIVATE = ("version", "moment")
"""Columns that tell which incarnation of a learner or actor it was, and not what happened."""


class RoundLog:
    """Of a policy with `streams` S, whose segments have `layout`; lines go to `path`. One for which there is no room is
    told of in the worker's log, and the run goes on without it."""

    def __init__(self, path: Path, layout: Layout, streams: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = AppendFile(path, SafeWriter())
        self._layout = layout
        self._earned = np.zeros(streams)
        """[S]: in the present episode of each stream."""
        self._data = ""
        self._returns: list[float] = []
        self._losses: list[dict[str, float]] = []

    def came(self, blocks: Sequence[Arrival]) -> None:
        """A round's segments, by stream; before anything is taken of them."""
        digest = hashlib.sha256()
        first, self._returns = 0, []
        for block in blocks:
            slots = block.records["slot"]
            with block.ring.reading():
                columns = {name: column[slots] for name, column in block.ring.columns.items() if name not in _PRIVATE}
            for part in _told(columns, self._layout):
                digest.update(np.ascontiguousarray(part).tobytes())
            self._follow(slice(first, first + len(slots)), columns)
            first += len(slots)
        self._data = digest.hexdigest()

    def learned(self, metrics: Mapping[str, float]) -> None:
        """What one update said of itself."""
        self._losses.append({name: float(value) for name, value in metrics.items()})

    def end(self, number: int, version: int, train_steps: int, weights: NDArray[np.uint8]) -> None:
        """Writes the line of round `number`, after which `weights` [nbytes] are published."""
        line = {
            "round": number,
            "version": version,
            "train_steps": train_steps,
            "data": self._data,
            "weights": hashlib.sha256(weights.tobytes()).hexdigest(),
            "returns": self._returns,
            "losses": self._losses,
        }
        self._file.append(f"{json.dumps(line)}\n".encode())
        self._losses = []

    def get_state(self) -> State:
        """Between two rounds: how much of the file there is, and what present episodes have earned."""
        return {"bytes": np.array([self._file.size], np.int64), "earned": self._earned.copy()}

    def set_state(self, state: State) -> None:
        """The inverse; what was written since is dropped."""
        self._file.shorten(int(state["bytes"][0]))
        self._earned[:] = state["earned"]

    def begin(self) -> None:
        """From the beginning of the run: drops what an earlier one wrote."""
        self._file.shorten(0)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _follow(self, streams: slice, columns: Mapping[str, NDArray]) -> None:
        """Adds up what was earned, row after row, and keeps the returns of episodes that ended."""
        before, length = self._layout.before, self._layout.length
        ended = columns["terminated"] | columns["truncated"]
        for row in range(before, before + length):
            earned = self._earned[streams]
            earned += columns["reward"][:, row]
            over = ended[:, row]
            self._returns += earned[over].tolist()
            earned[over] = 0.0


def _told(columns: Mapping[str, NDArray], layout: Layout) -> list[NDArray]:
    """What was written of the segments [n]: their own rows, the observation behind them, and entries in use."""
    rows = slice(layout.before, layout.before + layout.length)
    used = columns["final_row"] >= 0
    seen = {name.removeprefix("final_") for name in columns if name.startswith("final_")}
    parts = []
    for field in layout.fields:
        if field.name not in columns:
            continue
        column = columns[field.name]
        if field.per == "row":
            parts.append(column[:, rows.start : rows.stop + (field.name in seen)])
        else:
            parts.append(column[used] if field.name.startswith("final_") else column)
    return parts
