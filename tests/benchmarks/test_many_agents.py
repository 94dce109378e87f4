"""The herd: every segment whole and of one collection, in the memory it may take; and a check that would tell."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.config.run import parse_run
from protocol.experience.ring_buffer import Ring
from tests.benchmarks.many_agents import follows, many_agents
from workers.environments.worlds.synthetic import SyntheticSettings
from workers.tools.bench.rollout import ActorLoop

SETTINGS = {"many": 3, "observation": 8, "actions": 4, "episode_steps": 10, "desynchronize": True}


@pytest.mark.slow
def test_K1_K4_every_agent_of_a_herd_fills_a_segment_of_one_collection_within_six_gibibytes() -> None:
    """2720 copies of 3 in two groups: 4080 agents a turn, and 128 turns (and one a group to close them) fill 8160."""
    figures = many_agents()
    assert figures["herd.segments"] == 8160
    assert figures["herd.stitched_rows"] == 0
    assert figures["herd.rss_gib"] <= 6


def test_a_row_of_another_moment_or_stream_is_found_out() -> None:
    environment = {"id": "synthetic", "copies": 4, "settings": SETTINGS}
    seen: list[np.ndarray] = []

    def look(policy: str, ring: Ring, slots: slice) -> None:
        settings = SyntheticSettings.model_validate(SETTINGS)
        seen.append(follows(ring, slots, settings))
        for field in ("observation", "action", "reward"):
            rows = ring.columns[field][slots]
            kept = rows[5, 3].copy()
            rows[5, 3] = rows[5, 4] if field == "observation" else kept + 1
            seen.append(follows(ring, slots, settings))
            rows[5, 3] = kept

    acting = ActorLoop(parse_run({"environment": environment, "policy": {"segment_length": 16}}), look)
    acting.run(17)
    acting.close()
    assert seen[0].shape == (12, 16)
    assert [found.all() for found in seen] == [True, False, False, False]
    assert [found[5, 2:5].all() for found in seen] == [True, False, False, False]
