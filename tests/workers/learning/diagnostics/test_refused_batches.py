"""What an update refused is kept with where it came from; weights that are not finite go nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from protocol.config.run import IQN, PPO, PolicyConfig
from protocol.errors import TrainingFault
from protocol.experience.ring_buffer import RECORD
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import COPIES, REPLAY, STREAM, Bench, run_of
from workers.algorithms.common.batches import TransitionBatch
from workers.environments.base import AgentTimeStep
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.diagnostics.refused_batches import MOST_FILES, Origin, origin_fields
from workers.policies import checkpoint
from workers.runtime.seeds import seed_of

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


def bench_of(algorithm: PPO | IQN, folder: Path) -> Bench:
    """A member that begins."""
    bench = Bench(run_of(algorithm), folder)
    bench.member.resume(None, Version(0, 0))
    return bench


def opened(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
    """(tensors, facts, origins) of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        told = file.metadata()
    return tensors, json.loads(told["facts"]), json.loads(told["origins"])


@pytest.mark.usefixtures("unchecked")
def test_the_segment_at_fault_and_no_other_is_kept_with_its_origin_H1(tmp_path: Path) -> None:
    bench = bench_of(STREAM, tmp_path)
    sender = scripted.acted(bench.plan.config, 2, COPIES)
    sender.ring.columns["reward"][COPIES + 2, 1] = np.inf  # second segment of copy 2
    for records, actor in zip(sender.finished, ("actor-0", "actor-7"), strict=True):
        bench.source.arrive(sender.ring, records, actor=actor)
    while bench.member.step():
        pass
    assert bench.counters["rejected.one"] == COPIES
    assert bench.counters["trained.one"] == COPIES
    (path,) = (tmp_path / "refused").iterdir()
    assert path.name == "one-2.safetensors"
    tensors, facts, origins = opened(path)
    assert tensors["reward"].tolist() == [[24.0, np.inf, 26.0, 27.0]]
    assert tensors["observation"].shape == (1, 5, 2)
    assert origins == [
        {
            "actor": "actor-7",
            "incarnation": 1,
            "stream": 2,
            "stream_sequence": 1,
            "number": COPIES + 3,
            "oldest": [1, 1],
            "newest": [1, 1],
            "episode": 0,
            "row": None,
            "environment_seed": seed_of(0, "environment", "actor-7", 1),
            "agent": 0,
            "copy": 2,
            "place": 0,
        }
    ]
    assert facts["policy"] == "one"
    assert "loss" in facts["reason"]
    assert facts["train_step"] == 2
    assert facts["environment"]["copies"] == COPIES


@pytest.mark.usefixtures("unchecked")
def test_of_replayed_rows_the_segments_and_rows_at_fault_are_kept_H1(tmp_path: Path) -> None:
    bench = bench_of(REPLAY, tmp_path)
    sender = scripted.acted(bench.plan.config, 4, COPIES)
    sender.ring.columns["reward"][6, 3] = np.nan
    for records in sender.finished:
        bench.source.arrive(sender.ring, records)
    for _ in range(60):
        bench.member.step()
        if (tmp_path / "refused").exists():
            break
    path = min((tmp_path / "refused").iterdir())
    tensors, _, origins = opened(path)
    assert len(tensors["reward"]) == 1
    number = int(sender.ring.table["number"][6])
    assert [(one["number"], one["row"]) for one in origins] == [(number, 3)]


def played(config: PolicyConfig, all_present: bool) -> tuple[scripted.Sender, dict[int, list[int]]]:
    """A sender after episodes of every length, of which each observation is (copy, turns of that copy); when episodes
    of each copy began: before which of its turns."""
    rng, sender = np.random.default_rng(5), scripted.Sender(scripted.layout_of(config), COPIES, 40)
    chair = scripted.seat(sender, scripted.Performer(), COPIES)
    turns, began = np.zeros(COPIES, np.int64), {copy: list[int]() for copy in range(COPIES)}
    for _ in range(90):
        copies = np.arange(COPIES) if all_present else np.flatnonzero(rng.random(COPIES) < 0.7)
        if not len(copies):
            continue
        ended = (rng.random((2, len(copies))) < 0.2) & (turns[copies] > 0)
        ended[1] &= ~ended[0]
        cut = np.flatnonzero(ended[1])
        for copy in copies[ended.any(0)]:
            began[int(copy)].append(int(turns[copy]))
        seen = np.stack([copies, turns[copies]], 1).astype(np.float32)
        chair.act(
            AgentTimeStep(
                agent=0,
                observation=seen,
                reward=np.zeros(len(copies), np.float32),
                terminated=ended[0],
                truncated=ended[1],
                copies=None if all_present else copies,
                final_index=cut,
                final_observation=seen[cut] if len(cut) else None,
            ),
            scripted.never,
        )
        turns[copies] += 1
    return sender, began


def episode_of(began: dict[int, list[int]], observation: torch.Tensor) -> tuple[int, int]:
    """(copy, episode) that an observation is from."""
    copy, turn = (int(number) for number in observation)
    return copy, sum(first <= turn for first in began[copy])


