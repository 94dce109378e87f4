"""An agent that goes over to another policy: each of its episodes is one policy's, and every step is written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import PPO
from tests.workers import scripted
from workers.environments.base import AgentOutcome, AgentTimeStep, select_rows
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import Collectors
from workers.rollout.handover import AgentHandovers, Handover

COPIES, LENGTH = 3, 4
Ends = Mapping[int, Sequence[int]]
NEVER: Ends = {}
EVERYWHERE = range(COPIES)


class Policy:
    """Its seat of the agent, and what was written there."""

    def __init__(self) -> None:
        self.sender = scripted.Sender(scripted.layout_of(scripted.config(PPO(), LENGTH)), COPIES, 8)
        self.seat = scripted.seat(self.sender, scripted.Performer(), COPIES)

    @property
    def rows(self) -> dict[tuple[int, int], tuple[float, ...]]:
        """(copy, observation) -> reward, and whether that was the end, terminated or truncated, of all that was sent;
        each row was written once."""
        found: dict[tuple[int, int], tuple[float, ...]] = {}
        columns = self.sender.ring.columns
        for records in self.sender.finished:
            for slot, valid in zip(records["slot"].tolist(), records["valid"].tolist(), strict=True):
                for row in range(valid):
                    copy, t = columns["observation"][slot, row].astype(int).tolist()
                    assert (copy, t) not in found
                    ends = (bool(columns[name][slot, row]) for name in ("terminated", "truncated"))
                    found[copy, t] = (float(columns["reward"][slot, row]), *ends)
        return found

    @property
    def finals(self) -> list[list[float]]:
        """What was seen last of episodes that were cut."""
        columns = self.sender.ring.columns
        return [list(seen) for seen in columns["final_observation"][columns["final_row"] >= 0].tolist()]


def to(new: Policy, old: Policy, room: bool = True) -> Handover:
    """The agent's seat that goes over."""
    seat = Handover(old.seat, lambda _: room)
    seat.give(new.seat)
    return seat


def play(seat: AgentCollector | Handover, turns: range, terminated: Ends = NEVER, truncated: Ends = NEVER) -> None:
    """The observations of these turns; the copies whose episode ended before one."""
    for t in turns:
        turn = scripted.present(t, COPIES, terminated.get(t, []), truncated.get(t, []))
        actions = seat.act(turn, scripted.never)
        assert actions.tolist() == [t % 5] * COPIES


def test_each_stream_goes_over_where_its_episode_ends_and_no_row_is_lost_or_written_twice() -> None:
    old, new = Policy(), Policy()
    play(old.seat, range(3))
    seat = to(new, old)
    ends = {0: 5, 1: 6, 2: 9}
    play(seat, range(3, 12), {5: [0], 9: [2]}, {6: [0, 1]})
    assert seat.over
    seat.end()
    play(new.seat, range(12, 14))
    new.seat.retire()
    assert {place: told[0] for place, told in old.rows.items()} == {
        (copy, t): 10 * copy + t for copy in EVERYWHERE for t in range(ends[copy])
    }
    assert {place: told[0] for place, told in new.rows.items()} == {
        (copy, t): 10 * copy + t for copy in EVERYWHERE for t in range(ends[copy], 13)
    }
    over = {place: told[1:] for place, told in old.rows.items() if any(told[1:])}
    assert over == {(0, 4): (True, False), (1, 5): (False, True), (2, 8): (True, False)}
    assert {place: told[1:] for place, told in new.rows.items() if any(told[1:])} == {(0, 5): (False, True)}
    assert (old.finals, new.finals) == ([[1.0, 5.5]], [[0.0, 5.5]])


def test_an_agent_that_has_not_begun_goes_over_at_once() -> None:
    old, new = Policy(), Policy()
    seat = to(new, old)
    play(seat, range(2))
    assert seat.over
    seat.end()
    new.seat.retire()
    assert (len(old.rows), len(new.rows)) == (0, COPIES)


