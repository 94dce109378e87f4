"""Streams at their own pace: random games in which agents come, go, die and return lose no row and no reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.run import IQN, PPO, parse_run
from protocol.errors import EnvironmentFault
from protocol.experience.shared_obs import SharedObs, SharedObsWriter
from protocol.experience.validation import observed_rows
from tests.faults import raises
from tests.workers import scripted
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.planning.policy_plan import plan_policies
from workers.planning.shared_observation_plan import plan_common
from workers.rollout.agent_collector import AgentCollector

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
    common: SharedObsWriter | None = None
    blocks: int = 400
    seat: AgentCollector = field(init=False)
    sender: scripted.Sender = field(init=False)

    def __post_init__(self) -> None:
        policy = scripted.config(IQN(frames=self.frames) if self.frames > 1 else PPO(), LENGTH)
        world = scripted.WORLD if self.common is None else scripted.SHARING
        self.performer = scripted.Performer(world)
        self.sender = scripted.Sender(scripted.layout_of(policy, world), self.copies, self.blocks)
        self.seat = scripted.seat(self.sender, self.performer, self.copies, common=self.common)
        self.rows: list[list[Row]] = [[] for _ in range(self.copies)]
        self.open: list[Row | None] = [None] * self.copies
        self.time = 0

    def turn(self, present: list[int], news: dict[int, tuple[float, str]], whole: bool = False) -> None:
        """`news[e]` is (reward, "", "terminated" or "truncated"): with the presence of e, or else as an outcome."""
        self.time += 1
        if self.common is not None:
            scripted.tell(self.common, self.time)
            self.seat.flush(scripted.never)
        told = {e: what for e, what in news.items() if self.open[e] is not None}
        away = [e for e in told if e not in present]
        if away:
            self.seat.add_outcome(
                AgentOutcome(0, np.array(away), **self.columns(away, told, closing=False)), scripted.never
            )
        here = self.columns(present, told, closing=True)
        seen = np.array([[e, self.time] for e in present], np.float32)
        if present:
            which = None if whole else np.array(present)
            self.seat.act(AgentTimeStep(0, seen, copies=which, **here), scripted.never)
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
            "final_common": np.array([[1000 * streams[i] + self.time - 1] for i in cut], np.int32) if cut else None,
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
        if self.common is not None:
            self.check_common(record, columns)
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
        assert np.isnan(columns["reward"][before + valid :]).all()
        last = found[-1]
        if not (last.terminated or last.truncated):  # then the bootstrap row is the next row of the same episode
            following = self.rows[stream][at + valid :]
            expected = following[0] if following else self.open[stream]
            assert expected is not None
            assert columns["observation"][before + valid, 1] == expected.seen

    def check_moments(self) -> set[int]:
        """Of every whole segment in the ring; the streams of these."""
        ring = self.sender.ring
        whole = ring.table[(ring.table["valid"] > 0) & (ring.table["sequence"] % 2 == 0)]
        for record in whole:
            self.check_common(record, {name: column[record["slot"]] for name, column in ring.columns.items()})
        return set(whole["stream"].tolist())

    def check_common(self, record: Any, columns: dict[str, Any]) -> None:
        """In every row that may be read lies what all saw in the turn of its observation."""
        assert self.common is not None
        common = SharedObs(self.common.ring)
        place, there = common.rows(columns["moment"][None], record["stream"][None])
        rows = np.flatnonzero(observed_rows(record[None], self.sender.ring.layout)[0])
        assert there[0, rows].all()
        expected = 1000 * int(record["stream"]) + columns["observation"][rows, 1]
        np.testing.assert_array_equal(common.values[place[0, rows], 0], expected)
        for k in np.flatnonzero(columns["final_row"] >= 0):
            expected = 1000 * int(record["stream"]) + columns["final_observation"][k, 1] - 0.5
            assert columns["final_common"][k, 0] == expected


ENDS = st.sampled_from(["", "", "", "terminated", "truncated"])
NEWS = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(-9, 9).map(float), ENDS))
TURNS = st.lists(st.tuples(st.sets(st.integers(0, 2)), NEWS, st.integers(0, 3)), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(turns=TURNS, frames=st.sampled_from([1, 3]), shared=st.booleans())
def test_random_games_count_every_reward_once_in_the_right_row(turns, frames, shared):
    """K1 K5 D7 J9: also agents that act at their own pace, die in mid-segment, are absent, come back; what all saw in
    common is found for every row, for history and for the row behind the last."""
    game = Game(3, frames, scripted.common_of(3, 200) if shared else None)
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
    assert not game.seat._block.aligned
    for _ in range(LENGTH + 1):
        game.turn([0, 1], {}, whole=True)
    assert game.seat._block.aligned
    game.check()


def test_an_old_block_is_shipped_with_what_it_has():
    """B1: rows become visible at the latest after `flush_after`."""
    now = [0.0]
    policy = scripted.config(PPO(), LENGTH)
    sender = scripted.Sender(scripted.layout_of(policy), 2, 8)
    performer: Any = scripted.Performer()
    noise = np.random.default_rng(0)
    seat = AgentCollector("one", performer, sender, range(2), noise, flush_after=5.0, clock=lambda: now[0])
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
    with raises(EnvironmentFault, "reward_before_first_action", agent="one"):
        game.seat.act(scripted.present(1, 2), scripted.never)
    with raises(EnvironmentFault, "outcome_without_action", agent="one"):
        game.seat.add_outcome(
            AgentOutcome(0, np.array([1]), np.ones(1, np.float32), np.zeros(1, np.bool_), np.zeros(1, np.bool_)),
            scripted.never,
        )


def sharing_game(frames: int) -> Game:
    """A game whose memory for what all see in common is as large as the plan says, and not larger."""
    replay = {"name": "iqn", "frames": frames, "buffer_capacity": 64, "learning_starts": 1, "batch_size": 1}
    policy = {"segment_length": LENGTH, "algorithm": replay if frames > 1 else {"minibatches": 1}}
    plans = plan_policies(parse_run({"environment": {"copies": 3}, "policy": policy}), scripted.SHARING)
    plan = plan_common(plans, scripted.SHARING)
    assert plan is not None
    return Game(3, frames, plan.writer(None), plans["one"].blocks)


@settings(max_examples=40, deadline=None)
@given(turns=TURNS, frames=st.sampled_from([1, 3]), again=st.integers(1, 12))
def test_what_a_segment_refers_to_is_kept_and_all_else_is_written_over_J9(turns, frames, again):
    """J9: with the memory of the plan, however the agents come and go, every segment in the ring finds its moments."""
    game = sharing_game(frames)
    for present, news, everybody in turns * again:
        game.turn(sorted(present) if everybody else [0, 1, 2], news, whole=not everybody)
    game.check_moments()


def test_an_agent_that_is_away_for_long_holds_up_no_memory_J9():
    game = sharing_game(3)
    game.turn([0, 1, 2], {}, whole=True)
    for _ in range(500):  # three times what there is memory for
        game.turn([0], {0: (1.0, "")})
    for _ in range(LENGTH + 1):
        game.turn([0, 1, 2], {}, whole=True)
    assert game.check_moments() == {0, 1, 2}


def test_the_policy_is_shown_what_it_will_be_trained_on_J9_U11():
    """Its own observation, then the common one, stacked alike."""
    game = sharing_game(3)
    for turn in range(1, 10):
        game.turn([0, 1, 2], {1: (0.0, "terminated" if turn == 4 else "")}, whole=True)
    (stack,) = (seen[1] for seen in game.performer.seen[-1:])
    np.testing.assert_array_equal(stack, [[1, 7, 1007], [1, 8, 1008], [1, 9, 1009]])
    np.testing.assert_array_equal(game.performer.seen[4][1], [[1, 4, 1004], [1, 4, 1004], [1, 5, 1005]])
