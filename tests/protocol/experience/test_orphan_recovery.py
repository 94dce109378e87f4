"""What dead actors left: their rings are told by name, and only whole segments are taken from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import WireError
from protocol.experience.recovery import MemberTracker, finished_beyond, rings_left_behind
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import PREFIX
from tests.faults import raises
from tests.protocol.parts import LAYOUT


def test_only_rings_of_this_run_and_policy_whose_actor_is_gone_and_unknown_are_left_behind(memory_dir: Path) -> None:
    names = [
        "r1-actor-0.1-gem.ring",
        "r1-actor-0.2-gem.ring",
        "r1-actor-1.1-gem.ring",
        "r1-a.b.3-gem.ring",
        "r1-actor-0.1-big-gem.ring",
        "r2-actor-0.1-gem.ring",
        "r1-gem.weights",
        "r1-actor-0.x-gem.ring",
    ]
    for name in names:
        (memory_dir / f"{PREFIX}{name}").touch()
    found = rings_left_behind("r1", "gem", {("actor-0", 2)}, {("actor-1", 1)})
    assert {(key, path.name.removeprefix(PREFIX)) for key, path in found} == {
        (("actor-0", 1), "r1-actor-0.1-gem.ring"),
        (("a.b", 3), "r1-a.b.3-gem.ring"),
    }
    for name in names:
        (memory_dir / f"{PREFIX}{name}").unlink()


def test_a_ring_is_looked_through_once_its_actor_is_lost_or_twice_unknown(memory_dir: Path) -> None:
    roll, path = MemberTracker("r1"), memory_dir / f"{PREFIX}r1-actor-0.1-gem.ring"
    path.touch()
    key = ("actor-0", 1)
    assert roll.call(set(), {"gem": {}}) == []  # it may be about to join
    assert roll.call({key}, {"gem": {}}) == []
    assert key in roll
    assert roll.call(set(), {"gem": {}}) == [("gem", key, path)]  # it was a member
    assert key not in roll
    assert roll.call(set(), {"gem": {}}) == [("gem", key, path)]  # and is told again
    assert roll.call(set(), {"gem": {key: 1}}) == []  # it was taken
    assert roll.call({key}, {"gem": {key: 1}}) == []
    assert roll.call(set(), {"gem": {key: 1}}) == [("gem", key, None)]  # attached, and now lost
    path.unlink()


def _ring() -> Ring:
    ring = Ring.create(None, LAYOUT, 6)
    for slot, number in ((0, 5), (1, 4), (2, 3), (3, 6)):
        ring.begin(slice(slot, slot + 1))
        ring.columns["final_row"][slot] = -1
        ring.finish(slice(slot, slot + 1), [number], LAYOUT.length, 0)
    ring.begin(slice(3, 4))
    return ring


def test_whole_segments_beyond_a_number_are_taken_in_order() -> None:
    ring = _ring()
    ring.table["slot"] = 77  # nobody reads where a slot believes itself to be
    records = finished_beyond(ring, 3, LAYOUT)
    assert records["number"].tolist() == [4, 5]
    assert records["slot"].tolist() == [1, 0]
    assert ring.intact(records).all()
    assert len(finished_beyond(ring, 5, LAYOUT)) == 0


@pytest.mark.parametrize(
    ("damage", "kind"), [("rows", "record_rows_beyond_layout"), ("side table", "final_row_outside_layout")]
)
def test_damage_is_refused_like_in_a_message(damage: str, kind: str) -> None:
    ring = _ring()
    if damage == "rows":
        ring.table["valid"][0] = LAYOUT.length + 1
    else:
        ring.columns["final_row"][0] = np.int32(LAYOUT.length)
    with raises(WireError, kind):
        finished_beyond(ring, 3, LAYOUT)
