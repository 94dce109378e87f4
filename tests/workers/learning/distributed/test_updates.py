"""What several ranks make of a policy is what one process makes of it with the joined batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from protocol.config.run import IMPALA, PPO, PolicyConfig
from tests.waiting import PATIENCE
from tests.workers.algorithms.stacked.test_stacked_ppo import I, U, segments
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.ppo import PPOUpdate
from workers.learning.distributed.process_group import ProcessGroup
from workers.policies.distributions import Heads
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.recurrent import Kind, RecurrentCore
from workers.policies.tensors.flat_weights import flatten_

SIZE = 2
CASES: dict[str, tuple[Kind | None, dict[str, Any]]] = {
    "ppo": (None, {"minibatches": 2, "epochs": 2, "value_clip": 0.2, "normalize_observation": True}),
    "lstm": ("lstm", {"minibatches": 4, "normalize_observation": True, "anneal_entropy": True}),
    "gru": ("gru", {"minibatches": 1}),
    "impala": (None, {"name": "impala", "normalize_observation": True}),
    "lopsided": (None, {"minibatches": 8}),
}


def update_of(case: str) -> PPOUpdate:
    """The same for every rank."""
    torch.manual_seed(3)
    core, algorithm = CASES[case]
    remembers = None if core is None else RecurrentCore(I, U, core)
    normalized = bool(algorithm.get("normalize_observation"))
    policy = ActorCritic((I,), Heads((3,)), (8, 8), "tanh", normalize_observation=normalized, core=remembers)
    flatten_(policy)
    kind = IMPALA if algorithm.get("name") == "impala" else PPO
    config = PolicyConfig(algorithm=kind.model_validate(algorithm), learning_rate=3e-3, max_grad_norm=0.3)
    return PPOUpdate(policy, config, seed=5)


def whole(case: str, number: int, size: int) -> SegmentBatch:
    """What all ranks have together in a round."""
    core = CASES[case][0]
    state = U * {None: 0, "gru": 1, "lstm": 2}[core]
    noise = torch.Generator().manual_seed(number)
    made = [segments(noise, state=state) for _ in range(size)]
    columns: dict[str, Any] = {field.name: [getattr(one, field.name) for one in made] for field in fields(SegmentBatch)}
    joined: dict[str, Any] = {n: None if many[0] is None else torch.cat(many) for n, many in columns.items()}
    batch = SegmentBatch(**joined)
    valid = batch.valid.clone()
    valid[-1] -= 2
    if case == "lopsided":  # the last rank has one segment only
        valid[len(valid) // size * (size - 1) + 1 :] = 0
    return replace(batch, valid=valid)


def part_of(batch: SegmentBatch, rank: int, size: int) -> SegmentBatch:
    """The segments of one rank."""
    each = len(batch.valid) // size
    mine = slice(rank * each, (rank + 1) * each)
    columns: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(SegmentBatch)}
    own: dict[str, Any] = {name: None if column is None else column[mine].clone() for name, column in columns.items()}
    return SegmentBatch(**own)


def state_of(update: PPOUpdate, metrics: dict[str, float]) -> dict[str, torch.Tensor]:
    """Weights, statistics, moments, and what the last update said."""
    said = {f"said.{name}": torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}
    return {**{k: v.clone() for k, v in update.policy.state_dict().items()}, **update.state(), **said}


def train(update: PPOUpdate, case: str, rounds: int) -> dict[str, torch.Tensor]:
    """What has become of the policy after `rounds` updates on what all ranks have, or on this rank's part of it."""
    metrics = {}
    for number in range(rounds):
        batch = whole(case, number, SIZE)
        given = batch if update.ranks.size == 1 else part_of(batch, update.ranks.rank, SIZE)
        metrics = update.update(given, number / rounds)
    return state_of(update, metrics)


@pytest.mark.parametrize(("rounds", "apart"), [(4, 1e-6), pytest.param(300, 1e-5, marks=pytest.mark.slow)])
def test_ranks_make_the_updates_of_one_process_with_the_joined_batch(rounds: int, apart: float) -> None:
    """Weights, statistics, moments and metrics to within `apart`, to which the rounding of sums in another order grows,
    of all ranks to the bit: with normalised advantages, clipped gradients, several epochs and minibatches, memory, and
    parts of which a rank has nothing."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=PATIENCE))  # where one rank fails, the other does not wait for ever
    with ThreadPoolExecutor(SIZE) as pool:
        groups = list(pool.map(lambda rank: ProcessGroup("policy", store, rank, SIZE), range(SIZE)))
        for case in CASES:
            both = [update_of(case) for _ in groups]
            for update, group in zip(both, groups, strict=True):
                update.ranks = group
            first, second = pool.map(lambda update: train(update, case, rounds), both)  # noqa: B023 # done by then
            for name, there in train(update_of(case), case, rounds).items():
                assert torch.equal(first[name], second[name]), (case, name)
                assert float((there.double() - first[name].double()).abs().max()) <= apart, (case, name)
