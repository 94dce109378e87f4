"""All seats of a turn together: those that one policy plays are one forward pass, and those that policies of one kind
play are one as well where an actor says so (stacked_inference.py). What they do is written down
when all have acted.

In flow: a turn. Out flow: the actions of all who are present in it, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentTimeStep, Turn
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.players.fixed_collector import Collector, FixedCollector
from workers.rollout.stacked_inference import ConcatenatedNoise, InferenceRequest, StackedInference

__all__ = ["AnySeat", "act_turn"]

AnySeat = AgentCollector | Collector


def act_turn(
    seats: Mapping[tuple[int, int], AnySeat],
    turn: Turn,
    on_wait: Callable[[], None],
    joint: StackedInference | None = None,
    answer: Callable[[list[NDArray]], None] | None = None,
) -> list[NDArray]:
    """Actions for each entry of `turn.present`. Each seat draws from its own noise, so that who sits beside it changes
    nothing but the last bits of a matrix product. With `joint`, policies of one kind act as one. `answer` is given the
    actions before they are written down, for those who wait for them."""
    places = [(seats[present.agent, turn.group], present) for present in turn.present]
    if turn.common is not None:
        for seat, _ in places:
            if isinstance(seat, FixedCollector):
                seat.set_shared_observation(turn.common)
    policies = {id(seat.performer) for seat, _ in places}
    if joint is None and len(policies) == len(places):
        actions = [_chosen(seat, present, on_wait) for seat, present in places]
    else:
        actions = _act_batched(places, on_wait, joint)
    if answer is not None:
        answer(actions)
    for seat, present in places:
        if isinstance(seat, AgentCollector):
            seat.record(present)
    return actions


def _chosen(seat: AnySeat, present: AgentTimeStep, on_wait: Callable[[], None]) -> NDArray:
    """What one does by itself; what learns is written down later."""
    return seat.choose(present, on_wait) if isinstance(seat, AgentCollector) else seat.act(present, on_wait)


def _act_batched(
    places: Sequence[tuple[AnySeat, AgentTimeStep]], on_wait: Callable[[], None], joint: StackedInference | None
) -> list[NDArray]:
    """What all do, where some act together."""
    casts: dict[int, list[int]] = {}
    for number, (seat, _) in enumerate(places):
        casts.setdefault(id(seat.performer), []).append(number)
    actions: list[NDArray] = [_NOTHING] * len(places)
    groups: list[list[int]] = []
    for numbers in casts.values():
        chair, present = places[numbers[0]]
        if len(numbers) == 1 and (joint is None or not isinstance(chair, AgentCollector)):
            actions[numbers[0]] = _chosen(chair, present, on_wait)
        else:  # a performer that does not learn has one seat
            groups.append(numbers)
    companies = [cast("list[tuple[AgentCollector, AgentTimeStep]]", [places[i] for i in numbers]) for numbers in groups]
    seen = [[seat.observe(present, on_wait) for seat, present in company] for company in companies]
    shares = [_share(company, parts) for company, parts in zip(companies, seen, strict=True)]
    acted = [share.act() for share in shares] if joint is None else joint.act(shares)
    for numbers, company, parts, done in zip(groups, companies, seen, acted, strict=True):
        for number, action in zip(numbers, _taken(company, parts, done), strict=True):
            actions[number] = action
    return actions


_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)


def _share(company: Sequence[tuple[AgentCollector, AgentTimeStep]], seen: Sequence[NDArray]) -> InferenceRequest:
    """What seats of one performer are to see, side by side."""
    first, present = company[0]
    if len(company) == 1:
        return InferenceRequest(first.performer, seen[0], first.noise, first.legal(present), first.state)
    masks = [mask for seat, present in company if (mask := seat.legal(present)) is not None]
    states = [state for seat, _ in company if (state := seat.state) is not None]
    return InferenceRequest(
        first.performer,
        np.concatenate(seen),
        ConcatenatedNoise([seat.noise for seat, _ in company], [len(part) for part in seen]),
        np.concatenate(masks) if masks else None,
        np.concatenate(states) if states else None,
    )


def _taken(
    company: Sequence[tuple[AgentCollector, AgentTimeStep]], seen: Sequence[NDArray], acted: dict[str, NDArray]
) -> list[NDArray]:
    """The actions of each seat, which is given its rows of what was done."""
    actions, start = [], 0
    for (seat, _), part in zip(company, seen, strict=True):
        mine = slice(start, start + len(part))
        actions.append(seat.take({name: array[mine] for name, array in acted.items()}))
        start += len(part)
    return actions
