"""A torch module as a core: its state, a dict of tensors of any shapes and dtypes, travels as one row of numbers.

Legend: `T` steps, `n` streams, `I` inputs, `G` features, `S` numbers of a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from protocol.errors import ConfigurationError
from workers.policies.networks.recurrent import Core
from workers.policies.tensors.kernels import to_float32

State = dict[str, Tensor]
KEY = "policy.network.core"
_EXACT = (torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16)
"""What float32 holds without loss; of all else each byte is a number."""


class ModuleCore(Core):
    """`module`, with `initial_state(rows) -> state` and `forward(features [T, n, I], state, first [T, n]) -> ([T, n,
    G], state)`, whose state is like `state`. Number 0 of a row is 1 behind a step; where it is 0 an episode begins."""

    def __init__(self, module: nn.Module, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module, self.size = module, int(module.features)  # type: ignore[arg-type] # a number
        self._leaves = {name: (leaf.dtype, leaf.shape[1:]) for name, leaf in state.items()}
        numbers = ((1 if dtype in _EXACT else dtype.itemsize, shape) for dtype, shape in self._leaves.values())
        self._widths = [prod(shape) * each for each, shape in numbers]
        self.state_size = 1 + sum(self._widths)

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        begins = state[:, 0] == 0
        first = torch.cat([begins[None], torch.zeros_like(x[1:, :, 0], dtype=torch.bool)])
        found, after = self.module(x, self._apart(state[:, 1:]), first)
        return to_float32(found), torch.cat([torch.ones_like(state[:, :1]), self._joined(after)], 1)

    def _apart(self, row: Tensor) -> State:
        """[n, S - 1] -> the state."""
        found = {}
        for (name, (dtype, shape)), part in zip(self._leaves.items(), row.split(self._widths, 1), strict=True):
            leaf = part.to(dtype) if dtype in _EXACT else part.to(torch.uint8).flatten().view(dtype)
            found[name] = leaf.reshape(row.shape[0], *shape)
        return found

    def _joined(self, state: Mapping[str, Any]) -> Tensor:
        """The state -> [n, S - 1]."""
        for name, form in self._leaves.items():
            if (found := (state[name].dtype, state[name].shape[1:])) != form:
                value, said = (
                    type(self.module).__name__,
                    [f"{name} {list(shape)} {dtype}" for dtype, shape in (found, form)],
                )
                raise ConfigurationError("core_state_changes", key=KEY, value=value, found=said[0], expected=said[1])
        parts = [state[name].reshape(state[name].shape[0], prod(shape)) for name, (_, shape) in self._leaves.items()]
        parts = [part if part.dtype in _EXACT else part.contiguous().view(torch.uint8) for part in parts]
        return torch.cat([part.to(torch.float32) for part in parts], 1)
