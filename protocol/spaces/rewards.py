"""Whether rewards keep to the payoff structure that the world declares.

In flow: the rewards of one turn. Out flow: nothing, or an EnvironmentFault.

Legend: `E` copies, `n` slots of a template, `m` agents of a population.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces.tree import Payoff
from protocol.spaces.world import World

_SHOULD = {"cooperative": "be equal", "zero_sum": "sum to 0"}


class Payoffs:
    """Checks the rewards of every population whose payoff is among `kinds`; those that are general cost nothing.

    `tolerance` is relative to the largest reward, or absolute where all are below 1: rewards are float32.
    """

    def __init__(
        self, world: World, tolerance: float = 1e-5, kinds: tuple[Payoff, ...] = ("cooperative", "zero_sum")
    ) -> None:
        self._world = world.id
        self._tolerance = tolerance
        self._templates = {place.name for place in world.places if place.capacity is not None}
        self._populations: dict[str, tuple[Payoff, list[str]]] = {}
        for place in world.places:
            for path, population in place.populations:
                if population.payoff in kinds:
                    self._populations.setdefault(path, (population.payoff, []))[1].append(place.name)

    def check(self, rewards: Mapping[str, ArrayLike], turn: int, absent: Mapping[str, ArrayLike] | None = None) -> None:
        """Raises EnvironmentFault unless the rewards of a whole turn keep to the world's payoffs.

        `rewards`: agent -> [] or [E], of a template [n] or [E, n]; an agent not named took no part. `absent`, of the
        same shapes: True where one took no part, so that its reward is not looked at.
        """
        for path, (payoff, names) in self._populations.items():
            parts = [name for name in names if name in rewards]
            if not parts:
                continue
            values = [self._columns(name, rewards[name], np.float64) for name in parts]
            gone = [self._columns(name, (absent or {}).get(name, False), np.bool_) for name in parts]
            labels = [
                f"{name}.{i}" if name in self._templates else name
                for name, columns in zip(parts, values, strict=True)
                for i in range(columns.shape[1])
            ]
            away = np.concatenate([np.broadcast_to(g, v.shape) for g, v in zip(gone, values, strict=True)], axis=1)
            wrong = self._wrong(payoff, np.concatenate(values, axis=1), away)
            if wrong is not None:
                self._refuse(path, payoff, turn, wrong, labels, np.concatenate(values, axis=1)[wrong], away[wrong])

    def _columns(self, name: str, given: ArrayLike, kind: type) -> NDArray:
        """[E, m] of one agent or template."""
        array: NDArray = np.asarray(given, kind)
        return np.atleast_2d(array) if name in self._templates else array.reshape(-1, 1)

    def _wrong(self, payoff: Payoff, rewards: NDArray, away: NDArray) -> int | None:
        """The first copy of [E, m] whose rewards break the rule."""
        if rewards.shape[1] == 0:
            return None
        counted = np.isfinite(rewards) & ~away
        size = np.where(counted, np.abs(rewards), 0).max(axis=1)
        if payoff == "zero_sum":
            error = np.abs(np.where(counted, rewards, 0).sum(axis=1))
        else:
            error = np.where(counted, rewards, -np.inf).max(axis=1) - np.where(counted, rewards, np.inf).min(axis=1)
        broken = error > self._tolerance * np.maximum(1, size)
        broken |= (~counted & ~away).any(axis=1)  # what is no finite number keeps to no rule
        return int(np.argmax(broken)) if broken.any() else None

    def _refuse(
        self, path: str, payoff: Payoff, turn: int, copy: int, labels: list[str], rewards: NDArray, away: NDArray
    ) -> None:
        values = [f"{label} {reward:g}" for label, reward, out in zip(labels, rewards, away, strict=True) if not out]
        told = ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
        total = f" (sum {sum(rewards[~away].tolist()):g})" if payoff == "zero_sum" else ""
        raise EnvironmentFault(
            "payoff_broken",
            environment=self._world,
            population=path or "all",
            turn=turn,
            copy=copy,
            payoff=payoff,
            expected=_SHOULD[payoff],
            value=told,
            total=total,
        )
