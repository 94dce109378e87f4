"""On a GPU: what is recorded does what is not, and branches do to the bit what each policy does in turn.

Where there is none, one that is not there takes its place (tests/late)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch

from protocol.config.run import DQN, IQN
from protocol.errors import TrainingFault
from tests.workers.algorithms.stacked import test_stacked_q_learning as replayed
from tests.workers.algorithms.stacked.test_fixed_recurrent import STATE, ending
from tests.workers.algorithms.stacked.test_stacked_ppo import K, U, difference, segments, updates
from tests.workers.policies.backends.test_cuda_recurrent import Asked
from workers.algorithms.common import run_capacity
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch, concatenate, update_each
from workers.algorithms.cuda_graphs import static_batch
from workers.algorithms.cuda_graphs.branches import Branches, GraphableUpdate
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.algorithms.stacked.stacked_q_learning import StackedQLearning
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.distributions import Heads
from workers.policies.networks.recurrent import Kind

ROUNDS = 5
"""Three are made before graphs are recorded."""
AnyUpdate = TypeVar("AnyUpdate", PPOUpdate, DQNUpdate, IQNUpdate, DQNUpdate | IQNUpdate)
Batch = TypeVar("Batch", SegmentBatch, TransitionBatch)
Way = Callable[[Sequence[DQNUpdate | IQNUpdate]], list[GraphableUpdate]]


def there(update: AnyUpdate, device: torch.device) -> AnyUpdate:
    """The same on the GPU."""
    return type(update)(update.policy.to(device), update.config, seed=update.generator.initial_seed())  # type: ignore[arg-type] # of its own policy


def moved(batch: Batch, device: torch.device) -> Batch:
    """The same on the GPU."""
    return concatenate([batch], lambda columns: columns[0].to(device))


def all_as_one(members: Sequence[DQNUpdate | IQNUpdate]) -> list[GraphableUpdate]:
    """Stacked."""
    return [StackedQLearning(members)]


def side_by_side(members: Sequence[DQNUpdate | IQNUpdate]) -> list[GraphableUpdate]:
    """Branches."""
    return [StackedQLearning([member]) for member in members]


@pytest.mark.parametrize("core", [None, *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lstm", "gru"))])
def test_branches_are_equal_to_the_bit_to_graphs_in_turn_and_stacks_and_eager_updates_nearly(
    cuda: torch.device, core: Kind | None
) -> None:
    companies = [[there(update, cuda) for update in updates(Heads((3,)), core)] for _ in range(4)]
    eager, turns, sides, stacks = companies
    in_turn = [Branches([StackedPPO([update])], GraphCache(cuda)) for update in turns]
    recorder = GraphCache(cuda)
    beside = Branches([StackedPPO([update]) for update in sides], recorder)
    stacked, noise = Branches([StackedPPO(stacks)], GraphCache(cuda)), torch.Generator().manual_seed(0)
    state = {None: 0, "gru": U, "lstm": 2 * U}[core]
    for _ in range(ROUNDS):
        given = [moved(segments(noise, 0, state), cuda) for _ in range(K)]
        update_each(eager, given, [0.0] * K)
        for one, batch in zip(in_turn, given, strict=True):
            one.update([batch], [0.0])
        beside.update(given, [0.0] * K)
        stacked.update(given, [0.0] * K)
    assert recorder.captured, "nothing was recorded"
    assert difference(turns, sides) == 0
    assert difference(eager, turns) < 1e-4
    assert difference(eager, stacks) < 1e-4


@pytest.mark.slow
def test_branches_with_memories_of_unlike_kinds_are_equal_to_the_bit_while_the_room_of_one_grows(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_batch, "_LEAST", 64)  # of that nothing grows
    monkeypatch.setattr(run_capacity, "_SIZES", (2, 4))
    monkeypatch.setattr(run_capacity, "_SPARE", 0)
    kinds: list[Kind | None] = ["lstm", "gru", None]
    alone, sides = ([there(updates(Heads((3,)), kind)[i], cuda) for i, kind in enumerate(kinds)] for _ in range(2))
    in_turn = [Branches([StackedPPO([update])], GraphCache(cuda)) for update in alone]
    recorder, noise = GraphCache(cuda), torch.Generator().manual_seed(0)
    stacks = [StackedPPO([update]) for update in sides]
    beside, sizes = Branches(stacks, recorder), []
    for chance in [0.0] * ROUNDS + [0.2] * 2 + [1.0] * ROUNDS:
        chances = [chance, 0.0, 0.1]
        states = [STATE[kind] if kind else 0 for kind in kinds]
        given = [moved(ending(noise, *pair), cuda) for pair in zip(chances, states, strict=True)]
        for one, batch in zip(in_turn, given, strict=True):
            one.update([batch], [0.0])
        beside.update(given, [0.0] * K)
        sizes.append([stack._room and stack._room.size for stack in stacks])
        assert difference(alone, sides) == 0
    assert sizes == [[2, 2, None]] * ROUNDS + [[4, 2, None]] * 2 + [[0, 2, None]] * ROUNDS
    assert recorder.captured == 1, "of the graphs one is left"


@pytest.mark.parametrize("way", [all_as_one, side_by_side])
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        (IQN, {"dueling": True, "noisy": True, "anneal_learning_rate": True, "priority_alpha": 0.5}),
        (DQN, {"double": False, "target_update": "hard"}),
    ],
    ids=["iqn", "dqn"],
)
def test_values_learn_in_graphs_what_they_would_here_alone_each_by_its_own_schedules(
    cuda: torch.device, way: Way, kind: type[DQN | IQN], algorithm: dict[str, object]
) -> None:
    here, copies = (replayed.updates(kind, **algorithm) for _ in range(2))  # type: ignore[arg-type] # mixed settings
    beyond = [there(update, cuda) for update in copies]
    recorder, noise = GraphCache(cuda), torch.Generator().manual_seed(0)
    together = Branches(way(beyond), recorder)
    for number in range(rounds := ROUNDS + 2):
        given = [replayed.transitions(noise, True, "priority_alpha" in algorithm) for _ in range(K)]
        progress = [number / rounds * (member + 1) / K for member in range(K)]
        expected = update_each(here, given, progress)
        found = together.update([moved(batch, cuda) for batch in given], progress)
    assert recorder.captured == 1
    assert len({update.policy.epsilon.item() for update in beyond}) > 1, "no schedule of its own was followed"
    for a, b in zip(here, beyond, strict=True):
        assert torch.allclose(a.optimizer.parameters, b.optimizer.parameters.cpu(), atol=1e-4)
        assert a.priorities is not None
        assert b.priorities is not None
        assert torch.allclose(a.priorities, b.priorities.cpu(), atol=1e-4)
    for one, other in zip(expected, found, strict=True):
        assert isinstance(one, dict)
        assert other == pytest.approx(one, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("way", [all_as_one, side_by_side])
def test_who_fails_in_a_graph_stays_as_it_is_and_the_others_go_on(cuda: torch.device, way: Way) -> None:
    updates_there = [there(update, cuda) for update in replayed.updates()]
    recorder, noise = GraphCache(cuda), torch.Generator().manual_seed(0)
    together = Branches(way(updates_there), recorder)
    weights = []
    for number in range(ROUNDS + 2):
        given = [moved(replayed.transitions(noise), cuda) for _ in range(K)]
        if number == ROUNDS:
            given[1].reward.fill_(float("nan"))
        found = together.update(given, [0.0] * K)
        assert [isinstance(outcome, TrainingFault) for outcome in found] == [False, number == ROUNDS, False]
        weights.append([update.optimizer.parameters.clone() for update in updates_there])
    assert recorder.captured == 1
    before, failed, after = weights[-3:]
    assert [torch.equal(*pair) for pair in zip(before, failed, strict=True)] == [False, True, False]
    assert [torch.equal(*pair) for pair in zip(failed, after, strict=True)] == [False, False, False]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_memory_is_one_call_of_cudnn_which_copies_no_weights(core: Kind) -> None:
    stack, noise = (
        StackedPPO([there(updates(Heads((3,)), core)[0], torch.device("cuda"))]),
        torch.Generator().manual_seed(0),
    )
    stack.load([moved(ending(noise, 0.1, STATE[core]), torch.device("cuda"))], [0.0])
    stack.select_minibatch(0)
    with warnings.catch_warnings(), Asked() as asked:
        warnings.filterwarnings("error", message="RNN module weights")
        stack.step()
    assert [name for name, *_ in asked.operations].count("aten._cudnn_rnn.default") == 1
