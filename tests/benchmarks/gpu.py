"""Figures that need a GPU, each beside the plain PyTorch loop in the same run; on a CPU, with tiny sizes, to know that
they can be computed.

Out flow: figures by key. `cohort.mlp_speedup` and `cohort.lstm_speedup`: seconds of one step of all plain policies,
each a captured graph, one after the other, over those of ours, stacked or side by side, whichever is faster;
`..._over_eager`: of plain policies one operation at a time; `..._update`: over those of whole updates of ours, with all
that belongs to one (batches joined and checked, metrics written); `..._bfloat16`: over those of ours, stacked, with
`precision: bfloat16`. `mlp_16` and `lstm_4` have so many times the rows; `cohort.iqn_...`: the same of IQN's updates.
`learner.gpu_ratio_to_bare`: rows a second of a learner that takes its segments out of a ring, checks and trains them,
over those of the plain captured loop on resident data. `host_to_device.share`: bytes a second of a batch that a learner
brings to the device over those of one large pinned copy; `host_to_device.gib_per_second` of that copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from protocol.config.run import PolicyConfig, parse_run
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Discrete
from tests.benchmarks.baseline_loop import BareValues, BaselineLoop, Size
from tests.benchmarks.gpu_inference import inference, medians
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch
from workers.algorithms.cuda_graphs.branches import Branches, GraphableUpdate
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.algorithms.stacked.stacked_q_learning import StackedQLearning
from workers.learning.buffers.device_transfer import DeviceTransfer
from workers.learning.cohort import Cohort
from workers.learning.report import LearnerReport
from workers.planning.policy_plan import plan_policies
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.quantile_network import IQNPolicy
from workers.runtime.torch_setup import FLOAT32, Precision
from workers.tools.bench.learner import WORLD, RingFeed, member_of

__all__ = ["FULL", "TINY", "GpuSizes", "fed_through_rings", "measure", "staging"]

_MINIBATCHES = 4


def fed_through_rings(size: Size, rounds: int, device: torch.device) -> dict[str, float]:
    """Of one policy of this `size` of minibatches."""
    copies = _MINIBATCHES * size.segments
    policy = {
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": _MINIBATCHES},
        "model_config": {"hidden": size.hidden, "core": {"name": "lstm", "size": size.recurrent}},
        "segment_length": size.length,
        "credits": 2 * copies,
    }
    run = parse_run({"environment": {"copies": copies}, "policy": policy, "logging": False})
    plan = plan_policies(run, WORLD)["one"]
    counters = Counters(None, *LearnerReport.names([plan.name]))
    feed, bare = RingFeed(plan, counters, 0), BaselineLoop(size, device)
    cohort = Cohort(0, lambda _: None, counters)
    cohort.add(member_of(run, plan, feed, counters, device))

    feed.announce()  # from now on there is more than one batch: what is to be known is how fast a learner can be

    def ours() -> None:
        feed.announce()
        for member, outcome in cohort.turns():
            if member.learn(outcome) and member.publication_due:
                member.publish()

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


_FIELDS = 11
"""Tensors of a batch: one of observations, which is nearly all of it, and small ones."""


def staging(mebibytes: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Of so many MiB."""
    carrier = DeviceTransfer(device)
    numbers = mebibytes << 18
    whole, there = carrier.pin(torch.empty(numbers)), torch.empty(numbers, device=device)
    parts = [numbers * 9 // 10, *[numbers // 10 // (_FIELDS - 1)] * (_FIELDS - 1)]
    batch = {str(number): carrier.pin(torch.empty(part)) for number, part in enumerate(parts)}
    size = sum(parts)

    def staged() -> object:
        if not carrier.overlaps:
            return [part.clone() for part in batch.values()]  # there is nowhere to go
        sent = carrier.send(batch)
        carrier.synchronize(sent)
        return sent

    taken = medians({"bare": lambda: there.copy_(whole, non_blocking=True), "ours": staged}, rounds, device)
    return {
        "host_to_device.share": (size / taken["ours"]) / (numbers / taken["bare"]),
        "host_to_device.gib_per_second": 4 * numbers / taken["bare"] / 2**30,
    }


@dataclass(frozen=True, slots=True)
class GpuSizes:
    """The sizes of all figures."""

    mlp: Size
    lstm: Size
    iqn: Size
    """A segment is one transition."""
    learner: Size
    """Of one minibatch."""
    agents: int
    """Recurrent ones that act."""
    mebibytes: int
    """Of a copy to the device."""


FULL = GpuSizes(
    Size(policies=64, segments=16),
    Size(policies=64, segments=16, hidden=(128,), recurrent=128),
    Size(policies=64, segments=256, length=1),
    Size(policies=1, segments=256, hidden=(128,), recurrent=128),
    agents=4080,
    mebibytes=64,
)
TINY = GpuSizes(
    Size(policies=2, segments=2, length=4, hidden=(8,)),
    Size(policies=2, segments=2, length=4, hidden=(8,), recurrent=8),
    Size(policies=2, segments=4, length=1, hidden=(8,)),
    Size(policies=1, segments=4, length=4, hidden=(8,), recurrent=8),
    agents=16,
    mebibytes=1,
)


def measure(table: GpuSizes, rounds: int, device: torch.device) -> dict[str, float]:
    """All figures on `device`."""
    return {
        **fed_through_rings(table.learner, rounds, device),
        **_cohort("mlp", table.mlp, rounds, device),
        **_cohort("mlp_16", replace(table.mlp, segments=16 * table.mlp.segments), rounds, device),
        **_cohort("lstm", table.lstm, rounds, device),
        **_cohort("lstm_4", replace(table.lstm, segments=4 * table.lstm.segments), rounds, device),
        **_replayed("iqn", table.iqn, rounds, device),
        **inference(table.agents, table.lstm, rounds, device),
        **staging(table.mebibytes, rounds, device),
    }


def _cohort(name: str, size: Size, rounds: int, device: torch.device) -> dict[str, float]:
    given = [_batch(size, device) for _ in range(size.policies)]

    def stacks(arithmetic: Precision, parts: int) -> list[GraphableUpdate]:
        updates, each = _updates(size, device, arithmetic), size.policies // parts
        return [StackedPPO(updates[i * each : (i + 1) * each]) for i in range(parts)]

    return _beside(name, BaselineLoop(size, device), stacks, given, rounds, device)


def _replayed(name: str, size: Size, rounds: int, device: torch.device) -> dict[str, float]:
    given = [_transitions(size, device) for _ in range(size.policies)]

    def stacks(arithmetic: Precision, parts: int) -> list[GraphableUpdate]:
        updates, each = _value_updates(size, device, arithmetic), size.policies // parts
        return [StackedQLearning(updates[i * each : (i + 1) * each]) for i in range(parts)]

    return _beside(name, BareValues(size, given[0], device), stacks, given, rounds, device)


def _beside(
    name: str,
    bare: BaselineLoop | BareValues,
    stacks: Callable[[Precision, int], list[GraphableUpdate]],
    given: Sequence[Any],
    rounds: int,
    device: torch.device,
) -> dict[str, float]:
    """Ours beside the `bare` loop; `stacks` in so many parts."""
    progress = [0.0] * len(given)
    works: dict[str, Callable[[], object]] = {"bare": bare.step, "bare_eager": bare.eager}
    for way, parts, arithmetic in (
        ("stacked", 1, FLOAT32),
        ("branches", len(given), FLOAT32),
        ("bfloat16", 1, Precision("bfloat16")),
    ):
        made = stacks(arithmetic, parts)
        whole = Branches(made, GraphCache(device))
        whole.update(given, progress)  # batches are in place now
        works[way] = _step(made, device)
        works[f"{way}_update"] = lambda whole=whole: whole.update(given, progress)  # type: ignore[misc] # of no argument
    taken = medians(works, rounds, device)
    best = min(taken["stacked"], taken["branches"])
    return {
        f"cohort.{name}_speedup": taken["bare"] / best,
        f"cohort.{name}_speedup_over_eager": taken["bare_eager"] / best,
        f"cohort.{name}_speedup_update": taken["bare"] / min(taken["stacked_update"], taken["branches_update"]),
        f"cohort.{name}_speedup_bfloat16": taken["bare"] / taken["bfloat16"],
        **{f"cohort.{name}_ms_{way}": 1e3 * time for way, time in taken.items()},
    }


def _step(stacks: Sequence[GraphableUpdate], device: torch.device) -> Callable[[], None]:
    """One optimiser step of all stacks, on the batches that they hold."""
    recorder = GraphCache(device)
    return lambda: recorder.run("step", [stack.step for stack in stacks])


def _updates(size: Size, device: torch.device, arithmetic: Precision) -> list[PPOUpdate]:
    memory = {"core": {"name": "lstm", "size": size.recurrent}} if size.recurrent else {}
    config = _config(size, {"name": "ppo", "epochs": 1, "minibatches": 1}, memory)
    found = []
    for seed in range(size.policies):
        policy = build(_interface(size), config, seed).to(device)
        assert isinstance(policy, ActorCritic)
        found.append(PPOUpdate(policy, config, seed))
        found[-1].arithmetic = arithmetic
    return found


def _value_updates(size: Size, device: torch.device, arithmetic: Precision) -> list[DQNUpdate | IQNUpdate]:
    config = _config(size, {"name": "iqn", "quantiles": 8, "target_update_freq": 1}, {"activation": "tanh"})
    found: list[DQNUpdate | IQNUpdate] = []
    for seed in range(size.policies):
        policy = build(_interface(size), config, seed).to(device)
        assert isinstance(policy, IQNPolicy)
        found.append(IQNUpdate(policy, config, seed))
        found[-1].arithmetic = arithmetic
    return found


def _config(size: Size, algorithm: dict[str, Any], network: dict[str, Any]) -> PolicyConfig:
    return PolicyConfig.model_validate({"algorithm": algorithm, "model_config": {"hidden": size.hidden, **network}})


def _interface(size: Size) -> Interface:
    return Interface.of(Agent(name="one", observation=Box(shape=(size.inputs,)), action=Discrete(n=size.actions)))


def _transitions(size: Size, device: torch.device) -> TransitionBatch:
    """Of random worlds, one for each segment."""
    rows = size.segments
    return TransitionBatch(
        torch.randn(rows, 1, size.inputs, device=device),
        torch.randint(0, size.actions, (rows,), device=device),
        torch.randn(rows, device=device),
        torch.full((rows,), 0.97, device=device),
        torch.randn(rows, 1, size.inputs, device=device),
    )


def _batch(size: Size, device: torch.device) -> SegmentBatch:
    """Whole segments of random rows, without truncations."""
    shape = (size.segments, size.length)
    return SegmentBatch(
        observation=torch.randn(size.segments, size.length + 1, size.inputs, device=device),
        action=torch.randint(0, size.actions, shape, device=device),
        reward=torch.randn(shape, device=device),
        terminated=torch.rand(shape, device=device) < 0.01,
        truncated=torch.zeros(shape, dtype=torch.bool, device=device),
        log_probability=torch.full(shape, -1.4, device=device),
        valid=torch.full((size.segments,), size.length, device=device),
        final_observation=torch.zeros(size.segments, 1, size.inputs, device=device),
        final_row=torch.full((size.segments, 1), -1, device=device),
        value=torch.zeros(shape, device=device),
        state=torch.zeros(size.segments, 2 * size.recurrent, device=device) if size.recurrent else None,
    )
