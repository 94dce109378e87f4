"""Two ranks of a policy, each in a thread: they wait for each other, join in, end together, and miss who is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from protocol.config.run import Run
from protocol.memory.shared_file import Counters
from protocol.messages.core import Route
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import COPIES, STREAM, run_of
from workers.learning.distributed.data_parallel_learner import DataParallelLearner
from workers.learning.distributed.process_group import ProcessGroup, RankLost
from workers.learning.policy_learner import LearnerContext
from workers.planning.policy_plan import plan_policies

SIZE = 2
RUN = run_of(STREAM, ranks=SIZE, publish_interval=2).model_copy(update={"actors": SIZE, "learner_timeout": 30.0})
MET = {f"learner-one-{rank}": 1 for rank in range(SIZE)}


class Bench:
    """A rank with its surroundings."""

    def __init__(self, group: ProcessGroup, folder: Path | None, run: Run = RUN) -> None:
        self.plan = plan_policies(run, scripted.WORLD)["one"]
        self.source, self.counters = scripted.Source(), Counters(None, *scripted.LearnerReport.names(["one"]))
        self.published: list[Version] = []
        published = self.published.append
        place = run, 1, torch.device("cpu"), self.counters, lambda _, __, version: published(version), folder
        self.member = DataParallelLearner(self.plan, 1.0, self.source, LearnerContext(*place), group=group, met=MET)

    def feed(self) -> None:
        """Announces a whole batch."""
        sender = scripted.acted(self.plan.config, 1, COPIES)
        for records in sender.finished:
            self.source.arrive(sender.ring, records)

    @property
    def parameters(self) -> torch.Tensor:
        """All of them."""
        return self.member.weights.parameters


def turns(member: DataParallelLearner) -> None:
    """Until it made an update."""
    end = time.monotonic() + 200
    while not member.step():
        assert time.monotonic() < end


class Pair:
    """Both ranks, which do everything at the same time."""

    def __init__(self, folder: Path, run: Run = RUN) -> None:
        self.pool, store = ThreadPoolExecutor(SIZE), dist.HashStore()
        groups = list(self.pool.map(lambda rank: ProcessGroup("one", store, rank, SIZE, patience=200), range(SIZE)))
        self.ranks = [Bench(group, None if group.rank else folder, run) for group in groups]
        self.each(lambda rank: rank.member.resume(None, Version(0, 5 * rank.member._group.rank)))

    def each(self, work: Callable[[Bench], Any]) -> list[Any]:
        """What `work` gives on each."""
        return list(self.pool.map(work, self.ranks))

    def until_trained(self) -> None:
        """Turns of each, until it made an update."""
        self.each(lambda rank: turns(rank.member))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two ranks that have just begun."""
    found = Pair(tmp_path)
    yield found
    for rank in found.ranks:
        rank.member.close()
    found.pool.shutdown()


def same(pair: Pair) -> bool:
    """Whether all ranks have the same weights."""
    return torch.equal(pair.ranks[0].parameters, pair.ranks[1].parameters)


def test_ranks_begin_with_the_weights_of_the_first_and_versions_beyond_all_of_theirs(pair: Pair) -> None:
    assert same(pair)
    assert [rank.published for rank in pair.ranks] == [[Version(1, 6)]] * SIZE


def test_an_update_begins_when_all_ranks_have_a_batch_and_counts_once(pair: Pair) -> None:
    first, second = pair.ranks
    before = first.parameters.clone()
    first.feed()
    for _ in range(5):
        assert pair.each(lambda rank: rank.member.step()) == [False, False]
    assert [rank.member.waits_for for rank in pair.ranks] == ["ranks", "data"]
    second.feed()
    pair.until_trained()
    assert same(pair)
    assert not torch.equal(first.parameters, before)
    assert [rank.member.update.train_steps for rank in pair.ranks] == [2, 2]
    assert [rank.published[-1].version for rank in pair.ranks] == [7, 7]
    assert [rank.counters["steps_made.one"] for rank in pair.ranks] == [2, 0]
    assert [rank.counters["trained.one"] for rank in pair.ranks] == [COPIES, COPIES]
    assert pair.ranks[0].member.progress == pair.ranks[1].member.progress == 2 * COPIES * 4 / RUN.steps


