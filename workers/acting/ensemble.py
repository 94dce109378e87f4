"""All seats of a turn together: those that one policy plays are one forward pass.

In flow: a turn. Out flow: the actions of all who are present in it, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from workers.acting.fixed_seat import FixedSeat
from workers.acting.league_seat import LeagueSeat
from workers.acting.performer import Performer
from workers.acting.seat import Seat
from workers.environments.base import Present, Turn

__all__ = ["act_together"]


def act_together(
    seats: Mapping[tuple[int, int], Seat | FixedSeat | LeagueSeat], turn: Turn, on_wait: Callable[[], None]
) -> list[NDArray]:
    """Actions for each entry of `turn.present`. Each seat draws from its own noise, so that who sits beside it changes
    nothing but the last bits of a matrix product."""
    places = [(seats[present.agent, turn.group], present) for present in turn.present]
    if turn.common is not None:
        for seat, _ in places:
            if isinstance(seat, FixedSeat):
                seat.look(turn.common)
    policies = {id(seat.performer) for seat, _ in places}
    if len(policies) == len(places):
        return [seat.act(present, on_wait) for seat, present in places]
    casts: dict[int, list[int]] = {}
    for number, (seat, _) in enumerate(places):
        casts.setdefault(id(seat.performer), []).append(number)
    actions: list[NDArray] = [_NOTHING] * len(places)
    for numbers in casts.values():
        for number, action in zip(numbers, _act([places[i] for i in numbers], on_wait), strict=True):
            actions[number] = action
    return actions


_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)


def _act(places: Sequence[tuple[Seat | FixedSeat | LeagueSeat, Present]], on_wait: Callable[[], None]) -> list[NDArray]:
    """Seats of one performer."""
    if len(places) == 1:
        (chair, present), *_ = places
        return [chair.act(present, on_wait)]
    together = cast("Sequence[tuple[Seat, Present]]", places)  # a performer that does not learn has one seat
    performer: Performer = together[0][0].performer
    seen = [seat.observe(present, on_wait) for seat, present in together]
    masks = [mask for seat, present in together if (mask := seat.legal(present)) is not None]
    states = [state for seat, _ in together if (state := seat.state) is not None]
    noise = _Side([seat.noise for seat, _ in together], [len(part) for part in seen])
    legal = np.concatenate(masks) if masks else None
    acted = performer.act(np.concatenate(seen), noise, legal=legal, state=np.concatenate(states) if states else None)
    ends = np.cumsum([len(part) for part in seen])
    actions = []
    for (seat, present), end, part in zip(together, ends.tolist(), seen, strict=True):
        mine = slice(end - len(part), end)
        actions.append(seat.record(present, {name: array[mine] for name, array in acted.items()}))
    return actions


class _Side:
    """Several generators as one: each gives the numbers for its own rows."""

    def __init__(self, generators: Sequence[np.random.Generator], rows: Sequence[int]) -> None:
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
