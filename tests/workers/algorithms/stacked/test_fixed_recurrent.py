"""A recurrent policy's steps in memory that never moves: one call of torch's LSTM or GRU, whatever ends where (K6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.workers.algorithms.stacked.test_stacked_ppo import B, T, U, difference, segments, updates
from tests.workers.policies.backends.test_cuda_recurrent import Asked
from workers.algorithms.common import run_capacity
from workers.algorithms.common.batches import SegmentBatch, update_each
from workers.algorithms.cuda_graphs.branches import Branches
from workers.algorithms.cuda_graphs.step_compiler import StepCompiler
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.policies.backends import cuda_recurrent
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.distributions import Heads
from workers.policies.networks.recurrent import Kind

STATE: dict[Kind, int] = {"gru": U, "lstm": 2 * U}
HOST = torch.device("cpu")


def ending(noise: torch.Generator, chance: float, state: int) -> SegmentBatch:
    """Whole segments, of which each row ends an episode with this chance: every other one is cut off."""
    ended = torch.rand(B, T, generator=noise) < chance
    truncated = ended & (torch.rand(B, T, generator=noise) < 0.5)
    final_row = torch.where(truncated, torch.arange(T), -1)
    given = segments(noise, 0, state)
    given.final_observation[final_row < 0] = float("nan")  # nobody wrote them
    return replace(given, terminated=ended & ~truncated, truncated=truncated, final_row=final_row)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The columns of each call."""
    made: list[int] = []
    before = cuda_recurrent.unroll

    def unroll(x: Any, recall: Any, weights: Any) -> Any:
        made.append(recall.runs)
        return before(x, recall, weights)

    monkeypatch.setattr(cuda_recurrent, "unroll", unroll)
    return made


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_updates_are_those_of_the_policy_alone_while_room_grows_and_when_there_is_none_K6(
    core: Kind, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_capacity, "_SPARE", 0)
    monkeypatch.setattr(run_capacity, "_SIZES", (2, 4))
    (alone, together), noise = ([updates(core=core)[0]] for _ in range(2)), torch.Generator().manual_seed(0)
    stack = StackedPPO(together)
    fixed, sizes = Branches([stack], GraphCache(HOST)), []
    for chance in (0.0, 0.3, 1.0, 0.1):
        given = [ending(noise, chance, STATE[core])]
        expected, found = update_each(alone, given, [0.0]), fixed.update(given, [0.0])
        assert found[0] == pytest.approx(expected[0], rel=1e-3, abs=1e-4)
        assert difference(alone, together) < 1e-5
        sizes.append(stack._room.size)  # type: ignore[union-attr] # there is one
    assert sizes == [2, 4, 0, 0]
    assert calls == [4, 4, 8, 8], "2 segments in each of 2 minibatches"


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_what_a_step_asks_of_a_device_does_not_depend_on_where_episodes_end_K6(core: Kind) -> None:
    """As a graph that was recorded with one batch is replayed with the next."""
    stack, noise = StackedPPO(updates(core=core)[:1]), torch.Generator().manual_seed(0)
    asked = []
    for chance in (0.3, 0.0, 0.3, 0.1):
        stack.load([ending(noise, chance, STATE[core])], [0.0])
        key = stack.select_minibatch(0)
        with Asked() as found:
            stack.step()
        asked.append((key, found.operations))
    assert len(asked[1][1]) > 100
    assert asked[1] == asked[2] == asked[3], "the first makes memory"


def test_stacks_of_several_and_what_is_compiled_unroll_row_by_row(calls: list[int]) -> None:
    noise = torch.Generator().manual_seed(0)
    ways: list[Callable[[], StackedPPO]] = [
        lambda: StackedPPO(updates(core="lstm")),
        lambda: StackedPPO(updates(core="lstm")[:1], StepCompiler(wanted=False)),
    ]
    for way in ways:
        stack = way()
        given = [segments(noise, 0, STATE["lstm"]) for _ in stack.updates]
        Branches([stack], GraphCache(HOST)).update(given, [0.0] * len(given))
    assert not calls


def test_room_is_the_policys_in_whatever_company_and_who_was_away_while_it_grew_records_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_capacity, "_SPARE", 0)
    member, noise = updates(core="lstm")[0], torch.Generator().manual_seed(0)
    first, second = StackedPPO([member]), StackedPPO([member])
    keys, sizes = [], []
    for stack, chance in ((first, 0.0), (first, 0.0), (second, 0.3), (first, 0.0), (first, 0.0)):
        stack.load([ending(noise, chance, STATE["lstm"])], [0.0])
        keys.append(stack.select_minibatch(0))
        sizes.append(member.room.size)
    assert sizes == [1.25, 1.25, 8, 8, 8]
    assert keys[0] == keys[1] != keys[3] == keys[4]


class Noted(GraphCache):
    """Notes what it runs, and what it is to forget of it."""

    def __init__(self) -> None:
        super().__init__(HOST)
        self.keys: list[Any] = []
        self.forgotten: list[Any] = []

    def run(self, key: Any, pieces: Any) -> None:
        self.keys.append(key)
        super().run(key, pieces)

    def forget(self, stale: Callable[[Any], bool]) -> None:
        self.forgotten.append({key for key in self.keys if stale(key)})


def test_a_branch_that_gets_more_room_gets_graphs_of_its_own_and_the_old_ones_are_forgotten() -> None:
    members = [*updates(Heads((3,)), "lstm")[:1], *updates(epochs=2)[1:2]]
    noted, noise = Noted(), torch.Generator().manual_seed(0)
    fixed = Branches([StackedPPO([member]) for member in members], noted)
    room_of = fixed.stacks[0]._room  # type: ignore[attr-defined] # FixedStack's
    for chance in (0.0, 0.0, 1.0):
        room_of.size = min(room_of.size or 2, 2)
        fixed.update([ending(noise, chance, STATE["lstm"]), segments(noise)], [0.0, 0.0])
    both, alone = ({key for key in noted.keys if len(key) == branches} for branches in (2, 1))
    assert len(both) == 2, "before and after"
    assert len(alone) == 1, "the second makes more steps"
    assert noted.forgotten == [set(), {noted.keys[0]}], "once nothing was there yet"
