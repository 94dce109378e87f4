"""Rows that are remembered in shapes that never change are those of `RecurrentCore.unroll`, and so are their gradients
(K6).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tools import skip_or_fail
from tests.workers.policies.networks.test_recurrent import INPUTS, KINDS, B, T, made
from workers.policies.backends import cuda_recurrent
from workers.policies.networks.recurrent import Kind, RecurrentCore
from workers.policies.networks.recurrent_context import RecurrentContext

EVERY = B * (T + 1)
"""Runs that there can be at most."""


def at(*rows: int) -> Tensor:
    """[T, B]: ends after these rows, of every segment but the first."""
    ended = torch.zeros(T, B, dtype=torch.bool)
    ended[[*rows], 1:] = True
    return ended


def game(core: RecurrentCore, ended: Tensor, runs: int, seed: int = 0) -> tuple[Tensor, RecurrentContext]:
    """Rows with these ends, of which about every other one has a true last observation; with as many places for these
    as there may be, of which those that are none belong to row T."""
    noise = torch.Generator().manual_seed(seed)
    real = ended & (torch.rand(T, B, generator=noise) < 0.5)
    final = torch.where(real.flatten(), torch.arange(T * B), T * B + torch.arange(T * B) % B)
    final = final[torch.randperm(T * B, generator=noise)]
    x = torch.randn((T + 1) * B + T * B, INPUTS, generator=noise)
    return x, RecurrentContext(torch.randn(B, core.state_size, generator=noise), ended, final, runs)


def fixed(core: RecurrentCore, x: Tensor, recall: RecurrentContext) -> Tensor:
    """By the weights of `core`."""
    return cuda_recurrent.unroll(x, recall, [*core.cell.parameters()])


def gradients(core: RecurrentCore, features: Tensor) -> list[Tensor]:
    """Of some sum of features, for all parameters."""
    weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(4))
    return [*torch.autograd.grad((features * weight).sum(), [*core.parameters()])]


def alike(core: RecurrentCore, x: Tensor, recall: RecurrentContext) -> None:
    """Whether features of all rows that are any, and their gradients, are those of `RecurrentCore.unroll`."""
    own = (T + 1) * B
    real = torch.cat([torch.ones(own, dtype=torch.bool), recall.final_place < T * B])
    rows = real.nonzero()[:, 0]
    expected = core.unroll(x[rows], recall._replace(final_place=recall.final_place[real[own:]]))
    found = fixed(core, x, recall)[rows]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for one, other in zip(gradients(core, expected), gradients(core, found), strict=True):
        torch.testing.assert_close(other, one, atol=1e-6 * max(1.0, float(one.abs().max())), rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "ended",
    [at(), at(0), at(T - 1), at(3, 4), at(0, 1, T - 2, T - 1), torch.ones(T, B, dtype=torch.bool)],
    ids=["none", "first row", "last row", "two in successive rows", "both ends", "all rows"],
)
def test_rows_in_fixed_shapes_are_those_of_runs_wherever_episodes_end_K6(kind: Kind, ended: Tensor) -> None:
    core = made(kind)
    for runs in (B + int(ended.sum()), EVERY):
        alike(core, *game(core, ended, runs))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_fixed_shapes_are_those_of_runs_with_ends_at_random_K6(kind: Kind) -> None:
    core, noise = made(kind), torch.Generator().manual_seed(7)
    for seed in range(12):
        ended = torch.rand(T, B, generator=noise) < torch.rand((), generator=noise)
        alike(core, *game(core, ended, EVERY, seed))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_of_a_device_does_not_depend_on_ends_K6(kind: Kind) -> None:
    """As a graph that was recorded with one batch is replayed with all others."""

    def asked(ended: Tensor) -> list[Any]:
        core = made(kind)
        x, recall = game(core, ended, EVERY)
        with Asked() as found:
            gradients(core, fixed(core, x, recall))
        return found.operations

    expected = asked(at())
    assert expected
    assert all(asked(ended) == expected for ended in (at(0), at(3, 4), torch.ones(T, B, dtype=torch.bool)))
    assert not {"aten._local_scalar_dense.default", "aten.nonzero.default"} & {name for name, *_ in expected}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memories_are_not_rounded_where_products_are(kind: Kind, device: str) -> None:
    """Autocast would make them float16 on CUDA, whatever it is asked for."""
    if device == "cuda" and not torch.cuda.is_available():
        skip_or_fail("needs a CUDA device")
    core = made(kind).to(device)
    rows, (state, ended, final, runs) = game(core, at(3), EVERY)
    x, recall = (
        rows[: (T + 1) * B].to(device),
        RecurrentContext(state.to(device), ended.to(device), final[:0].to(device), runs),
    )
    exact = core.unroll(x, recall), fixed(core, x, recall)
    with torch.autocast(device, torch.bfloat16):
        found = core.unroll(x, recall), fixed(core, x, recall)
    assert all(torch.equal(*pair) for pair in zip(exact, found, strict=True))


def test_more_runs_than_there_is_room_for_are_an_error() -> None:
    core = made("lstm")
    with pytest.raises(IndexError, match="out of bounds"):
        fixed(core, *game(core, at(3), B + B - 2))


def test_units_of_gru_and_lstm_are_told_apart_by_their_weights() -> None:
    """Four gates of three units are as many as three of four."""
    for kind, size in (("lstm", 3), ("gru", 4)):
        core = RecurrentCore(INPUTS, size, kind)  # type: ignore[arg-type] # one of both
        x, recall = game(core, at(3), EVERY)
        assert fixed(core, x, recall).shape == (len(x), size)


class Asked(TorchDispatchMode):
    """Notes each operation, with the shapes that go in and come out."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations.append((str(func), _shapes(args), _shapes(found)))
        return found


def _shapes(of: Any) -> Any:
    if isinstance(of, Tensor):
        return tuple(of.shape)
    return [_shapes(part) for part in of] if isinstance(of, list | tuple) else None
