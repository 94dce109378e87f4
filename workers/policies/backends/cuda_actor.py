"""An actor-critic that acts on a GPU: observations in host memory in, actions in host memory out, and between them one
graph that is recorded once for every number of rows.

In flows: weights as they are adopted, observations. Out flows: actions with their log-probabilities and values, as
`ActorCritic.act` gives them to within the order of sums.

Legend: `n` rows, `I` inputs, `A` outputs, `S` numbers of a state.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.distributions import Legal, Noise, Remembered
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.tensors.flat_weights import flatten_
from workers.policies.tensors.scratch import ScratchBuffers


class CudaActor:
    """Acts on `device` by the weights that it adopted from policies like `alike`, which are in host memory."""

    def __init__(self, alike: ActorCritic, device: torch.device) -> None:
        self._device, self._policy = device, copy.deepcopy(alike).to(device)
        self._weights = flatten_(self._policy)
        self._recorder = GraphCache(device)
        self._held: dict[int, _StaticBuffers] = {}

    def adopt(self, policy: ActorCritic) -> None:
        """Acts as `policy` from now on."""
        self._weights.storage.copy_(flatten_(policy).storage)

    @torch.inference_mode()
    def act(
        self, observation: NDArray, noise: Noise, greedy: bool = False, legal: Legal = None, state: Remembered = None
    ) -> dict[str, NDArray]:
        """As `ActorCritic.act`, of and with arrays."""
        policy, rows = self._policy, len(observation)
        held = self._held.get(rows)
        if held is None:
            held = self._held[rows] = _StaticBuffers(policy, observation, self._device)
        seen = held.seen_here.numpy()
        np.copyto(seen, observation.reshape(seen.shape), casting="unsafe")
        if state is not None:
            np.copyto(held.state_here.numpy(), state)
        self._recorder.run(rows, [lambda: self._pass(held)])
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        said = held.said_here.numpy()
        outputs, value = said[:-1], said[-1].copy()
        log_std = None if policy.log_std is None else policy.log_std.detach().cpu().numpy()
        after = {} if state is None else {"state": held.after_here.numpy().copy()}
        return {**policy.heads.sample(outputs, log_std, None if greedy else noise, legal), "value": value, **after}

    def _pass(self, held: _StaticBuffers) -> None:
        """From pinned memory to pinned memory, without a word to the host between."""
        policy = self._policy
        held.seen.copy_(held.seen_here, non_blocking=True)
        x = held.seen if policy.observations is None else policy.observations.standard(held.seen)
        if policy.encoder is not None:
            x = policy.encoder(x)
        if policy.core is not None:
            held.state.copy_(held.state_here, non_blocking=True)
            features, after = policy.core.step(x, held.state)
            x = torch.cat([x, features], 1)
            held.after_here.copy_(after, non_blocking=True)
        logits, values = policy.infer(x, held.scratch)
        held.said_here.copy_(torch.cat([logits, policy.denormalize(values)[None]]), non_blocking=True)


class _StaticBuffers:
    """What goes in and out for so many rows: `..._here` in host memory, pinned where there is a GPU."""

    def __init__(self, policy: ActorCritic, observation: NDArray, device: torch.device) -> None:
        def here(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            with torch.inference_mode(False):
                return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")

        rows, numbers = len(observation), 0 if policy.core is None else policy.core.state_size
        self.state_here, self.after_here = (here(rows, numbers) for _ in range(2))
        if policy.encoder is None:
            self.seen_here = here(rows, policy.features)
        else:
            self.seen_here = here(*observation.shape, dtype=torch.from_numpy(observation[:0]).dtype)
        self.said_here = here(policy.heads.outputs + 1, rows)
        self.scratch = ScratchBuffers()  # of its own: memory in a graph must not grow with the rows of another
        self.seen = torch.zeros_like(self.seen_here, device=device)
        self.state = torch.zeros(rows, numbers, device=device)
