"""Datasets of Minari (https://minari.farama.org) that are on this machine, read through its own library.

In flow: episodes, which have one observation more than actions. Out flow: a stretch of rows for each episode: row t is
observation t, action t, and the reward and end that this action caused; the last observation is the one behind the rows
and, of an episode that was cut off, its true last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, RookeryError
from protocol.spaces import Element, Text, elements, space_of
from workers.environments.adapters.space_conversion import MASK, SpaceConverter, translate
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