def test_an_agent_that_died_comes_back_with_the_other_policy() -> None:
    """Its end is told while it does not act, and its next episode begins later."""
    old, new = Policy(), Policy()
    play(old.seat, range(2))
    seat = to(new, old)
    ended = np.array([1])
    died = AgentOutcome(0, ended, np.array([7.0], np.float32), np.array([True]), np.array([False]))
    seat.add_outcome(died, scripted.never)
    others: NDArray[np.int64] = np.array([0, 2])
    seat.act(select_rows(scripted.present(2, COPIES), others), scripted.never)
    back = _quiet(scripted.present(3, COPIES), 1)
    seat.act(back, scripted.never)
    seat._seats[0]._flush_block(scripted.never)
    new.seat._flush_block(scripted.never)
    assert old.rows[1, 1] == (7.0, True, False)
    assert [place for place in old.rows if place[0] == 1] == [(1, 0), (1, 1)]
    assert new.rows == {}, "its first row is open"
    assert new.seat.waits(np.arange(COPIES)).tolist() == [False, True, False]


def _quiet(told: AgentTimeStep, copy: int) -> AgentTimeStep:
    told.reward[copy] = 0
    return told


def test_nobody_goes_over_to_where_there_is_no_room() -> None:
    old, new = Policy(), Policy()
    seat = to(new, old, room=False)
    play(seat, range(6), {2: EVERYWHERE})
    assert not seat.over
    assert not new.seat.writes
    assert old.rows[0, 1] == (1.0, True, False)


@pytest.mark.parametrize("back", [False, True])
def test_seats_follow_the_roster_and_come_back(back: bool) -> None:
    one, other, made = Policy(), Policy(), Policy()
    collectors = Collectors()
    collectors.add("one", {(0, 0): one.seat})
    collectors.add("other", {(1, 0): other.seat})
    rooms = {"one": 2, "other": 2}
    learning = {"one": {(0, 0): one.seat}, "other": {(1, 0): other.seat}}
    handovers = AgentHandovers(collectors, learning, rooms, {"a": 0, "b": 1}, lambda *_: {(0, 0): made.seat})
    play(one.seat, range(2))
    handovers.follow({"a": "other"})
    seat = collectors.seats[0, 0]
    assert isinstance(seat, Handover)
    assert collectors.policy_of[0] == "one"
    if back:
        handovers.follow({"a": "one"})
    play(seat, range(2, 5), {3: EVERYWHERE})
    handovers.follow({"a": "one" if back else "other"})
    assert collectors.seats[0, 0] is (one.seat if back else made.seat)
    assert collectors.policy_of[0] == ("one" if back else "other")
    assert (one.seat.writes, made.seat.writes) == (back, not back)
    assert made.seat.episodes.first == (0, 0, 0.0), "its episodes are none of the run's first"
    assert collectors.of["other"] == collectors.writing[1:] == [other.seat, made.seat]
    assert sum(seat.episodes.take()[0] for seat in collectors.of["one"]) == COPIES


@pytest.mark.parametrize("room", [1, 2])
def test_a_policy_takes_no_more_agents_at_once_than_its_ring_has_room_for(room: int) -> None:
    one, other, made = Policy(), Policy(), Policy()
    collectors = Collectors()
    collectors.add("one", {(0, 0): one.seat})
    collectors.add("other", {(1, 0): other.seat})
    learning = {"one": {(0, 0): one.seat}, "other": {(1, 0): other.seat}}
    rooms = {"one": 1, "other": room}
    handovers = AgentHandovers(collectors, learning, rooms, {"a": 0, "b": 1}, lambda *_: {(0, 0): made.seat})
    play(other.seat, range(1))
    handovers.follow({"a": "other"})
    seat = collectors.seats[0, 0]
    assert isinstance(seat, Handover)
    play(seat, range(3))
    assert (seat.over, made.seat.writes) == (room == 2, room == 2)


def test_who_joins_is_given_an_agent_once_it_has_weights_and_who_goes_has_played_all_that_it_began() -> None:
    one, made = Policy(), Policy()
    collectors = Collectors()
    collectors.add("one", {(0, 0): one.seat})
    learning = {"one": {(0, 0): one.seat}}
    handovers = AgentHandovers(collectors, learning, {"one": 1}, {"a": 0}, lambda *_: {(0, 0): made.seat})
    play(one.seat, range(2))
    handovers.follow({"a": "new"})
    assert collectors.seats[0, 0] is one.seat
    handovers.admit("new", 1)
    handovers.follow({"a": "new"})
    assert (handovers.idle("one"), handovers.idle("new")) == (False, False)
    seat = collectors.seats[0, 0]
    assert isinstance(seat, Handover)
    play(seat, range(2, 5), {3: EVERYWHERE})
    handovers.follow({"a": "new"})
    assert (handovers.idle("one"), handovers.idle("new")) == (True, False)
    handovers.forget("one")
    assert ([*collectors.of], collectors.writing) == (["new"], [made.seat])
