"""Recorded segments as a dataset of Minari (https://minari.farama.org), written through its own library.

In flow: stretches of rows (workers/learning/datasets/trajectory.py). Out flow: episodes with one observation more than
actions. A recording keeps no observation after a termination, as nothing is learned from it: the one before it stands
there again, as Gymnasium's views of our worlds show it. Where rows are missing, an episode is cut off before and begins
behind them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Text, elements, nest, space_of
from protocol.spaces.gymnasium import spaces_of
from workers.environments.adapters.space_conversion import MASK
from workers.learning.datasets.reader import RecordedDataset
from workers.learning.datasets.trajectory import Trajectory


class Episode(NamedTuple):
    """n rows in a row of one stream."""

    columns: dict[str, NDArray]
    """name -> [n, ...]"""
    behind: dict[str, NDArray]
    """Columns of the observation and its masks -> [1, ...]: what was seen after the last action."""
    terminated: bool


def write_minari(recorded: RecordedDataset, id: str, told: str) -> tuple[int, int]:
    """Writes what was `recorded` as the dataset `id`, which `told` describes: (episodes, rows). ConfigurationError in
    one sentence if Minari is missing or will not have it."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise ConfigurationError("minari_missing") from None
    if not sum(recorded.lengths()):
        raise ConfigurationError("recording_empty", dataset=recorded.name)
    found = list(episodes(recorded.stretches()))
    seen, done = spaces_of(recorded.agent)
    buffers = [EpisodeBuffer(id=i, **_parts(recorded.agent, one)) for i, one in enumerate(found)]
    try:
        with (
            warnings.catch_warnings()
        ):  # Minari asks for authors and a registered environment, of which nothing is recorded
            warnings.simplefilter("ignore", UserWarning)
            minari.create_dataset_from_buffers(
                id, buffers, observation_space=seen, action_space=done, description=told, jpeg_encoding=False
            )
    except Exception as fault:  # whatever Minari, or a file that it writes, comes up with
        said = " ".join(str(fault).split()) or type(fault).__name__
        raise ConfigurationError("minari_write_failed", dataset=id, reason=said) from None
    return len(found), sum(len(one.columns["reward"]) for one in found)


def episodes(stretches: Iterable[Trajectory]) -> Iterator[Episode]:
    """The episodes of each stream, in order; those that were not over are cut off where their rows end."""
    ordered = sorted(stretches, key=lambda one: (one.actor, one.incarnation, one.stream, one.sequence))
    begun: list[Episode] = []
    last: tuple[str, int, int, int] | None = None
    for stretch in ordered:
        if begun and last != (stretch.actor, stretch.incarnation, stretch.stream, stretch.sequence - 1):
            yield _joined(begun)
            begun = []
        last = stretch.actor, stretch.incarnation, stretch.stream, stretch.sequence
        for part, over in _parted(stretch):
            begun.append(part)
            if over:
                yield _joined(begun)
                begun = []
    if begun:
        yield _joined(begun)


def _parted(stretch: Trajectory) -> Iterator[tuple[Episode, bool]]:
    """The parts of a stretch that are of one episode each, and whether it ends with them."""
    rows = slice(stretch.before, stretch.before + stretch.valid)
    terminated = stretch.columns["terminated"][rows]
    ends = np.flatnonzero(terminated | stretch.columns["truncated"][rows])
    start = 0
    for stop in (*(ends + 1).tolist(), stretch.valid):
        if start < stop:
            own = slice(stretch.before + start, stretch.before + stop)
            columns = {name: column[own] for name, column in stretch.columns.items()}
            yield Episode(columns, _behind(stretch, stop - 1), bool(terminated[stop - 1])), stop - 1 in ends
        start = stop


def _behind(stretch: Trajectory, row: int) -> dict[str, NDArray]:
    """What was seen after the action of `row`; all is legal there where the episode is over."""
    at = stretch.before + row
    seen = {name: column for name, column in stretch.columns.items() if name.partition(".")[0] in ("observation", MASK)}
    cut = np.flatnonzero(stretch.final_row == row)
    over = bool(stretch.columns["terminated"][at] | stretch.columns["truncated"][at])
    behind = {name: column[at : at + 1] if over else column[at + 1 : at + 2] for name, column in seen.items()}
    if over:
        behind |= {name: np.ones_like(column) for name, column in behind.items() if name.startswith(MASK)}
        behind |= {name.removeprefix("final_"): column[cut] for name, column in stretch.finals.items() if len(cut)}
    return behind


def _joined(parts: list[Episode]) -> Episode:
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return Episode(columns, parts[-1].behind, parts[-1].terminated)


def _parts(agent: Agent, episode: Episode) -> dict[str, Any]:
    """What Minari calls the parts of an episode."""
    n = len(episode.columns["reward"])
    seen = {name: np.concatenate([episode.columns[name], last]) for name, last in episode.behind.items()}
    masks = {name.partition(".")[2]: mask.astype(np.int8) for name, mask in seen.items() if name.startswith(MASK)}
    ends = np.arange(n) == n - 1
    return {
        "observations": _nested(space_of(agent.observation), seen, "observation"),
        "actions": _nested(space_of(agent.action), episode.columns, "action"),
        "rewards": episode.columns["reward"].tolist(),
        "terminations": (ends & episode.terminated).tolist(),
        "truncations": (ends & (not episode.terminated)).tolist(),
        "infos": {MASK: masks.get("", masks)} if masks else {},
    }


def _nested(space: Any, columns: dict[str, NDArray], name: str) -> Any:
    """The columns of `space`, nested as it is; text as text."""
    parts = {}
    for leaf in elements(space, name):
        column = columns[leaf.name]
        parts[leaf.name] = [leaf.space.decode(row) for row in column] if isinstance(leaf.space, Text) else column
    return nest(space, parts, name)
