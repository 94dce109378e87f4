"""How long recurrent agents take to act on a device, host observation in, host action out, beside the bare passes.

Out flow: `inference.ratio_to_bare`: milliseconds of ours over those of a bare captured pass (copies, LSTM cell, two
perceptrons, a draw on the device, the action back), and both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from protocol.config.run import PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from tests.benchmarks.baseline_loop import Size, towers
from workers.policies.backends.cuda_actor import CudaActor
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.tools.bench.learner import seconds

__all__ = ["inference", "medians"]

_WARM = 12
"""Goes before any counts on a GPU, in which graphs are recorded, and a learner looks closely at its first batches."""


def medians(works: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Seconds of `rounds` goes of each, one after the other, again and again."""
    for _ in range(_WARM if device.type == "cuda" else 1):
        for work in works.values():
            work()
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(seconds(work, device))
    return {name: statistics.median(times) for name, times in taken.items()}


def inference(agents: int, size: Size, rounds: int, device: torch.device) -> dict[str, float]:
    """Of so many agents that one policy of this `size` plays."""
    agent = Agent(name="one", observation=Box(shape=(size.inputs,)), action=Discrete(n=size.actions))
    network = {"hidden": size.hidden, "core": {"name": "lstm", "size": size.recurrent}}
    policy = build(Interface.of(agent), PolicyConfig.model_validate({"model_config": network}), 0)
    assert isinstance(policy, ActorCritic)
    ours, bare = CudaActor(policy, device), _Bare(agents, size, device)
    noise = np.random.default_rng(0)
    seen = noise.standard_normal((agents, size.inputs), np.float32)
    state = np.zeros((agents, 2 * size.recurrent), np.float32)
    works = {"bare": bare.act, "ours": lambda: ours.act(seen, noise, state=state)}
    taken = medians(works, rounds, device)
    return {
        "inference.ratio_to_bare": taken["ours"] / taken["bare"],
        "inference.ms": 1e3 * taken["ours"],
        "inference.ms_bare": 1e3 * taken["bare"],
    }


class _Bare:
    """A captured pass, whose state stays on the device."""

    def __init__(self, agents: int, size: Size, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._recorder, self._device = GraphCache(device), device
        self._cell = nn.LSTMCell(size.inputs, size.recurrent).to(device)
        self._towers = towers(size).to(device)
        self._seen_here = torch.randn(agents, size.inputs, pin_memory=pinned)
        self._action_here = torch.zeros(agents, dtype=torch.int64, pin_memory=pinned)
        self._seen = torch.zeros(agents, size.inputs, device=device)
        self._uniform = torch.rand(agents, size.actions, device=device)
        self._state = [torch.zeros(agents, size.recurrent, device=device) for _ in range(2)]

    def act(self) -> None:
        """One pass."""
        self._recorder.run("pass", [self._pass])
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    @torch.no_grad()
    def _pass(self) -> None:
        self._seen.copy_(self._seen_here, non_blocking=True)
        output, cell = self._cell(self._seen, (self._state[0], self._state[1]))
        self._state[0].copy_(output)
        self._state[1].copy_(cell)
        x = torch.cat([self._seen, output], 1)
        logits, _ = (tower(x) for tower in self._towers)
        action = (logits - (-self._uniform.log()).log()).argmax(1)
        self._action_here.copy_(action, non_blocking=True)
