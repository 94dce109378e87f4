"""In lock-step a policy's segments come in rounds, by stream, whoever sent them and in whatever order (L1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.config.run import PPO
from protocol.errors import TrainingFault
from protocol.experience.ring_buffer import Records, Ring
from tests.faults import raises
from tests.workers import scripted
from workers.learning.buffers.lockstep_rounds import LockstepRounds

BLOCK, LENGTH = 4, 4


def ring() -> Ring:
    """With three blocks of one actor, who plays streams 0..3 or, `moved`, 4..7."""
    return scripted.acted(scripted.config(PPO(), LENGTH), 3, copies=BLOCK).ring


def records_of(ring: Ring, number: int, first: int = 0, **changes: Any) -> Records:
    """Round `number` of the streams from `first` on."""
    records = ring.segments(slice(0, ring.slots))
    records = records[records["stream_sequence"] == number].copy()
    records["stream"] += np.uint64(first)
    for name, value in changes.items():
        records[name] = value
    return records


def rounds(source: scripted.Source) -> LockstepRounds:
    """Two actors' eight streams."""
    return LockstepRounds(source, "one", 2 * BLOCK, BLOCK, LENGTH)


def test_a_round_is_given_when_it_is_whole_by_stream_and_settled_when_it_is_ended_L1() -> None:
    source, rings = scripted.Source(), [ring(), ring()]
    taken = rounds(source)
    source.arrive(rings[1], records_of(rings[1], 0, BLOCK), actor="actor-1")
    assert not taken.arrivals("one")
    source.arrive(rings[1], records_of(rings[1], 1, BLOCK), actor="actor-1")
    source.arrive(rings[0], records_of(rings[0], 0), actor="actor-0")
    there = taken.arrivals("one")
    assert [arrival.actor for arrival in there] == ["actor-0", "actor-1"]
    assert np.concatenate([arrival.records["stream"] for arrival in there]).tolist() == [*range(2 * BLOCK)]
    assert taken.open
    assert not taken.used
    there.clear()
    assert taken.used
    assert source.settled == []
    taken.end()
    assert [count for _, count in source.settled] == [BLOCK, BLOCK]
    assert not taken.arrivals("one")
    source.arrive(rings[0], records_of(rings[0], 1), actor="actor-0")
    assert len(taken.arrivals("one")) == 2


@pytest.mark.parametrize(
    ("first", "changes", "kind", "facts"),
    [
        (0, {"valid": LENGTH - 1}, "lockstep_segments_incomplete", {"rows": LENGTH}),
        (2 * BLOCK, {}, "lockstep_segments_incomplete", {"streams": 8}),
        (0, {}, "lockstep_stream_repeated", {"round": 0}),
    ],
)
def test_what_no_round_consists_of_is_refused_in_a_sentence_L1(
    first: int, changes: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    source, one = scripted.Source(), ring()
    source.arrive(one, records_of(one, 0), actor="actor-0")
    source.arrive(one, records_of(one, 0, first, **changes), actor="actor-1")
    with raises(TrainingFault, kind, policy="one", **facts):
        rounds(source).arrivals("one")


def test_an_actor_that_comes_back_without_the_others_is_refused_L1() -> None:
    source, one = scripted.Source(), ring()
    taken = rounds(source)
    source.arrive(one, records_of(one, 0))
    taken.arrivals("one")
    source.arrive(one, records_of(one, 0))
    source.queue[0].incarnation = 2
    with raises(TrainingFault, "worker_rejoined_lockstep", peer="actor-0"):
        taken.arrivals("one")
