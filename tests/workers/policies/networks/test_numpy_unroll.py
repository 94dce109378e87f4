"""Memories of several policies that numpy unrolls as one are those of torch's own cells, with their gradients (K6)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workers.policies.networks import numpy_unroll
from workers.policies.networks.recurrent_context import RecurrentContext

K, T, B, INPUTS, U = 3, 9, 5, 3, 4
OWN = (T + 1) * B
CELLS: dict[str, type[nn.LSTMCell | nn.GRUCell]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


class Game:
    """Rows of K policies with ends at random, of which every other one has a true last observation."""

    def __init__(self, kind: str, chance: float) -> None:
        noise = torch.Generator().manual_seed(3)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.cells = [CELLS[kind](INPUTS, U) for _ in range(K)]
        ended = torch.rand(T, K * B, generator=noise) < chance
        after = ended.flatten().nonzero()[::2, 0].flip(0)
        self.member = after % (K * B) // B
        counted = [int((self.member[:i] == whose).sum()) for i, whose in enumerate(self.member)]
        self.place = OWN + torch.tensor(counted, dtype=torch.int64)
        most = int(torch.bincount(self.member).max()) if len(after) else 0
        state = torch.randn(K * B, 2 * U if kind == "lstm" else U, generator=noise)
        self.recall = RecurrentContext(state, ended, after)
        self.x = torch.randn(K, OWN + most, INPUTS, generator=noise)
        self.real = torch.zeros(K, OWN + most, 1)
        self.real[:, :OWN] = 1
        self.real[self.member, self.place] = 1
        self.worth = torch.randn(K, OWN + most, U, generator=noise) * self.real

    def weights(self) -> list[Tensor]:
        """As leaves, [K, ...] each, in torch's order."""
        each = zip(*(cell.parameters() for cell in self.cells), strict=True)
        return [torch.stack([weight.detach() for weight in same]).requires_grad_() for same in each]

    def cell_by_cell(self) -> Tensor:
        """The definition: a step after the other of each policy alone, from nothing behind an end."""
        found = torch.zeros(K, self.x.shape[1], U)
        for k, cell in enumerate(self.cells):
            state = self.recall.state[k * B : (k + 1) * B].split(U, 1)
            for t in range(T + 1):
                state = self._step(cell, self.x[k, t * B : (t + 1) * B], state)
                found[k, t * B : (t + 1) * B] = state[0]
                for i, after in enumerate(self.recall.final_place.tolist()):
                    segment = after % (K * B) - k * B
                    if after // (K * B) == t and 0 <= segment < B:
                        before = tuple(part[segment : segment + 1] for part in state)
                        found[k, self.place[i]] = self._step(cell, self.x[k, self.place[i]][None], before)[0][0]
                if t < T:
                    kept = ~self.recall.ended[t, k * B : (k + 1) * B, None]
                    state = tuple(part * kept for part in state)
        return found

    @staticmethod
    def _step(cell: nn.Module, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(cell(x, state)) if len(state) == 2 else (cell(x, state[0]),)

    def unrolled(self, weights: list[Tensor]) -> Tensor:
        """By numpy."""
        return numpy_unroll.unroll(self.x, self.recall, self.member, self.place, weights)


@pytest.mark.parametrize("kind", [*CELLS])
@pytest.mark.parametrize("chance", [0.0, 0.2, 0.9, 1.0])
def test_rows_as_one_are_rows_cell_by_cell_with_their_gradients_K6(kind: str, chance: float) -> None:
    game = Game(kind, chance)
    weights = game.weights()
    expected, found = game.cell_by_cell(), game.unrolled(weights)
    torch.testing.assert_close(found * game.real, expected, atol=1e-6, rtol=0)
    (expected * game.worth).sum().backward()
    (found * game.worth).sum().backward()
    for ours, *theirs in zip(weights, *(cell.parameters() for cell in game.cells), strict=True):
        for one, other in zip(ours.grad, theirs, strict=True):
            torch.testing.assert_close(one, other.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [*CELLS])
def test_what_is_given_stays_as_it_is_and_gradients_add_up(kind: str) -> None:
    game = Game(kind, 0.2)
    weights = game.weights()
    given = [part.clone() for part in (game.x, game.recall.state, *weights)]
    for times in (1, 2):
        (game.unrolled(weights) * game.worth).sum().backward()
        if times == 1:
            once = [weight.grad.clone() for weight in weights if weight.grad is not None]
    for before, after in zip(given, (game.x, game.recall.state, *weights), strict=True):
        assert torch.equal(before, after)
    for weight, first in zip(weights, once, strict=True):
        assert torch.equal(weight.grad, 2 * first)  # type: ignore[arg-type]
    features = game.unrolled(weights)
    gradient = torch.randn(features.shape)
    before = gradient.clone()
    features.backward(gradient)
    assert torch.equal(gradient, before), "others may be handed it as well"


def test_it_is_for_float32_in_host_memory() -> None:
    x = torch.zeros(2)
    assert numpy_unroll.is_supported(x)
    assert not numpy_unroll.is_supported(x.double())
    assert not numpy_unroll.is_supported(x.to("meta"))
