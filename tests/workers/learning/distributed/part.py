"""One rank of a policy, as a process: `python -m tests.workers.learning.distributed.part RANK SIZE STORE ROUNDS OUT`.

Every rank makes the whole batch of every round and trains on its own part of it; rank 0 of 1 trains on all of it.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from protocol.config.run import IMPALA, PPO, PolicyConfig
from tests.workers.algorithms.stacked.test_stacked_ppo import I, U, segments
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.ppo import PPOUpdate
from workers.learning.distributed.process_group import ProcessGroup
from workers.policies.distributions import Heads
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.recurrent import Kind, RecurrentCore
from workers.policies.tensors.flat_weights import flatten_

CASES: dict[str, tuple[Kind | None, dict[str, Any]]] = {
    "ppo": (None, {"minibatches": 2, "epochs": 2, "value_clip": 0.2, "normalize_observation": True}),
    "lstm": ("lstm", {"minibatches": 4, "normalize_observation": True, "anneal_entropy": True}),
    "gru": ("gru", {"minibatches": 1}),
    "impala": (None, {"name": "impala", "normalize_observation": True}),
    "lopsided": (None, {"minibatches": 8}),
}


def update_of(case: str) -> PPOUpdate:
    """The same in every process."""
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


def train(case: str, rounds: int, ranks: int, group: ProcessGroup | None = None) -> dict[str, torch.Tensor]:
    """What has become of the policy after `rounds` updates on what `ranks` ranks have."""
    update, metrics = update_of(case), {}
    if group is not None:
        update.ranks = group
    for number in range(rounds):
        batch = whole(case, number, ranks)
        given = batch if group is None else part_of(batch, group.rank, ranks)
        metrics = update.update(given, number / rounds)
    return state_of(update, metrics)


def main(rank: int, size: int, store: str, rounds: int, out: str) -> None:
    """Meets the others at the file `store` and writes what has become of the policy in each case."""
    torch.set_num_threads(1)
    group = ProcessGroup("policy", dist.FileStore(store, size), rank, size)
    for case in CASES:
        save_file(train(case, rounds, size, group), Path(out) / f"{case}.{rank}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
