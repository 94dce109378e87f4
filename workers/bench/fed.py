"""A learner fed through rings beside the bare captured loop on resident data, both recurrent and of one size.

Out flow: `learner.gpu_ratio_to_bare`: rows a second of a cohort's member that takes its segments out of a ring, checks
and trains them over those of the bare loop; and both.
"""

from __future__ import annotations

import torch

from protocol.config import parse_run
from protocol.counters import Counters
from workers.bench.bare import BareLoop, Size
from workers.bench.clock import medians
from workers.bench.feed import WORLD, Feed, member_of
from workers.learning.cohort import Cohort
from workers.metrics.reporting import LearnerReport
from workers.planning.policy_plan import plan_policies

__all__ = ["fed_through_rings"]

_MINIBATCHES = 4


def fed_through_rings(size: Size, rounds: int, device: torch.device) -> dict[str, float]:
    """Of one policy of this `size` of minibatches."""
    copies = _MINIBATCHES * size.segments
    policy = {
        "algorithm": {"name": "ppo", "minibatches": _MINIBATCHES},
        "model_config": {"hidden": size.hidden, "recurrent": "lstm", "recurrent_size": size.recurrent},
        "segment_length": size.length,
        "credits": 2 * copies,
    }
    run = parse_run({"environment": {"copies": copies}, "policy": policy, "logging": False})
    plan = plan_policies(run, WORLD)["one"]
    counters = Counters(None, *LearnerReport.names([plan.name]))
    feed, bare = Feed(plan, counters, 0), BareLoop(size, device)
    cohort = Cohort(0, lambda _: None, counters)
    cohort.add(member_of(run, plan, feed, counters, device))

    feed.announce()  # from now on there is more than one batch: what is to be known is how fast a learner can be

    def ours() -> None:
        feed.announce()
        cohort.step()

    def theirs() -> None:
        for _ in range(_MINIBATCHES):
            bare.step()

    rows = _MINIBATCHES * size.rows
    taken = medians({"bare": theirs, "ours": ours}, rounds, device)
    return {
        "learner.gpu_ratio_to_bare": taken["bare"] / taken["ours"],
        "learner.gpu_rows_per_second": rows / taken["ours"],
        "learner.gpu_rows_per_second_bare": rows / taken["bare"],
    }
