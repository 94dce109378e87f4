"""What a policy that is curious is given for its rows: by which observation, which weights, and when nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.config.run import parse_run
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import NOTHING, Version
from tests.workers import scripted
from workers.algorithms.common.batches import SegmentBatch
from workers.learning.curiosity import IntrinsicReward, novelty
from workers.learning.report import LearnerReport
from workers.planning.auxiliary_plan import AuxiliaryPlan, plan_auxiliaries
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build
from workers.policies.tensors.flat_weights import flatten_


def batch(**fields: Any) -> SegmentBatch:
    """One segment of four rows, whose observations are 0, 1, 2, 3 and 4."""
    nothing = torch.zeros(1, 4)
    columns: dict[str, Any] = {
        "observation": torch.stack([torch.arange(5.0), torch.zeros(5)], 1)[None],
        "action": nothing.long(),
        "reward": torch.ones(1, 4),
        "terminated": nothing.bool(),
        "truncated": nothing.bool(),
        "log_probability": nothing,
        "value": nothing,
        "valid": torch.tensor([4]),
        "final_observation": torch.full((1, 2, 2), float("nan")),
        "final_row": torch.full((1, 2), -1),
    }
    return SegmentBatch(**{**columns, **fields})


def first(observation: Tensor) -> Tensor:
    """A bonus that can be read off."""
    return observation[..., 0] * 10


def test_a_row_is_rewarded_for_what_its_action_led_to() -> None:
    assert novelty(first, batch()).tolist() == [[10, 20, 30, 40]]


def test_a_truncated_row_is_rewarded_for_the_true_last_observation_and_a_terminated_one_for_nothing_K7() -> None:
    truncated, terminated = torch.zeros(2, 1, 4).bool().unbind()
    truncated[0, 1], terminated[0, 2] = True, True
    final = torch.tensor([[[7.0, 0.0], [float("nan")] * 2]])
    found = novelty(
        first,
        batch(
            truncated=truncated,
            terminated=terminated,
            final_observation=final,
            final_row=torch.tensor([[1, -1]]),
        ),
    )
    assert found.tolist() == [[10, 70, 0, 40]]


def test_rows_that_are_not_real_get_nothing() -> None:
    observation = batch().observation.clone()
    observation[0, 3:] = float("nan")
    assert novelty(first, batch(observation=observation, valid=torch.tensor([2]))).tolist() == [[10, 20, 0, 0]]


@pytest.fixture
def plan() -> AuxiliaryPlan:
    """Of an auxiliary that observes the scripted world's policy."""
    run = parse_run(
        {
            "environment": {"copies": 4},
            "policy": {"algorithm": {"curiosity": {"auxiliary": "novelty"}}},
            "auxiliaries": {"novelty": {"algorithm": {"features": 4}, "network": {"hidden": [8]}}},
        }
    )
    return plan_auxiliaries(run, plan_policies(run, scripted.WORLD))["novelty"]


class Mail:
    """Weights that a test publishes."""

    def __init__(self, plan: AuxiliaryPlan) -> None:
        self.networks = build(plan.interface, plan.config, 5)
        self.version = NOTHING

    def publish(self, number: int) -> None:
        """What the networks are now."""
        self.version = Version(1, number)

    def adopt(self, out: NDArray[np.uint8], have: Version) -> Version | None:
        """As a subscriber."""
        if self.version <= have:
            return None
        out[:] = flatten_(self.networks).bytes_view()
        return self.version


def curious(plan: AuxiliaryPlan, mail: Mail) -> tuple[IntrinsicReward, Counters]:
    """Half the bonus, for the policy "one"."""
    counters = Counters(None, *LearnerReport.names(["one"]))
    one = IntrinsicReward("one", plan, 0.5, torch.device("cpu"), counters)
    one.adopt = mail.adopt
    return one, counters


def test_the_bonus_is_nothing_until_weights_come_that_have_seen_something_and_that_is_counted(
    plan: AuxiliaryPlan,
) -> None:
    mail = Mail(plan)
    one, counters = curious(plan, mail)
    assert one.add_bonus(batch()).reward.tolist() == [[1, 1, 1, 1]]
    mail.publish(1)  # initial ones
    assert one.add_bonus(batch()).reward.tolist() == [[1, 1, 1, 1]]
    assert counters["rows_without_bonus.one"] == 8
    assert one.measured["intrinsic_version"] == 1
    mail.networks.observations.update(torch.rand(10, 2))
    mail.publish(2)
    given = batch()
    rewarded = one.add_bonus(given)
    torch.testing.assert_close(rewarded.reward, 1 + 0.5 * mail.networks.bonus(given.observation[:, 1:]))
    assert given.reward.tolist() == [[1, 1, 1, 1]]
    assert counters["rows_without_bonus.one"] == 8


def test_without_news_the_last_weights_serve_on_and_it_is_said_how_old_they_are(plan: AuxiliaryPlan) -> None:
    mail = Mail(plan)
    one, _ = curious(plan, mail)
    mail.networks.observations.update(torch.rand(10, 2))
    mail.publish(3)
    before = one.add_bonus(batch()).reward
    mail.networks.observations.update(torch.rand(10, 2) * 9)  # it goes on and tells nobody: it died
    after = one.add_bonus(batch()).reward
    assert torch.equal(before, after)
    assert one.measured["intrinsic_version"] == 3
    assert one.measured["intrinsic_age"] > 0
    assert one.measured["reward_mean"] == 1
    mean = float((after - 1).mean()) / 0.5
    assert one.measured["intrinsic_mean"] == pytest.approx(mean, rel=1e-5)