@pytest.mark.parametrize("all_present", [True, False], ids=["together", "own pace"])
def test_a_trained_row_is_followed_back_to_its_actor_world_and_episode(tmp_path: Path, all_present: bool) -> None:
    """Whatever the rows before it were: of segments the first row's episode and the ends before a row say it."""
    bench = bench_of(STREAM, tmp_path)
    sender, began = played(bench.plan.config, all_present)
    for records in sender.finished:
        bench.source.arrive(sender.ring, records, actor="actor-3")
    stage, seen = bench.member._buffer, 0
    assert isinstance(stage, BatchAssembler)
    while stage.fill(Version(1, 1)):
        batch = stage.take_batch()
        for i, origin in enumerate(stage.provenance()):
            ends = (batch.terminated[i] | batch.truncated[i]).long().cumsum(0)
            where = origin_fields(origin, bench.plan, 0)
            assert where["environment_seed"] == seed_of(0, "environment", "actor-3", 1)
            for row in range(int(batch.valid[i])):
                assert origin.episode is not None
                episode = origin.episode + (int(ends[row - 1]) if row else 0)
                assert (where["copy"], episode) == episode_of(began, batch.observation[i, row])
                seen += 1
    assert seen > 200
    assert min(len(turns) for turns in began.values()) > 10


@pytest.mark.parametrize("all_present", [True, False], ids=["together", "own pace"])
def test_a_replayed_row_says_its_own_episode(tmp_path: Path, all_present: bool) -> None:
    """With history in front of its segment."""
    algorithm = IQN(batch_size=64, learning_starts=8, buffer_capacity=2_048, replay_ratio=100.0, frames=3)
    bench = bench_of(algorithm, tmp_path)
    sender, began = played(bench.plan.config, all_present)
    for records in sender.finished:
        bench.source.arrive(sender.ring, records)
    replay = bench.member._replay
    assert replay is not None
    replay.fill(everything=True)
    batch = replay.next_batch(Version(1, 1))
    assert batch is not None
    origins = replay.provenance()
    for origin, seen in zip(origins, batch.observation[:, -1], strict=True):
        assert (origin_fields(origin, bench.plan, 0)["copy"], origin.episode) == episode_of(began, seen)
    sender.ring.begin(slice(0, sender.ring.slots))  # the actor goes on
    assert {origin.episode for origin in replay.provenance()} == {None}


def test_an_episode_beyond_24_bits_begins_again_at_0() -> None:
    record = np.zeros(1, RECORD)
    record["episode"] = 255
    assert Origin.of(("a", 1), record[0]).episode == 2**24 - 1
    assert Origin.of(("a", 1), record[0], 3, 2).episode == 1


def test_of_rows_from_several_rings_each_has_its_own_origin(tmp_path: Path) -> None:
    """A batch holds them ring after ring, not as they were drawn."""
    bench = bench_of(REPLAY, tmp_path)
    senders = [scripted.acted(bench.plan.config, 4, COPIES) for _ in range(3)]
    for number, sender in enumerate(senders):
        sender.ring.columns["observation"].fill(number)
    for turn in range(4):
        for number, sender in enumerate(senders):
            bench.source.arrive(sender.ring, sender.finished[turn], actor=f"actor-{number}")
    replay = bench.member._replay
    assert replay is not None
    replay.fill(everything=True)
    batch = replay.next_batch(bench.member.version)
    assert isinstance(batch, TransitionBatch)
    expected = [f"actor-{int(number)}" for number in batch.observation[:, 0, 0]]
    assert [one.actor for one in replay.provenance()] == expected
    assert len(set(expected)) == 3


@pytest.mark.usefixtures("unchecked")
def test_a_bounded_number_of_files_is_kept(tmp_path: Path) -> None:
    bench = bench_of(STREAM, tmp_path)
    for _ in range(MOST_FILES + 2):
        for broken in (True, False):
            sender = scripted.acted(bench.plan.config, 1, COPIES)
            if broken:
                sender.ring.columns["reward"].fill(np.inf)
            for records in sender.finished:
                bench.source.arrive(sender.ring, records)
            assert bench.member.step()
    assert len(list((tmp_path / "refused").iterdir())) == MOST_FILES


@pytest.mark.parametrize("algorithm", [STREAM, REPLAY], ids=["stream", "replay"])
def test_weights_that_are_not_finite_are_neither_published_nor_saved_H1(tmp_path: Path, algorithm: PPO | IQN) -> None:
    bench = bench_of(algorithm, tmp_path)
    bench.feed(1)
    member = bench.member
    member.step()
    member.publish()
    bench.save()
    good = len(bench.published), checkpoint.list_steps(tmp_path / "checkpoints" / "one")
    next(iter(member.policy.parameters())).data.view(-1)[0] = float("nan")
    member.publish()
    member.update.optimizer.steps += 1
    bench.save()
    assert (len(bench.published), checkpoint.list_steps(tmp_path / "checkpoints" / "one")) == good
    assert bench.counters["health.weights_not_finite.one"] == 1
    member.publish()
    with raises(TrainingFault, "weights_not_finite", policy="one"):
        member.publish()
    assert len(bench.published) == good[0]


def test_statistics_that_are_not_finite_count_as_weights_H1() -> None:
    """A normaliser's buffer travels with them."""
    bench = Bench(run_of(PPO(minibatches=2, normalize_observation=True)))
    bench.member.resume(None, Version(0, 0))
    before = len(bench.published)
    buffer = next(b for b in bench.member.policy.buffers() if b.is_floating_point())
    buffer.fill_(float("inf"))
    bench.member.publish()
    assert len(bench.published) == before
