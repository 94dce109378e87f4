"""How often a learner waits for its GPU: every wait is time in which nothing is asked of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from protocol.config.run import parse_run
from protocol.memory.shared_file import Counters
from tests.late.cuda import late_cuda
from workers.learning.cohort import Cohort
from workers.learning.report import LearnerReport
from workers.planning.policy_plan import plan_policies
from workers.tools.bench.learner import WORLD, RingFeed, member_of

MOST = {"ppo": 5, "recurrent": 6}
"""Whether the batch is whole (and for how many ends there must be room), what became of the update, the rows that were
trained on, what must have left before the next batch is assembled; now and then whether weights are numbers."""


@pytest.mark.parametrize(
    "network",
    [
        pytest.param({}, id="ppo"),
        pytest.param({"core": {"name": "lstm", "size": 8}}, id="recurrent", marks=pytest.mark.slow),
    ],
)
def test_an_update_waits_a_few_times_and_finds_its_batch_on_the_device(
    network: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """However many minibatches there are."""
    policy = {
        "algorithm": {"name": "ppo", "minibatches": 4, "epochs": 3},
        "model_config": {"hidden": (8,), **network},
        "segment_length": 4,
        "credits": 32,
    }
    run = parse_run({"environment": {"copies": 16}, "policy": policy, "logging": False})
    plan = plan_policies(run, WORLD)["one"]
    counters = Counters(None, *LearnerReport.names([plan.name]))
    with late_cuda() as machine:
        feed, cohort = RingFeed(plan, counters, 0), Cohort(0, lambda _: None, counters)
        member = member_of(run, plan, feed, counters, torch.device("cuda"))
        cohort.add(member)
        feed.announce()
        waited = []
        for _ in range(16):
            feed.announce()
            before = machine.waited
            for learner, outcome in cohort.turns():
                if learner.learn(outcome) and learner.publication_due:
                    learner.publish()
            waited.append(machine.waited - before)
            assert not feed.arrivals("one"), "the next batch is on its way"
    assert max(waited[-4:]) <= MOST[request.node.callspec.id]
    assert member.update.train_steps == 16 * 12
