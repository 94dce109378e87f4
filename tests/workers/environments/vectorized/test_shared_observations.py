"""Common observations of copies that are stepped in processes: each group's own, also through a crash."""

from __future__ import annotations

import os
import signal

import numpy as np

from protocol.config.run import EnvironmentConfig
from workers.environments.base import Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.vectorized.process_environment import partition_seed

SETTINGS = {"height": 6, "width": 7, "agents": 2, "turns": 4, "spawn": 0.2, "map": True}


def config(copies: int, processes: int, groups: int) -> EnvironmentConfig:
    """A treasure hunt with a map, all agents at once."""
    return EnvironmentConfig(
        id="treasure_hunt",
        copies=copies,
        turn_mode="simultaneous",
        processes=processes,
        async_factor=groups,
        settings=SETTINGS,
    )


def actions(turn: Turn, t: int) -> list[np.ndarray]:
    """For everybody present, the same wherever they are stepped."""
    return [np.full(len(present.observation), (t + present.agent) % 4) for present in turn.present]


def test_every_group_sees_its_own_copies_and_what_was_seen_last_J9() -> None:
    there = CheckedEnvironment(make(config(8, 2, 2)))
    alone = [[CheckedEnvironment(make(config(2, 0, 1))) for _ in range(2)] for _ in range(2)]
    try:
        turn = there.reset(5)
        parts = [
            [one.reset(partition_seed(5, 4 * g + 2 * i)) for i, one in enumerate(group)]
            for g, group in enumerate(alone)
        ]
        ends = 0
        for t in range(30):
            group = t % 2
            assert turn.group == group
            np.testing.assert_array_equal(turn.common, np.concatenate([part.common for part in parts[group]]))
            for agent, present in enumerate(turn.present):
                lasts = [part.present[agent].final_common for part in parts[group]]
                assert (present.final_common is None) == all(last is None for last in lasts)
                if present.final_common is not None:
                    np.testing.assert_array_equal(present.final_common, np.concatenate(lasts))  # type: ignore[arg-type]
                    ends += len(present.final_common)
            parts[group] = [one.step(actions(p, t)) for one, p in zip(alone[group], parts[group], strict=True)]
            turn = there.step(actions(turn, t))
        assert ends > 0
    finally:
        there.close()
        for one in [one for group in alone for one in group]:
            one.close()


def test_what_was_seen_before_a_crash_is_what_its_episodes_ended_with_J9() -> None:
    there = make(config(4, 2, 1))
    guarded = CheckedEnvironment(there)
    try:
        turn = guarded.reset(5)
        assert turn.common is not None
        turn = guarded.step(actions(turn, 0))
        assert turn.common is not None
        seen = turn.common.copy()
        os.kill(there._children[1]._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        turn = guarded.step(actions(turn, 1))
        assert guarded.restarts == 1
        for present in turn.present:
            assert present.final_index.tolist() == [2, 3]
            np.testing.assert_array_equal(present.final_common, seen[2:])
    finally:
        guarded.close()
