"""Rows of segments are remembered as they were acted: step by step, from nothing where an episode begins (K6)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workers.policies.networks import numpy_unroll
from workers.policies.networks.recurrent import Kind, RecurrentCore
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.flat_weights import flatten_

T, B, INPUTS, U = 9, 5, 3, 4
KINDS: tuple[Kind, ...] = ("lstm", "gru")


def made(kind: Kind) -> RecurrentCore:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        core = RecurrentCore(INPUTS, U, kind)
    flatten_(core)
    return core


def game(core: RecurrentCore, chance: float) -> tuple[Tensor, RecurrentContext]:
    """Rows with ends at random, of which every other one has a true last observation."""
    noise = torch.Generator().manual_seed(3)
    ended = torch.rand(T, B, generator=noise) < chance
    final = ended.flatten().nonzero()[::2, 0].flip(0)
    x = torch.randn((T + 1) * B + len(final), INPUTS, generator=noise)
    return x, RecurrentContext(torch.randn(B, core.state_size, generator=noise), ended, final)


def step_by_step(core: RecurrentCore, x: Tensor, recall: RecurrentContext) -> Tensor:
    """The definition: one step after the other, with a state of zeros behind each end."""
    state, found = recall.state, []
    finals: dict[int, Tensor] = {}
    for t in range(T + 1):
        y, state = core.step(x[t * B : (t + 1) * B], state)
        found.append(y)
        for entry, place in enumerate(recall.final_place.tolist()):
            if place // B == t:
                i = place % B
                finals[entry] = core.step(x[(T + 1) * B + entry][None], state[i : i + 1])[0]
        if t < T:
            state = state * ~recall.ended[t][:, None]
    return torch.cat(found + [finals[entry] for entry in range(len(finals))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chance", [0.0, 0.2, 0.9, 1.0])
def test_rows_at_once_are_rows_step_by_step_with_their_gradients_K6(kind: Kind, chance: float) -> None:
    core = made(kind)
    x, recall = game(core, chance)
    gradients = []
    expected, found = step_by_step(core, x, recall), core.unroll(x, recall)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    for features in (expected, found):
        core.zero_grad()
        (features * weight).sum().backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_gru_of_which_numpy_sees_nothing_is_unrolled_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    core = made("gru")
    x, recall = game(core, 0.2)
    here = core.unroll(x, recall)
    monkeypatch.setattr(numpy_unroll, "is_supported", lambda x: False)
    there = core.unroll(x, recall)
    torch.testing.assert_close(there, here, atol=1e-6, rtol=0)
    assert type(here.grad_fn) is not type(there.grad_fn), "numpy took no part"


def test_an_lstm_is_torchs_with_output_then_cell_in_its_state() -> None:
    core = made("lstm")
    x, state = torch.randn(2, INPUTS), torch.randn(2, 2 * U)
    features, after = core.step(x, state)
    cell = torch.nn.LSTMCell(INPUTS, U)
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in core.cell.state_dict().items()})
    output, inner = cell(x, (state[:, :U], state[:, U:]))
    torch.testing.assert_close(features, output)
    torch.testing.assert_close(after, torch.cat([output, inner], 1))
