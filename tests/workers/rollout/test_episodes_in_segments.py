"""Where episodes lie in segments that they do not divide by: in a row, whole, each step in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import parse_run
from protocol.experience.ring_buffer import Ring
from workers.tools.bench.rollout import ActorLoop

T = 64


def segments(turns: int, copies: int, **settings: Any) -> dict[str, NDArray[Any]]:
    """Columns [segments, T, ...] of one agent's `turns` turns, and `stream`, `stream_sequence` of each."""
    found: list[dict[str, NDArray[Any]]] = []

    def look(policy: str, ring: Ring, slots: slice) -> None:
        columns = {name: ring.columns[name][slots, :T].copy() for name in ("observation", "truncated", "terminated")}
        columns["final_row"] = ring.columns["final_row"][slots].copy()
        columns["final_observation"] = ring.columns["final_observation"][slots].copy()
        found.append(columns | {name: ring.table[name][slots].copy() for name in ("stream", "stream_sequence")})

    environment = {
        "id": "synthetic",
        "copies": copies,
        "settings": {"agents": 1, "observation": 8, "actions": 4} | settings,
    }
    acting = ActorLoop(parse_run({"environment": environment, "policy": {"algorithm": {"minibatches": 1}}}), look)
    acting.run(turns + 1)
    acting.close()
    return {name: np.concatenate([columns[name] for columns in found]) for name in found[0]}


@pytest.mark.parametrize(("episode", "segment", "at"), [(1_000, 15, 40), (428, 6, 44)])
def test_K5_an_episode_ends_in_the_middle_of_a_segment_and_the_next_one_begins_in_its_next_row(
    episode: int, segment: int, at: int
) -> None:
    """1000 steps are 15 segments and 40 rows, then steps 0 to 23; 428 end at row 43 of the rows 384 to 447."""
    told = segments(16 * T, copies=2, episode_steps=episode)
    assert told["stream_sequence"].tolist() == [n for n in range(16) for _ in range(2)]
    steps = np.rint(told["observation"][..., 1] * episode).astype(int)
    for stream in (0, 1):
        mine = told["stream"] == stream
        assert (steps[mine].reshape(-1) == np.arange(16 * T) % episode).all()
        ends = np.flatnonzero(told["truncated"][mine].reshape(-1))
        assert ends.tolist() == list(range(episode - 1, 16 * T, episode))
        there = np.flatnonzero(mine)[segment]
        assert steps[there].tolist() == [*range(episode - at, episode), *range(T - at)]
        assert told["final_row"][there].tolist()[0] == at - 1
        last = told["final_observation"][there, 0]
        assert last[1] == pytest.approx(1), "what was seen after the last step, not the new episode's beginning"
    assert not told["terminated"].any()


def test_K8_first_segments_share_a_step_range_and_desynchronised_ones_begin_anywhere() -> None:
    """Kolmogorov-Smirnov against the uniform distribution at p = 0.01, and quarters of an episode."""

    def begins(copies: int, **settings: Any) -> NDArray[Any]:
        """The steps in which each stream's third segment begins."""
        told = segments(3 * T, copies=copies, episode_steps=100, **settings)
        return np.sort(np.rint(told["observation"][told["stream_sequence"] == 2, 0, 1] * 100))

    assert begins(2).tolist() == [2 * T % 100] * 2
    apart = begins(1_000, desynchronize=True)
    distance = np.abs((np.arange(1_000) + 0.5) / 1_000 - (apart + 0.5) / 100).max()
    assert distance < 1.63 / np.sqrt(1_000)
    assert (np.abs(np.histogram(apart, 4, (0, 100))[0] / 1_000 - 0.25) < 0.05).all()
