"""On a GPU: what is recorded does what is not, and branches do to the bit what each policy does in turn."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.workers.algorithms.test_fixed_recurrent import STATE, ending
from tests.workers.algorithms.test_stacked import K, U, difference, segments, updates
from tests.workers.policies.test_fixed_core import Asked
from workers.algorithms import room
from workers.algorithms.branches import Branches
from workers.algorithms.fixed import FixedStack
from workers.algorithms.outcomes import one_by_one
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.recorder import Recorder
from workers.learning.batches import Segments, joined
from workers.policies.core import Kind
from workers.policies.distributions import Heads

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ROUNDS = 12


def there(update: PPOUpdate) -> PPOUpdate:
    """The same on the GPU."""
    return PPOUpdate(update.policy.to("cuda"), update.config, seed=update.generator.initial_seed())


def moved(batch: Segments) -> Segments:
    """The same on the GPU."""
    return joined([batch], lambda columns: columns[0].cuda())


@pytest.mark.parametrize("core", [None, "lstm", "gru"])
def test_branches_are_equal_to_the_bit_to_graphs_in_turn_and_stacks_and_eager_updates_nearly(core: Kind | None) -> None:
    companies = [[there(update) for update in updates(Heads((3,)), core, epochs=2)] for _ in range(4)]
    device = torch.device("cuda")
    eager, turns, sides, stacks = companies
    in_turn = [Branches([FixedStack([update])], Recorder(device)) for update in turns]
    recorder = Recorder(device)
    beside = Branches([FixedStack([update]) for update in sides], recorder)
    stacked, noise = Branches([FixedStack(stacks)], Recorder(device)), torch.Generator().manual_seed(0)
    state = {None: 0, "gru": U, "lstm": 2 * U}[core]
    for _ in range(ROUNDS):
        given = [moved(segments(noise, 0, state)) for _ in range(K)]
        one_by_one(eager, given, [0.0] * K)
        for one, batch in zip(in_turn, given, strict=True):
            one.update([batch], [0.0])
        beside.update(given, [0.0] * K)
        stacked.update(given, [0.0] * K)
    assert recorder.recorded, "nothing was recorded"
    assert difference(turns, sides) == 0
    assert difference(eager, turns) < 1e-4
    assert difference(eager, stacks) < 1e-4


def test_branches_with_memories_of_unlike_kinds_are_equal_to_the_bit_while_the_room_of_one_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_SIZES", (2, 4))
    monkeypatch.setattr(room, "_SPARE", 0)
    kinds: list[Kind | None] = ["lstm", "gru", None]
    alone, sides = ([there(updates(Heads((3,)), kind)[i]) for i, kind in enumerate(kinds)] for _ in range(2))
    device = torch.device("cuda")
    in_turn = [Branches([FixedStack([update])], Recorder(device)) for update in alone]
    recorder, noise = Recorder(device), torch.Generator().manual_seed(0)
    stacks = [FixedStack([update]) for update in sides]
    beside, sizes = Branches(stacks, recorder), []
    for number in range(4 * ROUNDS):
        chances = [(0.0, 0.2, 1.0, 0.1)[number // ROUNDS], 0.0, 0.1]
        states = [STATE[kind] if kind else 0 for kind in kinds]
        given = [moved(ending(noise, *pair)) for pair in zip(chances, states, strict=True)]
        for one, batch in zip(in_turn, given, strict=True):
            one.update([batch], [0.0])
        beside.update(given, [0.0] * K)
        sizes.append([stack._room and stack._room.size for stack in stacks])
        assert difference(alone, sides) == 0
    assert [sizes[ROUNDS * part - 1] for part in range(1, 5)] == [
        [2, 2, None],
        [4, 2, None],
        [0, 2, None],
        [0, 2, None],
    ]
    assert recorder.recorded == 1, "of the graphs one is left"


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_memory_is_one_call_of_cudnn_which_copies_no_weights(core: Kind) -> None:
    stack, noise = FixedStack([there(updates(Heads((3,)), core)[0])]), torch.Generator().manual_seed(0)
    stack.begin([moved(ending(noise, 0.1, STATE[core]))], [0.0])
    stack.aim(0)
    with warnings.catch_warnings(), Asked() as asked:
        warnings.filterwarnings("error", message="RNN module weights")
        stack.step()
    assert [name for name, *_ in asked.operations].count("aten._cudnn_rnn.default") == 1
