"""Consecutive rows of one stream: what every kind of dataset is read as, and how it is cut into the slots of a ring.

In flow: stretches of any length. Out flow: segments of a ring's layout, as an actor would have written them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.experience.ring_buffer import Ring
from protocol.spaces import Agent


@dataclass(frozen=True, slots=True)
class Trajectory:
    """`valid` rows after `before` rows of history, and one more observation behind them.

    Row t is (observation, action, reward and end caused by that action); the row behind the last has an observation
    and, where there are masks, one of these.
    """

    actor: str
    incarnation: int
    stream: int
    sequence: int
    before: int
    valid: int
    columns: Mapping[str, NDArray]
    """name -> [before + valid + 1, ...]"""
    final_row: NDArray[np.int64]
    """[k] of the `valid` rows: those that were truncated"""
    finals: Mapping[str, NDArray]
    """`final_<observation column>` -> [k, ...]: their true last observations"""

    def of(self, names: Collection[str]) -> Trajectory:
        """The same without columns that are none of `names`."""
        kept = ({name: one for name, one in part.items() if name in names} for part in (self.columns, self.finals))
        columns, finals = kept
        return replace(self, columns=columns, finals=finals)


class TrajectoryReader(Protocol):
    """A dataset that is there. Both methods raise ConfigurationError, in one sentence, for what cannot be read."""

    name: str
    """For sentences on it."""
    agent: Agent
    """Who saw and did what is in it."""

    def lengths(self) -> list[int]:
        """`valid` of each stretch."""

    def stretches(self) -> Iterator[Trajectory]:
        """All of them, in the order of `lengths`."""


def pieces(valid: int, length: int) -> list[tuple[int, int]]:
    """(first row, rows) of the segments of at most `length` rows that `valid` rows are cut into."""
    return [(start, min(length, valid - start)) for start in range(0, valid, length)]


def write(ring: Ring, slot: int, stretch: Trajectory, start: int, rows: int, where: str) -> int:
    """Rows `start`.. of `stretch` into `slot`, which is being written; how many rows of history there are before them.

    ConfigurationError, beginning with `where`, for a truncated row without its true last observation, or for more of
    them than the layout has room for.
    """
    layout = ring.layout
    before = min(layout.before, stretch.before + start)
    to, source = layout.before - before, stretch.before + start - before
    for name, column in stretch.columns.items():
        ring.columns[name][slot, to : layout.before + rows + 1] = column[source : source + before + rows + 1]
    ring.columns["version"][slot, to : layout.before + rows] = 0
    mine = (stretch.final_row >= start) & (stretch.final_row < start + rows)
    ends, table = stretch.final_row[mine] - start, ring.columns["final_row"][slot]
    _check_ends(stretch, start, rows, ends, len(table), where)
    table[:] = -1
    table[: len(ends)] = ends
    for name, column in stretch.finals.items():
        ring.columns[name][slot, : len(ends)] = column[mine]
    return before


def _check_ends(stretch: Trajectory, start: int, rows: int, ends: NDArray[np.int64], room: int, where: str) -> None:
    span = slice(stretch.before + start, stretch.before + start + rows)
    cut = stretch.columns["truncated"][span] & ~stretch.columns["terminated"][span]
    if not np.isin(np.flatnonzero(cut), ends).all():
        raise ConfigurationError("dataset_last_observation_missing", where=where)
    if len(ends) > room:
        raise ConfigurationError("dataset_cut_off_too_often", where=where, count=len(ends), rows=rows, limit=room)
