"""Steps in memory that never moves, as CUDA graphs ask: what each policy would have become by its update alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from protocol.errors import TrainingFault
from tests.workers.algorithms.stacked.test_stacked_ppo import B, K, T, U, alike, difference, segments, updates
from workers.algorithms.common.batches import concatenate, update_each
from workers.algorithms.cuda_graphs.branches import Branches
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.distributions import Heads
from workers.policies.networks.recurrent import Kind

HOST = torch.device("cpu")
Way = Callable[[list[PPOUpdate]], Branches]


def stacked(members: list[PPOUpdate]) -> Branches:
    """All as one."""
    return Branches([StackedPPO(members)], GraphCache(HOST))


def loose(members: list[PPOUpdate]) -> Branches:
    """All as one, where nothing is recorded."""
    return Branches([StackedPPO(members, fixed=False)], GraphCache(HOST))


def branches(members: list[PPOUpdate]) -> Branches:
    """Side by side."""
    return Branches([StackedPPO([member]) for member in members], GraphCache(HOST))


@pytest.mark.parametrize("rounds", [4, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("way", [stacked, branches])
@pytest.mark.parametrize(
    ("heads", "core", "algorithm"),
    [
        (Heads((3,)), None, {"epochs": 2, "value_clip": 0.2, "minibatches": 3}),
        (Heads((3,), 2), None, {"normalize_return": False}),
        (Heads((3,)), "lstm", {}),
        (Heads((3,)), "gru", {}),
    ],
    ids=["choice", "amounts", "lstm", "gru"],
)
def test_fixed_steps_make_of_policies_what_they_would_be_alone(
    rounds: int, way: Way, heads: Heads, core: Kind | None, algorithm: dict[str, object]
) -> None:
    alone, together = updates(heads, core, **algorithm), updates(heads, core, **algorithm)
    fixed, noise = way(together), torch.Generator().manual_seed(0)
    state = {None: 0, "gru": U, "lstm": 2 * U}[core]
    for number in range(rounds):
        given = [segments(noise, heads.continuous, state) for _ in range(K)]
        for one in given:  # what nobody wrote may be anything
            one.final_observation[one.final_row < 0] = float("nan")
        progress = [number / rounds * (member + 1) / K for member in range(K)]
        expected, found = update_each(alone, given, progress), fixed.update(given, progress)
    assert difference(alone, together) < 1e-5
    alike(expected, found)


def test_branches_may_differ_in_shape_steps_and_batches() -> None:
    def company() -> list[PPOUpdate]:
        kinds: list[tuple[Heads, Kind | None, dict[str, object]]] = [
            (Heads((3,)), None, {}),
            (Heads((3,)), "gru", {"epochs": 2}),
            (Heads((3,), 1), None, {"minibatches": 4, "clip": 0.1}),
        ]
        return [updates(heads, core, **algorithm)[i] for i, (heads, core, algorithm) in enumerate(kinds)]

    alone, together = company(), company()
    fixed, noise = branches(together), torch.Generator().manual_seed(0)
    for _ in range(3):
        given = [segments(noise), segments(noise, 0, U), segments(noise, 1)]
        expected, found = update_each(alone, given, [0.0] * K), fixed.update(given, [0.0] * K)
    alike(expected, found)
    assert [update.train_steps for update in together] == [6, 12, 12]
    assert difference(alone, together) < 1e-5


@pytest.mark.parametrize("way", [loose, stacked, branches])
def test_who_fails_stops_where_it_would_alone_and_the_others_go_on(way: Way) -> None:
    alone, together = updates(epochs=2), updates(epochs=2)
    noise = torch.Generator().manual_seed(0)
    given = [segments(noise) for _ in range(K)]
    given[1].reward[0, 0] = float("nan")
    update_each(alone, given, [0.0] * K)
    found = way(together).update(given, [0.0] * K)
    assert isinstance(found[1], TrainingFault)
    assert isinstance(found[0], dict)
    assert isinstance(found[2], dict)
    assert difference(alone, together) < 1e-6


@pytest.mark.parametrize("way", [loose, stacked, branches])
def test_batches_with_short_segments_are_trained_on_one_by_one_and_others_after_them_are_not(way: Way) -> None:
    alone, together = updates(), updates()
    fixed, noise = way(together), torch.Generator().manual_seed(0)
    for valid in ([T, 1, T, 2], [T] * B):
        given = [segments(noise) for _ in range(K)]
        given[0] = replace(given[0], valid=torch.tensor(valid))
        update_each(alone, given, [0.0] * K)
        fixed.update(given, [0.0] * K)
        assert difference(alone, together) <= (0 if way is loose and 1 in valid else 1e-6)


def test_another_size_of_batch_gets_memory_of_its_own() -> None:
    alone, together = updates(), updates()
    fixed, noise = branches(together), torch.Generator().manual_seed(0)
    for half in (False, True, False):
        given = [segments(noise) for _ in range(K)]
        if half:
            given[0] = concatenate([given[0]], lambda columns: columns[0][: B // 2])
        update_each(alone, given, [0.0] * K)
        fixed.update(given, [0.0] * K)
    assert difference(alone, together) < 1e-6


def test_what_is_done_meanwhile_is_done_once_all_is_asked_of_the_device_and_before_it_is_waited_for() -> None:
    together, noise, told = updates(), torch.Generator().manual_seed(0), []
    fixed = branches(together)
    fixed.update([segments(noise) for _ in range(K)], [0.0] * K, lambda: told.append(together[0].train_steps))
    assert told == [0], "the step count comes back with the end"
    assert together[0].train_steps == 2


def test_a_rank_of_several_makes_its_updates_with_the_others() -> None:
    """Its steps are nothing that this process could record alone."""

    class Twins:
        """Two ranks with the same."""

        size, rank, asked = 2, 0, 0

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            self.asked += 1
            return 2 * x

        def gather(self, x: torch.Tensor) -> torch.Tensor:
            self.asked += 1
            return torch.stack([x, x])

    member, twins = updates()[0], Twins()
    member.ranks = twins
    (outcome,) = GroupUpdate([member], branches=True).update([segments(torch.Generator().manual_seed(0))], [0.0])
    assert isinstance(outcome, dict)
    assert twins.asked
