"""Memory: who remembers earns 1, who cannot earns chance; nothing shown later tells the cue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from tests.playing import baselines
from workers.environments.worlds.memory import MemoryTask


def test_an_episode_shows_the_cue_then_nothing_then_the_sign_to_act() -> None:
    env = MemoryTask(5, cues=3, delay=2)
    turn = env.reset(0)
    seen = []
    for _ in range(4):
        seen.append(turn.present[0].observation.copy())
        turn = env.step([np.zeros(5, np.int64)])
    assert (seen[0][:, :3].sum(axis=1) == 1).all()
    assert seen[0][:, 3:].tolist() == [[1, 0]] * 5
    assert not seen[1].any()
    assert not seen[2].any()
    assert seen[3].tolist() == [[0, 0, 0, 0, 1]] * 5
    assert turn.present[0].terminated.all()
    assert turn.present[0].observation[:, 3].all(), "the next episode's cue is shown already"


@pytest.mark.parametrize(("delay", "turn_mode"), [(0, "sequential"), (1, "simultaneous")])
def test_only_the_last_action_counts_and_it_must_be_the_agents_own_cue(delay: int, turn_mode: Any) -> None:
    env = MemoryTask(40, turn_mode, cues=3, delay=delay, agents=2)
    turn = env.reset(1)
    for _ in range(3):
        cues = env._cue.copy()
        assert (cues[0] != cues[1]).any(), "each agent has cues of its own"
        for step in range(delay + 2):
            right = np.arange(40) % 2 == 0
            last = step == delay + 1
            for _ in range(2 if turn_mode == "sequential" else 1):
                chosen = [
                    np.where(right, cues[p.agent], (cues[p.agent] + 1) % 3) if last else cues[p.agent]
                    for p in turn.present
                ]
                turn = env.step(chosen)
            assert env._reward.tolist() == [(right & last).astype(float).tolist()] * 2
            assert env._done.all() == env._done.any() == last


@pytest.mark.parametrize("distract", [False, True])
def test_what_is_seen_when_it_is_time_to_act_says_nothing_of_the_cue(distract: bool) -> None:
    env = MemoryTask(4_000, cues=4, delay=3, distract=distract)
    turn = env.reset(0)
    for step in range(1, 5):
        turn = env.step([np.zeros(4_000, np.int64)])
        seen = turn.present[0].observation
        if step == 4 or not distract:
            assert (seen == seen[0]).all()
        else:
            assert not seen[:, 4:].any(), "a distractor is not marked as the cue"
            table = np.zeros((4, 4))
            np.add.at(table, (env._cue[0], seen[:, :4].argmax(axis=1)), 1)
            expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / 4_000
            assert ((table - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees, p = 0.001


@pytest.mark.parametrize("distract", [False, True])
def test_with_memory_the_return_is_one_and_without_it_is_one_of_the_cues(distract: bool) -> None:
    config = EnvironmentConfig(id="memory", copies=256, settings={"cues": 5, "agents": 2, "distract": distract})
    for known in baselines(config, 4_000, seed=0).values():
        assert known["scripted"] == 1
        assert abs(known["random"] - 1 / 5) < 5 * known["random_stderr"]
