"""Memory that a graph reads has room for little more true last observations than there are, and for all of them."""

from __future__ import annotations

import pytest
import torch

from tests.workers.algorithms.stacked.test_fixed_recurrent import ending
from tests.workers.algorithms.stacked.test_stacked_ppo import difference, updates
from workers.algorithms.common.batches import update_each
from workers.algorithms.cuda_graphs import static_batch
from workers.algorithms.cuda_graphs.branches import Branches
from workers.algorithms.cuda_graphs.step_compiler import StepCompiler
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.policies.backends.cuda_graphs import GraphCache

HOST = torch.device("cpu")


def test_the_side_table_grows_by_what_is_used_and_updates_are_those_of_the_policy_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of six entries a segment those in use are anywhere."""
    monkeypatch.setattr(static_batch, "_LEAST", 1)
    (alone, together), noise = (updates()[:1] for _ in range(2)), torch.Generator().manual_seed(4)
    stack, entries, generations = StackedPPO(together), [], []
    fixed = Branches([stack], GraphCache(HOST))
    for chance in (0.0, 0.6, 0.0, 1.0, 0.6):
        given = [ending(noise, chance, 0)]
        update_each(alone, given, [0.0])
        fixed.update(given, [0.0])
        assert stack._held is not None
        entries.append(stack._held.batch.final_observation.shape[1])
        generations.append(stack.generation)
        assert difference(alone, together) < 1e-6
    assert entries == [1, 4, 4, 6, 6]
    assert generations == [1, 2, 2, 3, 3]


def test_what_is_compiled_has_room_for_all_at_once() -> None:
    """Each size would be compiled anew."""
    stack, noise = StackedPPO(updates()[:1], StepCompiler(wanted=False)), torch.Generator().manual_seed(4)
    stack.load([ending(noise, 0.0, 0)], [0.0])
    assert stack._held is not None
    assert stack._held.batch.final_observation.shape[1] == 6
