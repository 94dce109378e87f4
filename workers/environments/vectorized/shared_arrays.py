"""Memory that an actor shares with the processes that step its copies: where each agent's turns and actions lie.

In flows: a world and how its copies are divided. Out flow: arrays on shared memory, the same ones on both sides.

Row `r` of a group is copy `r` of it, whoever is present; of an agent that stands for many, row `r * C + i` is number
`i` of them in that copy. A process writes only its own rows, and an agent's last observation stays in its row until the
next one comes, where it can be found when the process has crashed.

Legend: `E` copies, `G` groups, `P` processes, `R` = E / G copies of a group, `S` = R / P of a process in a group,
`C` = `Place.many` of an agent, `N` = R * C of its rows in a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.experience.layout import common_of
from protocol.spaces import Place, World, dtype_of

PRESENT, OUTCOME = 0, 1
"""First index of what is told of an agent: with its presence, or between its turns."""
ENTRY = 3
"""Numbers of an entry. A sheet is (env_steps, presents, outcomes), then for each of these an entry (agent, n or -1 for
all, truncated)."""
_ALIGNMENT = 64
_Form = tuple[np.dtype, tuple[int, ...]]
_NOTHING: _Form = (np.dtype(np.uint8), (0,))


@dataclass(frozen=True, slots=True)
class Partition:
    """`copies` copies in `groups` contiguous groups, each over all `processes`, equally."""

    copies: int
    processes: int
    groups: int

    @classmethod
    def of(cls, config: EnvironmentConfig) -> Partition:
        """As configured, which is checked to be possible there."""
        return cls(config.copies, config.processes, config.async_factor)

    @property
    def rows(self) -> int:
        """R"""
        return self.copies // self.groups

    @property
    def share(self) -> int:
        """S"""
        return self.rows // self.processes

    def first(self, process: int, group: int) -> int:
        """The first copy that `process` steps in `group`, of all E."""
        return group * self.rows + process * self.share

    def named(self, process: int) -> str:
        """The copies of a process, for people: `0-3,8-11`."""
        starts = (self.first(process, group) for group in range(self.groups))
        return ",".join(f"{first}-{first + self.share - 1}" for first in starts)


@dataclass(frozen=True, slots=True)
class Columns:
    """One agent's rows in one group."""

    observation: NDArray
    """[N, *shape]: the last one."""
    final_observation: NDArray
    """[N, *shape], where the episode was truncated."""
    action: NDArray
    """[N, *shape]: the last one."""
    action_mask: NDArray
    """[N, *shape]: with the last observation; without elements where the agent has none."""
    open: NDArray[np.bool_]
    """[N]: an action was handed over whose reward or end was not told since."""
    reward: NDArray[np.float32]
    """[2, N]: present and outcome, like the rest."""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    copies: NDArray[np.int64]
    """[2, N]: each process lists, from its first row on, the rows it tells of, where it is not all."""
    final_common: NDArray
    """[N, *shape]: what all saw with `final_observation`; without elements where nothing is common."""


class SharedTurns:
    """All arrays of a world on `buffer`, of `SharedTurns.size` bytes."""

    def __init__(self, world: World, division: Partition, buffer: memoryview) -> None:
        self.division = division
        self.many = [place.many for place in world.places]
        """C of each agent."""
        # Unlike ndarray(buffer=...), frombuffer keeps the memory mapped until the last view on it is gone.
        raw = np.frombuffer(buffer, np.uint8)
        arrays = [_array(raw, *place) for place in _places(world, division)]
        self.sheets: NDArray[np.int64] = arrays[0]
        """[G, P, ...]: who is told of in the last turn of each group, in the words of each process."""
        self.common = arrays[1] if common_of(world) is not None else None
        """[G, R, *shape]: what all agents see in the last turn of each group."""
        fields = len(Columns.__dataclass_fields__)
        agents = [arrays[at : at + fields] for at in range(2, len(arrays), fields)]
        self.columns = [[Columns(*(a[group] for a in agent)) for agent in agents] for group in range(division.groups)]
        """By group and agent."""

    @staticmethod
    def size(world: World, division: Partition) -> int:
        """Bytes that the arrays take."""
        dtype, shape, offset = list(_places(world, division))[-1]
        return offset + _bytes(dtype, shape)


def _places(world: World, division: Partition) -> Iterator[tuple[np.dtype, tuple[int, ...], int]]:
    """(dtype, shape, offset) of every array: sheets, common observations, the columns of one agent after the other."""
    sheet = 3 + 2 * ENTRY * len(world.agents)
    arrays: list[tuple[np.dtype, tuple[int, ...]]] = [
        (np.dtype(np.int64), (division.groups, division.processes, sheet))
    ]
    box = common_of(world)
    common = (dtype_of(box), tuple(box.shape)) if box else _NOTHING
    arrays.append((common[0], (division.groups, division.rows, *common[1])))
    for place in world.places:
        arrays += [(dtype, (division.groups, *shape)) for dtype, shape in _fields(place, division.rows, common)]
    offset = 0
    for dtype, shape in arrays:
        yield dtype, shape, offset
        offset += -(-_bytes(dtype, shape) // _ALIGNMENT) * _ALIGNMENT


def _array(raw: NDArray[np.uint8], dtype: np.dtype, shape: tuple[int, ...], offset: int) -> NDArray:
    """A view on its part of the memory; a space may well hold nothing."""
    size = _bytes(dtype, shape)
    return raw[offset : offset + size].view(dtype).reshape(shape) if size else np.empty(shape, dtype)


def _bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * math.prod(shape)


def _fields(place: Place, copies: int, common: _Form) -> list[_Form]:
    """(dtype, shape) of `Columns`, field by field."""
    n = copies * place.many
    seen = (place.observed.dtype, (n, *place.observed.shape))
    mask = _NOTHING if place.masked is None else (place.masked.dtype, place.masked.shape)
    told = (2, n)
    return [
        seen,
        seen,
        (place.acted.dtype, (n, *place.acted.shape)),
        (mask[0], (n, *mask[1])),
        (np.dtype(np.bool_), (n,)),
        (np.dtype(np.float32), told),
        (np.dtype(np.bool_), told),
        (np.dtype(np.bool_), told),
        (np.dtype(np.int64), told),
        (common[0], (n, *common[1])),
    ]
