"""`gather` against a reference that walks the stream step by step; garbage around it is never read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.config.run import IQN
from protocol.experience.ring_buffer import Records, Ring, poison
from tests.workers import scripted
from workers.learning.buffers.nstep_gather import gather

NEITHER, TERMINATED, TRUNCATED = 0, 1, 2


@dataclass
class Stream:
    """What one copy went through: `ends[t]` says how the episode ended with row t; `seen[t]` what was acted on."""

    ends: list[int]
    seen: NDArray
    sender: scripted.Sender


def record(ends: list[int], length: int, frames: int) -> Stream:
    """One copy acts len(ends) + 1 times."""
    policy = scripted.config(IQN(frames=frames), length)
    layout = scripted.layout_of(policy)
    sender, performer = scripted.Sender(layout, 1, len(ends) // length + 2), scripted.Performer()
    seat = scripted.seat(sender, performer, 1)
    for t in range(len(ends) + 1):
        before = ends[t - 1] if t else NEITHER
        terminated, truncated = ([0] if before == kind else [] for kind in (TERMINATED, TRUNCATED))
        seat.act(scripted.present(t, 1, terminated, truncated), scripted.never)
    seen = np.concatenate(performer.seen)
    return Stream(ends, seen if frames > 1 else seen[:, None], sender)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, int, int, int]:
    """(ends, segment length, frames, n, valid rows of the last segment)"""
    length = draw(st.integers(1, 6))
    segments = draw(st.integers(1, 4))
    kinds = st.sampled_from([NEITHER] * 4 + [TERMINATED, TRUNCATED])
    ends = draw(st.lists(kinds, min_size=length * segments, max_size=length * segments))
    frames = draw(st.integers(1, min(4, length + 1)))
    return ends, length, frames, draw(st.integers(1, 5)), draw(st.integers(1, length))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_gather_equals_the_step_by_step_reference_and_reads_no_poison_B4_B5_D5_U7_U10_U11(
    case: tuple[list[int], int, int, int, int],
) -> None:
    """n-step sums, discounts, successors and stacks; the last segment is cut short and poisoned behind its rows."""
    ends, length, frames, n, last_valid = case
    stream = record(ends, length, frames)
    ring, layout = stream.sender.ring, stream.sender.ring.layout
    records = np.concatenate(stream.sender.finished)
    _cut_short(ring, records, last_valid)
    _spoil_history(ring, records)
    config = IQN(frames=frames, n_step=n, gamma=0.5)
    for segment, entry in enumerate(records):
        rows = np.arange(int(entry["valid"]))
        chosen = np.repeat(entry[None], len(rows))
        found, _ = gather(ring, scripted.Performer().interface, layout, chosen, rows, config)
        for row in rows:
            t, stop = segment * length + int(row), segment * length + int(entry["valid"])
            _equal({name: array[row] for name, array in found.items()}, stream, t, stop, config)


def _cut_short(ring: Ring, records: Records, valid: int) -> None:
    last, layout = records[-1:], ring.layout
    last["valid"] = valid
    slot = int(last["slot"][0])
    for field in layout.fields:
        column = ring.columns[field.name]
        if field.per == "row":
            spared = 1 if field.name == "observation" else 0
            poison(column[slot, layout.before + valid + spared :])


def _spoil_history(ring: Ring, records: Records) -> None:
    """Rows of history that are not valid look like rows of an episode that goes on."""
    for record in records:
        rows = slice(0, ring.layout.before - int(record["before"]))
        for name in ("terminated", "truncated"):
            ring.columns[name][record["slot"], rows] = False


def _equal(found: dict[str, NDArray], stream: Stream, t: int, stop: int, config: IQN) -> None:
    """`found` is what starts at step t; steps from `stop` on are not known to this segment."""
    total, factor, last = 0.0, 1.0, t
    for k in range(config.n_step):
        if t + k >= stop:
            break
        last = t + k
        total += factor * last
        factor *= config.discount
        if stream.ends[last] != NEITHER:
            break
    assert found["action"] == t % 5
    assert (str(found["action"].dtype), str(found["reward"].dtype)) == ("int64", "float32")
    np.testing.assert_allclose(found["reward"], total)
    np.testing.assert_array_equal(found["observation"], stream.seen[t])
    assert np.isfinite(found["next_observation"]).all()
    if stream.ends[last] == TERMINATED:
        assert found["discount"] == 0
        return
    np.testing.assert_allclose(found["discount"], factor)
    if stream.ends[last] == TRUNCATED:
        np.testing.assert_array_equal(found["next_observation"][-1], [0, last + 0.5])
        np.testing.assert_array_equal(found["next_observation"][:-1], stream.seen[last][1:])
    else:
        np.testing.assert_array_equal(found["next_observation"], stream.seen[last + 1])
