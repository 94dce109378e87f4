"""Streams at their own pace: random games in which agents come, go, die and return lose no row and no reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import IQN, PPO
from protocol.errors import EnvironmentFault
from tests.workers import scripted
from workers.acting.seat import Seat
from workers.environments.base import Outcome, Present

LENGTH = 4


@dataclass
class Row:
    """What one action was and brought."""

    seen: float
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: float | None = None


@dataclass
class Game:
    """A seat and, beside it, plain lists of what happened: `rows[e]` are the closed rows of stream e."""

    copies: int
    frames: int = 1
    seat: Seat = field(init=False)
    sender: scripted.Sender = field(init=False)

    def __post_init__(self) -> None:
        policy = scripted.config(IQN(frames=self.frames) if self.frames > 1 else PPO(), LENGTH)
        self.sender = scripted.Sender(scripted.layout_of(policy), self.copies, 400)
        self.seat = scripted.seat(self.sender, scripted.Performer(), self.copies)
        self.rows: list[list[Row]] = [[] for _ in range(self.copies)]
        self.open: list[Row | None] = [None] * self.copies
        self.time = 0

    def turn(self, present: list[int], news: dict[int, tuple[float, str]], whole: bool = False) -> None:
        """`news[e]` is (reward, "", "terminated" or "truncated"): with the presence of e, or else as an outcome."""
        self.time += 1
        told = {e: what for e, what in news.items() if self.open[e] is not None}
        away = [e for e in told if e not in present]
        if away:
            self.seat.receive(Outcome(0, np.array(away), **self.columns(away, told, closing=False)))
        here = self.columns(present, told, closing=True)
        seen = np.array([[e, self.time] for e in present], np.float32)
        if present:
            which = None if whole else np.array(present)
            self.seat.act(Present(0, seen, copies=which, **here), scripted.never)
            for e in present:
                self.open[e] = Row(float(self.time))

    def columns(self, streams: list[int], told: dict[int, tuple[float, str]], closing: bool) -> dict[str, Any]:
        """Arrays of what is told of `streams`, noted in the plain lists as well."""
        reward = np.array([told.get(e, (0.0, ""))[0] for e in streams], np.float32)
        ends = [told.get(e, (0.0, ""))[1] for e in streams]
        cut = [i for i, end in enumerate(ends) if end == "truncated"]
        for e, end in zip(streams, ends, strict=True):
            row = self.open[e]
            if row is None:
                continue
            row.reward += told.get(e, (0.0, ""))[0]
            row.terminated, row.truncated = end == "terminated", end == "truncated"
            row.final = self.time - 0.5 if row.truncated else None
            if closing or end:
                self.rows[e].append(row)
                self.open[e] = None
        return {
            "reward": reward,
            "terminated": np.array([end == "terminated" for end in ends]),
            "truncated": np.array([end == "truncated" for end in ends]),
            "final_index": np.array(cut, np.int64),
            "final_observation": np.array([[streams[i], self.time - 0.5] for i in cut], np.float32) if cut else None,
        }

    def check(self) -> None:
        """Every closed row lies in the segments once, in order, but for those of the block being written."""
        found: list[list[Row]] = [[] for _ in range(self.copies)]
        for records in self.sender.finished:
            for record in records:
                self.check_segment(record, found[int(record["stream"])])
        for e in range(self.copies):
            assert found[e] == self.rows[e][: len(found[e])]
        assert sum(map(len, self.rows)) - sum(map(len, found)) == self.seat.open_rows

    def check_segment(self, record: Any, found: list[Row]) -> None:
        """Appends the rows of one segment to `found`."""
        columns = {name: column[record["slot"]] for name, column in self.sender.ring.columns.items()}
        before, valid, stream = self.frames - 1, int(record["valid"]), int(record["stream"])
        at = len(found)
        history = int(record["before"])
        for back in range(1, history + 1):
            assert columns["observation"][before - back, 1] == found[-back].seen
            assert columns["terminated"][before - back] == found[-back].terminated
        finals = {int(row): columns["final_observation"][k] for k, row in enumerate(columns["final_row"]) if row >= 0}
        for row in range(before, before + valid):
            final = finals.pop(row - before, None)
            found.append(
                Row(
                    float(columns["observation"][row, 1]),
                    float(columns["reward"][row]),
                    bool(columns["terminated"][row]),
                    bool(columns["truncated"][row]),
                    None if final is None else float(final[1]),
                )
            )
            assert columns["observation"][row, 0] == stream
            assert columns["action"][row] == columns["observation"][row, 1] % 5
        assert not finals
        assert np.isnan(columns["reward"][before + valid + 1 :]).all()
        last = found[-1]
        if not (last.terminated or last.truncated):  # then the bootstrap row is the next row of the same episode
            following = self.rows[stream][at + valid :]
            expected = following[0] if following else self.open[stream]
            assert expected is not None
            assert columns["observation"][before + valid, 1] == expected.seen


ENDS = st.sampled_from(["", "", "", "terminated", "truncated"])
NEWS = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(-9, 9).map(float), ENDS))
TURNS = st.lists(st.tuples(st.sets(st.integers(0, 2)), NEWS, st.integers(0, 3)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(turns=TURNS, frames=st.sampled_from([1, 3]))
def test_random_games_count_every_reward_once_in_the_right_row(turns, frames):
    """K1 K5 D7: also agents that act at their own pace, die in mid-segment, are absent, come back."""
    game = Game(3, frames)
    for present, news, everybody in turns:
        game.turn(sorted(present) if everybody else [0, 1, 2], news, whole=not everybody)
    game.check()


def test_a_death_in_mid_segment_is_followed_by_the_next_episode_in_the_same_segment_K5():
    game = Game(2)
    game.turn([0, 1], {}, whole=True)
    game.turn([0, 1], {0: (1.0, ""), 1: (2.0, "terminated")}, whole=True)
    game.turn([0], {0: (3.0, "")})
    game.turn([0], {0: (4.0, ""), 1: (5.0, "")})
    game.turn([0, 1], {0: (6.0, "truncated"), 1: (7.0, "")}, whole=True)
    game.turn([0, 1], {0: (8.0, "")}, whole=True)
    game.check()
    (records,) = game.sender.finished
    assert records["valid"].tolist() == [4, 2]
    assert game.rows[1] == [Row(1.0, 2.0, terminated=True), Row(2.0, 12.0), Row(5.0, 0.0)]


def test_everybody_at_one_row_again_is_written_by_slices_again():
    game = Game(2)
    game.turn([0, 1], {}, whole=True)
    game.turn([0], {})
    assert game.seat._block is not None
    assert not game.seat._block.even
    for _ in range(LENGTH + 1):
        game.turn([0, 1], {}, whole=True)
    assert game.seat._block.even
    game.check()


def test_an_old_block_is_shipped_with_what_it_has():
    """B1: rows become visible at the latest after `flush_after`."""
    now = [0.0]
    policy = scripted.config(PPO(), LENGTH)
    sender = scripted.Sender(scripted.layout_of(policy), 2, 8)
    seat = Seat(
        "one",
        scripted.Performer(),  # type: ignore[arg-type]
        sender,
        2,
        0,
        np.random.default_rng(0),
        flush_after=5.0,
        clock=lambda: now[0],
    )
    for t in range(3):
        seat.act(scripted.present(t, 2), scripted.never)
    seat.flush(scripted.never)
    assert sender.finished == []
    now[0] = 6.0
    seat.flush(scripted.never)
    assert [records["valid"].tolist() for records in sender.finished] == [[2, 2]]
    seat.act(scripted.present(3, 2), scripted.never)
    columns, slots = sender.ring.columns, slice(2, 4)
    np.testing.assert_array_equal(columns["observation"][slots, :2, 1], [[2, 3], [2, 3]])  # the open row went along
    np.testing.assert_array_equal(columns["reward"][slots, 0], [2, 12])
    now[0] = 12.0
    seat.act(scripted.present(4, 2), scripted.never)
    assert [records["valid"].tolist() for records in sender.finished] == [[2, 2], [2, 2]]


def test_a_reward_for_an_action_that_was_never_made_is_told_in_one_sentence():
    game = Game(2)
    game.turn([0], {})
    with pytest.raises(EnvironmentFault, match=r"agent 'one' was given a reward or an end before its first action"):
        game.seat.act(scripted.present(1, 2), scripted.never)
    with pytest.raises(EnvironmentFault, match=r"agent 'one' was given an outcome where it has no action"):
        game.seat.receive(
            Outcome(0, np.array([1]), np.ones(1, np.float32), np.zeros(1, np.bool_), np.zeros(1, np.bool_))
        )
