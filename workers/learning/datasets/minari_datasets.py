"""Datasets of Minari (https://minari.farama.org) that are on this machine, read and written through its
own library.

In flow: episodes, which have one observation more than actions. Out flow: a stretch of rows
(workers/learning/datasets/trajectory.py) for each episode, and the other way round: row t is observation t, action t,
and the reward and end that this action caused; the last observation is the one behind the rows and, of an episode that
was cut off, its true last one.

A recording keeps no observation after a termination, as nothing is learned from it: the one before it stands there
again, as the Gymnasium views of our worlds show it. Where rows are missing, an episode is cut off before and begins
behind them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, RookeryError
from protocol.spaces import Agent, Element, Text, elements, nest, space_of
from protocol.spaces.gymnasium import spaces_of
from workers.environments.adapters.space_conversion import MASK, SpaceConverter, translate
from workers.learning.datasets.reader import RecordedDataset
from workers.learning.datasets.trajectory import Trajectory


class MinariDataset:
    """The dataset called `id`. An episode that terminated counts as terminated alone, even where its time was up in the
    same step."""

    def __init__(self, id: str) -> None:
        self.name, self._data = f"minari:{id}", _found(id)
        try:
            first = next(iter(self._data.iterate_episodes([0])), None) if self._data.total_episodes else None
            spaces = self._data.observation_space, self._data.action_space
            infos = {"agent": {MASK: None} if first is not None and MASK in (first.infos or {}) else {}}
            world, (self._agent,) = translate(self.name, {"agent": spaces[0]}, {"agent": spaces[1]}, infos)
        except Exception as fault:
            raise self._unreadable(fault) from None
        self._place = world.places[0]
        self.agent = self._place.agent

    def lengths(self) -> list[int]:
        """Steps of each episode; one without any holds nothing."""
        try:
            told = self._data.storage.get_episode_metadata(self._data.episode_indices)
            return [int(one["total_steps"]) for one in told]
        except Exception as fault:
            raise self._unreadable(fault) from None

    def stretches(self) -> Iterator[Trajectory]:
        """Each episode."""
        try:
            for episode in self._data.iterate_episodes():
                yield _stretch(self._agent, episode)
        except Exception as fault:
            raise self._unreadable(fault) from None

    def _unreadable(self, fault: Exception) -> ConfigurationError:
        """Whatever Minari, or a file that it reads, comes up with."""
        if isinstance(fault, ConfigurationError):
            return fault
        said = " ".join(str(fault).split()) or type(fault).__name__
        return ConfigurationError("dataset_not_learnable", dataset=self.name, reason=said)


def _found(id: str) -> Any:
    try:
        import minari
    except ImportError:
        raise ConfigurationError("dataset_needs_minari", dataset=id, key="policy.dataset.minari") from None
    try:
        return minari.load_dataset(id)
    except FileNotFoundError:
        raise ConfigurationError("minari_dataset_not_found", dataset=id, key="policy.dataset.minari") from None
    except Exception as fault:
        said = " ".join(str(fault).split()) or type(fault).__name__
        raise ConfigurationError(
            "minari_dataset_unreadable", dataset=id, reason=said, key="policy.dataset.minari"
        ) from None


def _stretch(agent: SpaceConverter, episode: Any) -> Trajectory:
    """The rows of an episode of n steps, with a row behind them that has no action."""
    n = len(episode.rewards)
    place = agent.place
    seen = agent.own(episode.observations)
    columns = _leaves(elements(space_of(place.agent.observation), "observation"), seen, n + 1, n + 1)
    columns |= _leaves(elements(agent.done, "action"), episode.actions, n, n + 1)
    columns = {leaf.name: columns[leaf.name].astype(leaf.space.dtype) for leaf in place.leaves if leaf.name in columns}
    columns |= _masks(agent, episode, n + 1)
    terminated, truncated = (_flags(episode, name, n) for name in ("terminations", "truncations"))
    columns |= {"terminated": terminated, "truncated": truncated & ~terminated}
    columns["reward"] = np.append(np.asarray(episode.rewards, np.float32), np.float32(0))
    final_row = np.flatnonzero(columns["truncated"][n - 1 : n]) + n - 1
    finals = {f"final_{leaf.name}": columns[leaf.name][final_row + 1] for leaf in place.observed.leaves}
    return Trajectory("minari", 1, int(episode.id), 0, 0, n, columns, final_row, finals)


def _leaves(parts: Iterator[Element], value: Any, given: int, rows: int) -> dict[str, NDArray]:
    """name -> [rows, *shape] of each leaf of `value`, of which there are `given`; zeros behind them."""
    found = {}
    for part in parts:
        picked, shape = part.pick(value), tuple(part.space.shape)
        if isinstance(part.space, Text):
            picked = (
                np.stack([part.space.encode(one, part.name) for one in picked])
                if len(picked)
                else np.empty((0, *shape))
            )
        column = np.asarray(picked)
        if column.shape != (given, *shape):
            raise RookeryError(
                "episode_shape_mismatch", field=part.name, value=list(column.shape), expected=[given, *shape]
            )
        found[part.name] = np.zeros((rows, *shape), column.dtype)
        found[part.name][:given] = column
    return found


def _masks(agent: SpaceConverter, episode: Any, rows: int) -> dict[str, NDArray]:
    """`action_mask...` -> [rows, C], where the agent has them."""
    record = agent.place.masked
    if record is None:
        return {}
    given = episode.observations[MASK] if agent.beside else (episode.infos or {}).get(MASK)
    found = {}
    for leaf in record.leaves:
        name = leaf.name.partition(".")[2]
        found[leaf.name] = np.ones((rows, *leaf.space.shape), np.bool_)
        if given is not None:
            found[leaf.name] = agent.mask(agent.part_of_mask(given, name), (rows, *leaf.space.shape), name)
    return found


def _flags(episode: Any, name: str, n: int) -> NDArray[np.bool_]:
    flags = np.asarray(getattr(episode, name), np.bool_)
    if flags.shape != (n,):
        raise RookeryError("episode_shape_mismatch", field=name, value=list(flags.shape), expected=[n])
    return np.append(flags, False)


class Episode(NamedTuple):
    """n rows in a row of one stream."""

    columns: dict[str, NDArray]
    """name -> [n, ...]"""
    behind: dict[str, NDArray]
    """Columns of the observation and its masks -> [1, ...]: what was seen after the last action."""
    terminated: bool


class MinariWriter:
    """The new dataset `id` of what `agent` sees and does, which `told` describes. ConfigurationError in one sentence if
    Minari is missing, there is one of that id, or it will not have it."""

    def __init__(self, id: str, agent: Agent, told: str) -> None:
        try:
            import minari
            from minari.storage import get_dataset_path
        except ImportError:
            raise ConfigurationError("minari_missing") from None
        self._id, self._agent, self._told = id, agent, told
        self._made: Any = None
        with self._writing():
            minari.dataset.minari_dataset.parse_dataset_id(id)
            if get_dataset_path(id).exists():
                raise FileExistsError("there is one already")

    def add(self, found: Sequence[Episode]) -> None:
        """Writes these behind those that are there."""
        import minari
        from minari.data_collector import EpisodeBuffer

        first = 0 if self._made is None else self._made.total_episodes
        buffers = [EpisodeBuffer(id=first + i, **_parts(self._agent, one)) for i, one in enumerate(found)]
        seen, done = spaces_of(self._agent)
        with self._writing(), warnings.catch_warnings():
            # Minari asks for authors and a registered environment, of which nothing is recorded
            warnings.simplefilter("ignore", UserWarning)
            if self._made is None:
                self._made = minari.create_dataset_from_buffers(
                    self._id,
                    buffers,
                    observation_space=seen,
                    action_space=done,
                    description=self._told,
                    jpeg_encoding=False,
                )
            else:
                self._made.update_dataset_from_buffer(buffers)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as fault:  # whatever Minari, or a file that it writes, comes up with
            said = " ".join(str(fault).split()) or type(fault).__name__
            raise ConfigurationError("minari_write_failed", dataset=self._id, reason=said) from None


def write_minari(recorded: RecordedDataset, id: str, told: str) -> tuple[int, int]:
    """Writes what was `recorded` as the dataset `id`, which `told` describes: (episodes, rows). ConfigurationError as
    `MinariWriter`, or where nothing was recorded."""
    writer = MinariWriter(id, recorded.agent, told)
    if not sum(recorded.lengths()):
        raise ConfigurationError("recording_empty", dataset=recorded.name)
    found = list(episodes(recorded.stretches()))
    writer.add(found)
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