def test_a_rank_whose_actors_are_gone_joins_in_with_nothing(pair: Pair) -> None:
    first, second = pair.ranks
    second.member.attended = False
    first.feed()
    pair.until_trained()
    assert same(pair)
    assert [rank.member.update.train_steps for rank in pair.ranks] == [2, 2]
    assert [rank.counters["trained.one"] for rank in pair.ranks] == [COPIES, 0]


def test_ranks_thaw_in_the_same_update_also_the_one_that_joins_in_with_nothing(tmp_path: Path) -> None:
    freeze = {"path": "x", "freeze": {"only": "hidden", "steps": 20}}
    frozen = run_of(STREAM, ranks=SIZE, publish_interval=2, start=freeze)
    pair = Pair(tmp_path, frozen.model_copy(update={"actors": SIZE, "learner_timeout": 30.0}))
    pair.ranks[1].member.attended = False
    moved = []
    for _ in range(3):
        before = pair.ranks[0].member.policy.state_dict()["layer_0_weight"].clone()
        pair.ranks[0].feed()
        pair.until_trained()
        moved.append(not torch.equal(before, pair.ranks[0].member.policy.state_dict()["layer_0_weight"]))
        assert same(pair)
    assert moved == [False, True, True]
    for rank in pair.ranks:
        rank.member.close()
    pair.pool.shutdown()


def test_ranks_end_together_when_none_has_a_batch_any_more(pair: Pair, tmp_path: Path) -> None:
    pair.ranks[1].feed()
    assert pair.each(lambda rank: rank.member.finish()) == [True, True]
    assert same(pair)
    assert [rank.member.update.train_steps for rank in pair.ranks] == [2, 2]
    assert [path.name for path in (tmp_path / "checkpoints" / "one").iterdir()] == ["2"]


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_number_on_one_rank_is_refused_by_all(pair: Pair) -> None:
    first, second = pair.ranks
    before = first.parameters.clone()
    first.feed()
    second.feed()
    (arrival,) = second.source.queue
    arrival.ring.columns["reward"][:] = np.nan
    pair.until_trained()
    assert [rank.counters["rejected.one"] for rank in pair.ranks] == [COPIES, COPIES]
    assert same(pair)
    assert torch.equal(first.parameters, before)
    first.feed()
    second.feed()
    pair.until_trained()
    assert same(pair)
    assert [rank.member.update.train_steps for rank in pair.ranks] == [2, 2]


def test_a_rank_that_is_gone_is_missed_at_once_and_the_first_saves_what_it_has(pair: Pair, tmp_path: Path) -> None:
    for rank in pair.ranks:
        rank.feed()
    pair.until_trained()
    first, second = pair.ranks
    first.feed()
    second.member.close()
    with raises(RankLost, "rank_lost", policy="one"):
        turns(first.member)
    first.member.close()
    assert [path.name for path in (tmp_path / "checkpoints" / "one").iterdir()] == ["2"]


def test_a_rank_leaves_although_the_others_owe_it_an_answer(pair: Pair) -> None:
    first = pair.ranks[0]
    first.feed()
    assert not first.member.step()
    assert first.member._group.poll_ready
    pair.pool.submit(first.member.close).result(60)


def test_a_rank_whose_lease_ended_or_that_came_back_is_missed_and_the_first_saves_what_it_has(
    pair: Pair, tmp_path: Path
) -> None:
    def routes(incarnation: int, learner: str = "learner-one-1") -> list[Route]:
        ways: dict[str, Any] = {"experience": "e", "weights": "w", "acknowledgements": "k"}
        return [Route(policy="one", learner=learner, incarnation=incarnation, **ways)]

    for rank in pair.ranks:
        rank.feed()
    pair.until_trained()
    member = pair.ranks[0].member
    member.check_peers([])  # nobody was heard of so far
    member.check_peers(routes(1))
    for told in ([], routes(2)):
        with raises(RankLost, "rank_left", peer="learner-one-1", policy="one"):
            member.check_peers(told)
    member.close()
    assert [path.name for path in (tmp_path / "checkpoints" / "one").iterdir()] == ["2"]
