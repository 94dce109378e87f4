"""What a configuration lets foresee: exploration that stays, targets that are never updated, buffers too small."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config.run import Run
from workers.environments.registry import describe
from workers.planning.foreseen import expected_lag, expected_passes, expected_updates, foreseen
from workers.planning.policy_plan import plan_policies

DQN: dict[str, Any] = {"name": "dqn", "batch_size": 50, "learning_starts": 1_000, "replay_ratio": 5.0}


def run_of(algorithm: dict[str, Any], **keys: Any) -> Run:
    """10,000 agent steps, of which each of two policies has half."""
    policy = {"algorithm": algorithm, "segment_length": 8}
    return Run.model_validate({"steps": 10_000, "environment": {"copies": 4}, "policy": policy, **keys})


def found(algorithm: dict[str, Any], **keys: Any) -> set[str]:
    """What is foreseen of each policy of such a run."""
    run = run_of(algorithm, **keys)
    world = describe(run.environment)
    told = foreseen(plan_policies(run, world), world, run)
    assert set(map(frozenset, told.values())) == {frozenset(told["agent_0"])}, "both policies are alike"
    return set(told["agent_0"])


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"name": "ppo"}, set()),
        (DQN, set()),
        ({**DQN, "epsilon_decay": 1e-4}, {"exploration_stays"}),
        ({**DQN, "epsilon_decay": 0.05, "epsilon_decay_freq": 10}, set()),
        ({**DQN, "target_update": "hard", "target_update_freq": 401}, {"target_never_updated"}),
        ({**DQN, "target_update": "hard", "target_update_freq": 400}, set()),
        ({**DQN, "buffer_capacity": 1_050}, set()),
    ],
)
def test_what_a_configuration_lets_foresee(algorithm: dict[str, Any], expected: set[str]) -> None:
    assert found(algorithm) == expected


def test_a_buffer_of_fewer_rows_than_asked_for_is_foreseen() -> None:
    """Of three actors each keeps whole blocks of 4 copies and 64 rows."""
    policy = {"algorithm": {**DQN, "buffer_capacity": 1_500, "learning_starts": 500}, "segment_length": 64}
    assert found({}, policy=policy, actors=3) == {"buffer_smaller"}
    assert found({}, policy={**policy, "segment_length": 8}, actors=3) == set()


@pytest.mark.parametrize(
    ("algorithm", "rows", "updates"),
    [
        (DQN, 5_000, 400),
        (DQN, 500, 0),
        ({"name": "ppo", "segments": 8, "epochs": 3, "minibatches": 2}, 6_400, 600),
        ({"name": "impala", "segments": 8}, 6_400, 100),
    ],
)
def test_updates_follow_from_rows(algorithm: dict[str, Any], rows: int, updates: int) -> None:
    run = run_of(algorithm)
    assert expected_updates(plan_policies(run, describe(run.environment))["agent_0"], rows) == updates


@pytest.mark.parametrize(("size", "core", "rows"), [(50, "gru", 48), (5, "gru", 8), (50, None, 50)])
def test_a_batch_of_who_remembers_is_whole_segments(size: int, core: str | None, rows: int) -> None:
    policy = {"algorithm": {**DQN, "batch_size": size}, "segment_length": 8, "network": {"core": core}}
    run = run_of({}, policy=policy)
    plan = plan_policies(run, describe(run.environment))["agent_0"]
    assert plan.batch_rows == rows
    assert expected_updates(plan, 5_000) == 4_000 * 5 / rows


@pytest.mark.parametrize(
    ("algorithm", "keys", "passes", "lag"),
    [
        ({"name": "ppo", "epochs": 3, "minibatches": 2}, {"publish_interval": 6}, 3.0, 4.0),
        ({"name": "ppo", "epochs": 3, "minibatches": 2}, {"publish_interval": 12}, 3.0, 2.0),
        (
            {"name": "ppo", "segments": 2, "epochs": 1, "minibatches": 2},
            {"publish_interval": 1, "credits": 4},
            1.0,
            5.0,
        ),
        ({**DQN, "buffer_capacity": 1_024}, {"publish_interval": 10}, 4.0, 10.24),
    ],
)
def test_how_often_and_how_late_a_row_is_trained_on(
    algorithm: dict[str, Any], keys: dict[str, Any], passes: float, lag: float
) -> None:
    """Of 5,000 rows, in segments of 8 of 4 copies: one block is written, two wait unless fewer may, one is learned."""
    run = run_of({}, policy={"algorithm": algorithm, "segment_length": 8, **keys})
    plan = plan_policies(run, describe(run.environment))["agent_0"]
    assert expected_passes(plan, 5_000) == pytest.approx(passes)
    assert expected_lag(plan, 5_000) == pytest.approx(lag)
