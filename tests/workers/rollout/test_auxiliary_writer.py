"""An auxiliary's actor yields data only: what others saw, as they were shown it, and nothing changes for them (J1)."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.config.run import IQN, PPO
from protocol.experience.layout import Field, Layout
from protocol.experience.shared_obs import SharedObs
from protocol.spaces import World
from tests.workers import scripted
from workers.policies.interface import Interface
from workers.rollout.auxiliary_writer import AuxiliaryWriter, TeeSender

LENGTH = 4


def layout(width: int = 2, length: int = LENGTH) -> Layout:
    """Of an auxiliary's segments."""
    fields = (
        Field("observation", "<f4", (width,)),
        Field("final_observation", "<f4", (length, width), "slot"),
        Field("final_row", "<i4", (length,), "slot"),
    )
    return Layout(fields, length)


def played(
    turns: int,
    *,
    copies: int = 2,
    frames: int = 1,
    fraction: float = 1.0,
    truncated: dict[int, list[int]] | None = None,
    world: World = scripted.WORLD,
    length: int = LENGTH,
) -> tuple[scripted.Sender, scripted.Sender]:
    """The policy's sender and the auxiliary's, after so many turns; the dict says where episodes were truncated."""
    policy = scripted.config(IQN(frames=frames) if frames > 1 else PPO(), LENGTH)
    sender = scripted.Sender(scripted.layout_of(policy, world), copies, 8)
    mine = scripted.Sender(layout(3 if world is scripted.SHARING else 2, length), copies, 8)
    common = scripted.common_of(copies, 8) if world is scripted.SHARING else None
    reader = None if common is None else SharedObs(common.ring)
    witness = AuxiliaryWriter(Interface.at(world, world.places[0]), mine, 10, fraction, reader)
    seat = scripted.seat(TeeSender(sender, [witness]), scripted.Performer(world), copies, 0, common)  # type: ignore[arg-type]
    for t in range(turns):
        if common is not None:
            scripted.tell(common, t)
        seat.act(scripted.present(t, copies, truncated=(truncated or {}).get(t, [])), scripted.never)
    return sender, mine


def test_it_yields_what_was_seen_and_nothing_that_was_done_J1() -> None:
    theirs, mine = played(2 * LENGTH + 1, truncated={2: [1]})
    assert [len(records) for records in mine.finished] == [2, 2]
    assert "action" not in mine.ring.columns
    for there, here in zip(theirs.finished, mine.finished, strict=True):
        assert here["stream"].tolist() == [10, 11]
        assert here["stream_sequence"].tolist() == there["stream_sequence"].tolist()
        assert here["valid"].tolist() == [LENGTH, LENGTH]
        for name in ("observation", "final_row"):
            np.testing.assert_array_equal(
                mine.ring.columns[name][here["slot"]], theirs.ring.columns[name][there["slot"]]
            )
    ended = mine.finished[0]["slot"][1]
    assert mine.ring.columns["final_row"][ended].tolist() == [1, -1, -1, -1]
    assert mine.ring.columns["final_observation"][ended, 0].tolist() == [1, 1.5]


def test_those_who_are_watched_send_the_same_as_if_nobody_looked_J1() -> None:
    policy = scripted.config(PPO(), LENGTH)
    alone = scripted.acted(policy, 2, copies=2)
    watched, _ = played(2 * LENGTH + 1)
    for one, other in zip(alone.finished, watched.finished, strict=True):
        for name, column in alone.ring.columns.items():
            np.testing.assert_array_equal(column[one["slot"]], watched.ring.columns[name][other["slot"]])


def test_rows_of_history_are_left_out() -> None:
    _, mine = played(2 * LENGTH + 1, frames=3)
    rows = np.concatenate([mine.ring.columns["observation"][one["slot"][0], :LENGTH, 1] for one in mine.finished])
    assert rows.tolist() == list(range(2 * LENGTH))


def test_what_all_see_is_told_as_the_policy_was_shown_it() -> None:
    _, mine = played(LENGTH + 1, world=scripted.SHARING)
    rows = mine.ring.columns["observation"][mine.finished[0]["slot"][1]]
    assert rows.tolist() == [[1, t, 1000 + t] for t in range(LENGTH + 1)]


def test_segments_of_those_who_have_shorter_ones_end_earlier() -> None:
    _, mine = played(LENGTH + 1, length=6)
    (records,) = mine.finished
    assert records["valid"].tolist() == [LENGTH, LENGTH]
    slot = records["slot"][0]
    assert mine.ring.columns["observation"][slot, : LENGTH + 1, 1].tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(mine.ring.columns["observation"][slot, LENGTH + 1 :]).all()
    assert mine.ring.columns["final_row"][slot].max() == -1


@pytest.mark.parametrize(("fraction", "told"), [(0.5, [1, 3, 5]), (0.25, [3])])
def test_a_fraction_of_the_segments_is_told_at_equal_distances(fraction: float, told: list[int]) -> None:
    _, mine = played(6 * LENGTH + 1, fraction=fraction)
    assert [int(records["stream_sequence"][0]) for records in mine.finished] == told
