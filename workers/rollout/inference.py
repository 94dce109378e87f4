"""All seats of a turn together: those that one policy plays are one forward pass, and those that policies of one kind
play are one as well where an actor says so (stacked_inference.py). What they do is written down
when all have acted.

In flow: a turn. Out flow: the actions of all who are present in it, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import Turn
from workers.rollout.acting_policy import InferenceRequest
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.players.fixed_collector import Collector, FixedCollector
from workers.rollout.stacked_inference import ConcatenatedNoise, StackedInference

AnySeat = AgentCollector | Collector


def act_turn(
    seats: Mapping[tuple[int, int], AnySeat],
    turn: Turn,
    on_wait: Callable[[], None],
    joint: StackedInference | None = None,
    answer: Callable[[list[NDArray]], None] | None = None,
) -> list[NDArray]:
    """Actions for each entry of `turn.present`, after all have heard of its `outcomes`. Each seat draws from its own
    noise, so that who sits beside it changes nothing but the last bits of a matrix product. With `joint`, policies of
    one kind act as one. `answer` is given the actions before they are written down, for those who wait for them."""
    for outcome in turn.outcomes:
        seats[outcome.agent, turn.group].add_outcome(outcome, on_wait)
    places = [(seats[present.agent, turn.group], present) for present in turn.present]
    actions: list[NDArray] = [_NOTHING] * len(places)
    casts: dict[int, list[tuple[int, AgentCollector, InferenceRequest]]] = {}
    """By performer: the places of its seats in the turn, the seats, and what it is to see there."""
    for number, (seat, present) in enumerate(places):
        if isinstance(seat, AgentCollector):
            casts.setdefault(id(seat.performer), []).append((number, seat, seat.observe(present, on_wait)))
            continue
        if turn.common is not None and isinstance(seat, FixedCollector):
            seat.set_shared_observation(turn.common)
        actions[number] = seat.act(present, on_wait)
    requests = [_joined([request for _, _, request in company]) for company in casts.values()]
    acted = [request.act() for request in requests] if joint is None else joint.act(requests)
    for company, done in zip(casts.values(), acted, strict=True):
        start = 0
        for number, seat, request in company:
            rows, start = slice(start, start + len(request.observation)), start + len(request.observation)
            mine = done if len(company) == 1 else {name: array[rows] for name, array in done.items()}
            actions[number] = seat.take(mine)
    if answer is not None:
        answer(actions)
    for seat, present in places:
        if isinstance(seat, AgentCollector):
            seat.record(present)
    return actions


_NOTHING: NDArray[np.int64] = np.empty(0, np.int64)


def _joined(requests: Sequence[InferenceRequest]) -> InferenceRequest:
    """Those of one performer, side by side."""
    if len(requests) == 1:
        return requests[0]
    masks = [one.legal for one in requests if one.legal is not None]
    states = [one.state for one in requests if one.state is not None]
    return InferenceRequest(
        requests[0].performer,
        np.concatenate([one.observation for one in requests]),
        ConcatenatedNoise([one.noise for one in requests], [len(one.observation) for one in requests]),
        np.concatenate(masks) if masks else None,
        np.concatenate(states) if states else None,
    )
