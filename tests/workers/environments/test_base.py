"""What is told of some rows of a turn is told of them alone, with what their episodes ended with."""

from __future__ import annotations

import numpy as np
import pytest

from workers.environments.base import AgentOutcome, AgentTimeStep, select_rows


def _told(copies: list[int] | None) -> AgentTimeStep:
    """Of four rows, of which 1 and 3 were truncated."""
    cut = np.array([False, True, False, True])
    return AgentTimeStep(
        agent=2,
        observation=np.arange(8.0).reshape(4, 2),
        reward=np.arange(4, dtype=np.float32),
        terminated=~cut,
        truncated=cut,
        copies=None if copies is None else np.array(copies),
        final_index=np.array([1, 3]),
        final_observation=np.array([[10.0], [30.0]]),
        final_common=np.array([[100.0], [300.0]]),
        action_mask=np.eye(4, dtype=np.bool_),
    )


@pytest.mark.parametrize(("copies", "left"), [(None, [0, 3]), ([4, 5, 7, 9], [4, 9])])
def test_selected_rows_keep_their_copies_and_their_own_final_observations(
    copies: list[int] | None, left: list[int]
) -> None:
    some = select_rows(_told(copies), np.array([0, 3]))
    assert some.copies is not None
    assert (some.agent, some.copies.tolist(), some.reward.tolist()) == (2, left, [0.0, 3.0])
    assert (some.terminated.tolist(), some.truncated.tolist()) == ([True, False], [False, True])
    assert some.observation.tolist() == [[0.0, 1.0], [6.0, 7.0]]
    assert some.action_mask is not None
    assert some.action_mask.argmax(1).tolist() == [0, 3]
    assert some.final_index.tolist() == [1]
    assert some.final_observation is not None
    assert some.final_common is not None
    assert (some.final_observation.tolist(), some.final_common.tolist()) == ([[30.0]], [[300.0]])


def test_an_outcome_of_rows_that_were_not_truncated_has_no_final_observations() -> None:
    whole = _told([0, 1, 2, 3])
    assert whole.copies is not None
    outcome = AgentOutcome(
        2, whole.copies, whole.reward, whole.terminated, whole.truncated, whole.final_index, whole.final_observation
    )
    some = select_rows(outcome, np.array([0, 2]))
    assert (some.copies.tolist(), len(some.final_index), some.final_observation) == ([0, 2], 0, None)
