"""Policies of one kind that act together: of all agents of a world, one call instead of one a policy.

In flows: performers, and what each is to see in a turn. Out flow: what each does. A policy's newly adopted weights are
copied beside those of the others when it acts next; who is alone in a turn, or has another number of rows than the
others, acts alone.

Legend: `K` policies, `n` rows of each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run
from workers.policies.distributions import Noise
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.q_policy import QPolicy
from workers.policies.stacked.stacked_acting import StackedActors, StackedQActors, stackable
from workers.rollout.acting_policy import ActingPolicy, InferenceRequest

log = logging.getLogger(__name__)

_ENOUGH, _ENOUGH_HOSTED = 4, 16
"""Policies of one kind from which on `auto` lets them act as one; and of those that act without torch otherwise, which
costs each of them little (launch/docs/evidence/machines.md)."""
_MOST_RECURRENT = 128
"""Rows of each recurrent policy up to which `auto` does."""


class _PolicyStack:
    """Performers of one kind."""

    def __init__(self, performers: Sequence[ActingPolicy], most: int | None) -> None:
        self._performers, self._most = [*performers], most
        modules = [performer.module for performer in performers]
        self._stack: StackedActors | StackedQActors
        if isinstance(modules[0], ActorCritic):
            self._stack = StackedActors([module for module in modules if isinstance(module, ActorCritic)])
        else:
            self._stack = StackedQActors([module for module in modules if isinstance(module, QPolicy)])
        self._adopted = [-1] * len(performers)

    def act(self, shares: Sequence[InferenceRequest]) -> list[dict[str, NDArray]]:
        """What each does, in the order of `shares`; all of them as one where all are there with equally many rows."""
        if not self._whole(shares):
            return [share.act() for share in shares]
        for number, performer in enumerate(self._performers):
            if performer.adopted != self._adopted[number]:
                self._stack.weights.adopt(number, performer.module)
                self._adopted[number] = performer.adopted
        of = {id(share.performer): share for share in shares}
        ordered = [of[id(performer)] for performer in self._performers]
        rows = len(shares[0].observation)
        masks = [share.legal for share in ordered if share.legal is not None]
        states = [share.state for share in ordered if share.state is not None]
        acted = self._stack.act(
            np.stack([share.performer.seen(share.observation) for share in ordered]),
            ConcatenatedNoise([share.noise for share in ordered], [rows] * len(ordered)),
            np.concatenate(masks) if masks else None,
            np.concatenate(states) if states else None,
        )
        place = {id(performer): slice(i * rows, (i + 1) * rows) for i, performer in enumerate(self._performers)}
        return [{name: array[place[id(share.performer)]] for name, array in acted.items()} for share in shares]

    def _whole(self, shares: Sequence[InferenceRequest]) -> bool:
        rows = {len(share.observation) for share in shares}
        few = self._most is None or max(rows) <= self._most
        return len(shares) == len(self._performers) and len(rows) == 1 and few


class ConcatenatedNoise:
    """Several generators as one: each gives the numbers for its own rows."""

    def __init__(self, generators: Sequence[Noise], rows: Sequence[int]) -> None:
        self._each = list(zip(generators, rows, strict=True))

    def random(self, size: int, dtype: type[np.float32] = np.float32, /) -> NDArray[np.float32]:
        """[size] uniform in [0, 1)."""
        return np.concatenate([one.random(rows, dtype) for one, rows in self._each])

    def standard_normal(self, size: tuple[int, int], dtype: type[np.float32] = np.float32, /) -> NDArray[np.float32]:
        """[*size] normal."""
        return np.concatenate([one.standard_normal((rows, size[1]), dtype) for one, rows in self._each])

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        """[size] uniform in low..high - 1."""
        return np.concatenate([one.integers(low, high, rows) for one, rows in self._each])


class StackedInference:
    """All performers of an actor: those of one kind act together, recurrent ones of at most so many rows each."""

    def __init__(self, groups: Sequence[Sequence[ActingPolicy]], most_recurrent: int | None = None) -> None:
        self._of: dict[int, _PolicyStack] = {}
        for performers in groups:
            company = _PolicyStack(performers, most_recurrent if performers[0].state else None)
            self._of |= {id(performer): company for performer in performers}

    def act(self, shares: Sequence[InferenceRequest]) -> list[dict[str, NDArray]]:
        """What each performer does, in the order of `shares`."""
        found: list[dict[str, NDArray]] = [{}] * len(shares)
        companies: dict[int, list[int]] = {}
        for number, share in enumerate(shares):
            company = self._of.get(id(share.performer))
            if company is None:
                found[number] = share.act()
            else:
                companies.setdefault(id(company), []).append(number)
        for numbers in companies.values():
            mine = [shares[number] for number in numbers]
            for number, acted in zip(numbers, self._of[id(mine[0].performer)].act(mine), strict=True):
                found[number] = acted
        return found


def build_stacked_inference(performers: Mapping[str, ActingPolicy], run: Run) -> StackedInference | None:
    """Who of `performers`, by the names of their policies, acts together in `run`, if anybody does; says so in the log.
    In lock-step nobody does, as not all bits stay what they are."""
    if run.cohort == "in_turn" or run.lockstep:
        return None
    kinds: dict[str, list[str]] = {}
    for name, performer in performers.items():
        if stackable(performer.module) and not performer.on_device:
            kinds.setdefault(performer.stacking_key, []).append(name)
    auto = run.cohort != "stacked"
    chosen = []
    for names in kinds.values():
        enough = _ENOUGH_HOSTED if performers[names[0]].numpy_backend else _ENOUGH
        if len(names) >= (enough if auto else 2):
            chosen.append(names)
    for names in chosen:
        log.info("event=acting_stacked policies=%s cohort=%s", ",".join(names), run.cohort)
    if not chosen:
        return None
    return StackedInference(
        [[performers[name] for name in names] for names in chosen], _MOST_RECURRENT if auto else None
    )
