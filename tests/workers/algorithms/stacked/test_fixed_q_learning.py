"""Updates of DQN and IQN in memory that never moves, as CUDA graphs ask: what each policy would have become alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from protocol.config.run import DQN, IQN
from protocol.errors import TrainingFault
from tests.workers.algorithms.stacked import test_stacked_ppo as streamed
from tests.workers.algorithms.stacked.test_fixed_ppo import HOST
from tests.workers.algorithms.stacked.test_stacked_ppo import alike
from tests.workers.algorithms.stacked.test_stacked_q_learning import B, K, Updates, difference, transitions, updates
from workers.algorithms.common.batches import Update, concatenate, update_each
from workers.algorithms.cuda_graphs.branches import Branches
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.stacked.stacked_q_learning import StackedQLearning
from workers.policies.backends.cuda_graphs import GraphCache

Way = Callable[[Updates], Branches]


def stacked(members: Updates) -> Branches:
    """All as one."""
    return Branches([StackedQLearning(members)], GraphCache(HOST))


def branches(members: Updates) -> Branches:
    """Side by side."""
    return Branches([StackedQLearning([member]) for member in members], GraphCache(HOST))


@pytest.mark.parametrize("way", [stacked, branches])
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        (IQN, {"dueling": True, "noisy": True, "anneal_learning_rate": True}),
        (IQN, {"target_update": "hard", "double": False, "priority_alpha": 0.5}),
        (DQN, {"noisy": True}),
        (DQN, {"double": False, "activation": "relu", "priority_alpha": 0.5, "target_update": "hard"}),
    ],
    ids=["iqn noisy", "iqn hard", "dqn noisy", "dqn relu"],
)
def test_fixed_updates_make_of_policies_what_they_would_be_alone(
    way: Way, kind: type[DQN | IQN], algorithm: dict[str, object]
) -> None:
    """Targets, priorities' weights, exploration rates and learning rates included, each at its own schedules."""
    alone, together = (updates(kind, **algorithm) for _ in range(2))  # type: ignore[arg-type] # mixed settings
    fixed, noise, rounds = way(together), torch.Generator().manual_seed(0), 9
    for number in range(rounds):
        given = [transitions(noise, True, "priority_alpha" in algorithm) for _ in range(K)]
        progress = [number / rounds * (member + 1) / K for member in range(K)]
        expected, found = update_each(alone, given, progress), fixed.update(given, progress)
        for a, b in zip(alone, together, strict=True):
            assert a.policy.epsilon.item() == b.policy.epsilon.item()
    assert len({update.policy.epsilon.item() for update in together}) > 1, "no schedule of its own was followed"
    assert difference(alone, together) < 1e-6
    alike(expected, found)


@pytest.mark.parametrize("way", [stacked, branches])
@pytest.mark.parametrize("kind", [IQN, DQN])
def test_who_fails_stays_as_it_is_with_its_schedules_and_the_others_go_on(way: Way, kind: type[DQN | IQN]) -> None:
    alone, together = (updates(kind, target_update_freq=1, epsilon_decay_freq=1) for _ in range(2))
    noise = torch.Generator().manual_seed(0)
    given = [transitions(noise) for _ in range(K)]
    given[1] = replace(given[1], reward=torch.full((B,), float("nan")))
    before = {name: value.clone() for name, value in together[1].policy.state_dict().items()}
    fixed = way(together)
    update_each(alone, given, [0.0] * K)
    found = fixed.update(given, [0.0] * K)
    assert isinstance(found[1], TrainingFault)
    assert (found[1].kind, math.isnan(found[1].loss)) == ("update_not_finite", True)
    assert all(torch.equal(value, before[name]) for name, value in together[1].policy.state_dict().items())
    given = [transitions(noise) for _ in range(K)]
    alike(update_each(alone, given, [0.0] * K), fixed.update(given, [0.0] * K))
    assert [update.train_steps for update in together] == [2, 1, 2]
    assert difference(alone, together) < 1e-6


def test_errors_that_priorities_are_made_of_are_kept_when_the_memory_is_used_again() -> None:
    together, noise = updates(), torch.Generator().manual_seed(0)
    fixed = stacked(together)
    fixed.update([transitions(noise) for _ in range(K)], [0.0] * K)
    first = [errors for update in together if (errors := update.priorities) is not None]
    kept = [errors.clone() for errors in first]
    fixed.update([transitions(noise) for _ in range(K)], [0.0] * K)
    assert all(torch.equal(one, other) for one, other in zip(first, kept, strict=True))
    assert together[0].priorities is not None
    assert not torch.equal(together[0].priorities, kept[0])


def test_other_sizes_of_batches_get_memory_of_their_own_and_unequal_ones_are_trained_on_one_by_one() -> None:
    alone, together = updates(), updates()
    fixed, noise = stacked(together), torch.Generator().manual_seed(0)
    for halves in ((), (0, 1, 2), (1,), ()):
        given = [transitions(noise) for _ in range(K)]
        for member in halves:
            given[member] = concatenate([given[member]], lambda columns: columns[0][: B // 2])
        update_each(alone, given, [0.0] * K)
        fixed.update(given, [0.0] * K)
    assert difference(alone, together) < 1e-6


def test_branches_of_ppo_iqn_and_dqn_step_side_by_side() -> None:
    """Each with its batch, in whatever order they stand."""

    def company() -> tuple[Updates, list[streamed.PPOUpdate]]:
        return [updates(IQN)[0], updates(DQN)[1]], [streamed.updates(epochs=2)[0]]

    (values, (ppo,)), (other_values, (other_ppo,)) = company(), company()
    stack = GroupUpdate([other_values[0], other_ppo, other_values[1]], branches=True)
    noise = torch.Generator().manual_seed(0)
    for _ in range(3):
        given: list[Any] = [transitions(noise), streamed.segments(noise), transitions(noise)]
        alone: list[Update[Any]] = [values[0], ppo, values[1]]
        expected = update_each(alone, given, [0.0] * 3)
        found = stack.update(given, [0.0] * 3)
        alike(expected, found)
    assert difference(values, other_values) < 1e-6
    assert streamed.difference([ppo], [other_ppo]) < 1e-5
