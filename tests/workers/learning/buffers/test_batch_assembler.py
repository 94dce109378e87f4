"""The stage copies each announced segment once into the next batch; what was overwritten meanwhile never gets there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from protocol.config.run import PPO, PolicyConfig
from protocol.experience.layout import segment_layout
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Discrete, World
from protocol.weights.manifest import Version, pack
from tests.workers import scripted
from workers.learning.buffers import batch_assembler as stages
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.device_transfer import DeviceTransfer
from workers.learning.buffers.segment_check import BufferContext
from workers.policies.interface import Interface

POLICY = scripted.config(PPO())
NOW = Version(1, 4)


def staged(segments: int, max_lag: int | None = None) -> tuple[BatchAssembler, scripted.Source, Counters]:
    """A stage for batches of `segments`."""
    source, counters = scripted.Source(), scripted.counters()
    context = BufferContext("one", scripted.layout_of(POLICY), source, counters)
    return BatchAssembler(context, scripted.Performer().interface, segments, max_lag), source, counters


def test_a_batch_fills_from_partial_announcements_as_a_copy_and_carries_the_rest_over_B17() -> None:
    stage, source, counters = staged(3)
    sender = scripted.acted(POLICY, 2, copies=2)
    source.arrive(sender.ring, sender.finished[0])
    assert not stage.fill(NOW)
    assert (stage.count, counters["held.one"], source.settled) == (2, 2, [(2, 2)])
    source.arrive(sender.ring, sender.finished[1])
    assert stage.fill(NOW)
    assert source.settled[-1] == (3, 1)
    assert len(source.queue[0].records) == 1
    batch = stage.take_batch()
    sender.ring.columns["reward"].fill(99)
    np.testing.assert_array_equal(batch.observation[:, 0], [[0, 0], [1, 0], [0, 4]])
    assert batch.observation.shape == (3, 5, 2)
    assert batch.reward.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13], [4, 5, 6, 7]]
    assert batch.valid.tolist() == [4, 4, 4]
    assert not stage.fill(NOW)
    assert (source.settled[-1], len(source.queue), counters["received.one"]) == ((4, 1), 0, 4)


def test_true_last_observations_lie_where_their_segments_and_entries_are() -> None:
    """Whatever lay there before, and in whichever order segments are announced."""
    stage, source, _ = staged(4)
    sender = scripted.acted(POLICY, 2, copies=2)
    columns = sender.ring.columns
    noise = np.random.default_rng(0).standard_normal(columns["final_observation"].shape)
    columns["final_observation"][:], columns["final_row"][:] = noise, -1
    for number, records in enumerate(sender.finished):
        columns["final_row"][records["slot"][number], [1, 3]] = [0, 2]
        source.arrive(sender.ring, records[::-1])
    assert stage.fill(NOW)
    batch = stage.take_batch()
    places = [[1, 1], [1, 3], [2, 1], [2, 3]]
    assert (batch.final_row >= 0).nonzero().tolist() == places
    slots = np.concatenate([records["slot"][::-1] for records in sender.finished])
    for segment, entry in places:
        expected = columns["final_observation"][slots[segment], entry]
        np.testing.assert_array_equal(batch.final_observation[segment, entry], expected)


def test_a_recycled_slot_is_dropped_and_counted_and_the_others_close_the_gap_B13() -> None:
    stage, source, counters = staged(3)
    sender = scripted.acted(POLICY, 1, copies=4)
    source.arrive(sender.ring, sender.finished[0])
    sender.ring.begin(slice(1, 2))
    sender.ring.columns["reward"][1] = np.nan
    assert stage.fill(NOW)
    batch = stage.take_batch()
    assert torch.isfinite(batch.reward).all()
    assert batch.observation[:, 0, 0].tolist() == [0, 2, 3]
    assert (counters["torn.one"], counters["dropped.recycled.one"], counters["received.one"]) == (1, 1, 3)
    assert sum(count for _, count in source.settled) == 4


def test_scattered_slots_are_copied_to_their_own_places() -> None:
    stage, source, _ = staged(2)
    sender = scripted.acted(POLICY, 1, copies=4)
    source.arrive(sender.ring, sender.finished[0][[3, 1]])
    assert stage.fill(NOW)
    assert stage.take_batch().observation[:, 0, 0].tolist() == [3, 1]


def test_pool_slots_are_given_back_and_the_actors_own_are_not() -> None:
    stage, source, _ = staged(4)
    sender = scripted.acted(POLICY, 2, copies=2)
    source.arrive(sender.ring, sender.finished[0], owned=True)
    source.arrive(sender.ring, sender.finished[1], owned=False)
    assert stage.fill(NOW)
    assert source.given_back == [0, 1]


def test_lag_is_counted_for_every_row_but_those_of_a_short_segment_that_are_not_valid_C12() -> None:
    stage, source, counters = staged(1)
    sender = scripted.acted(POLICY, 1)
    records = sender.finished[0].copy()
    records["valid"] = 3
    source.arrive(sender.ring, records)
    stage.fill(Version(2, 6))
    assert stage.take_batch().valid.tolist() == [3]
    assert (counters["lag_rows.one"], counters["rows_received.one"]) == (3, 3)
    assert (counters["lag_sum.one"], counters["lag_max.one"]) == (15, 5)


def of_versions(*pairs: tuple[int, int]) -> scripted.Sender:
    """A segment for each (oldest, newest) version of its rows."""
    sender = scripted.acted(POLICY, 1, copies=len(pairs))
    for records in (sender.ring.table, sender.finished[0]):
        for name, versions in zip(("version_min", "version_max"), zip(*pairs, strict=True), strict=True):
            records[name][: len(pairs)] = [pack(Version(1, version)) for version in versions]
    return sender


def test_segments_beyond_max_lag_are_dropped_counted_and_settled_but_none_of_the_newest_weights_in_use() -> None:
    stage, source, counters = staged(3, 2)
    sender = of_versions((7, 8), (3, 9), (6, 7), (8, 8), (9, 9), (7, 9))
    source.arrive(sender.ring, sender.finished[0])
    assert stage.fill(Version(1, 10))
    assert stage.take_batch().observation[:, 0, 0].tolist() == [1, 3, 4]
    assert (counters["dropped.stale.one"], counters["received.one"], counters["torn.one"]) == (2, 3, 0)
    assert sum(count for _, count in source.settled) == 5


def test_where_all_weights_in_use_are_old_the_newest_of_them_are_learnt_from() -> None:
    """Liveness: a learner far ahead of all actors would otherwise wait for ever."""
    stage, source, counters = staged(2, 0)
    sender = of_versions((1, 1), (4, 4), (2, 3), (4, 4))
    for record in range(4):  # what waits behind is known
        source.arrive(sender.ring, sender.finished[0][record : record + 1])
    assert stage.fill(Version(1, 100))
    assert stage.take_batch().observation[:, 0, 0].tolist() == [1, 3]
    assert counters["dropped.stale.one"] == 2
    late = of_versions((3, 3), (4, 4))
    source.arrive(late.ring, late.finished[0][:1])
    assert not stage.fill(Version(1, 101))
    assert counters["dropped.stale.one"] == 3, "newer ones were seen before"


class Telling(DeviceTransfer):
    """One that tells what was asked of it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.asked: list[str] = []

    def send(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As it does."""
        self.asked.append("send")
        return super().send(tensors)

    def wait(self) -> None:
        """As it does."""
        self.asked.append("rest")
        super().wait()


def test_where_a_device_computes_beside_the_host_the_next_batch_is_made_and_sent_meanwhile(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "DeviceTransfer", Telling)
    source, counters = scripted.Source(), scripted.counters()
    context = BufferContext("one", scripted.layout_of(POLICY), source, counters, cuda)
    stage = BatchAssembler(context, scripted.Performer().interface, 2)
    sender = scripted.acted(POLICY, 3, copies=2)
    asked = stage._carrier.asked  # type: ignore[attr-defined] # Telling's
    source.arrive(sender.ring, sender.finished[0])
    assert stage.fill(NOW)
    first, origins = stage.take_batch(), stage.provenance()
    asked.clear()
    source.arrive(sender.ring, sender.finished[1])
    source.queue[-1] = replace(source.queue[-1], actor="another")
    stage.prepare(NOW)
    stage.prepare(NOW)
    assert asked == ["rest", "send"], "written once what was there had left, and sent once"
    assert first.observation[:, 0, 1].tolist() == [0, 0]
    assert stage.provenance() == origins, "that of the batch that is trained on"
    source.arrive(sender.ring, sender.finished[2])
    assert stage.fill(NOW), "full as it is"
    second = stage.take_batch()
    assert second.reward.tolist() == [[4, 5, 6, 7], [14, 15, 16, 17]]
    assert {origin.actor for origin in stage.provenance()} == {"another"} != {origin.actor for origin in origins}
    assert stage.fill(NOW)
    assert stage.take_batch().reward.tolist() == [[8, 9, 10, 11], [18, 19, 20, 21]]
    assert counters["received.one"] == 6


def test_where_an_update_reads_the_memory_that_fills_up_nothing_is_made_meanwhile() -> None:
    stage, source, _ = staged(2)
    sender = scripted.acted(POLICY, 2, copies=2)
    source.arrive(sender.ring, sender.finished[0])
    assert stage.fill(NOW)
    batch = stage.take_batch()
    source.arrive(sender.ring, sender.finished[1])
    stage.prepare(NOW)
    assert batch.reward.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert len(source.queue) == 1


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_stacks_of_four_take_little_more_memory_than_their_single_frames(name: str) -> None:
    """A slot of the ring, what crosses the wire with it, and a batch."""
    pixels = Agent(name="a", observation=Box(shape=(84, 84, 1), dtype="uint8"), action=Discrete(n=4))
    world = World(id="w", agents=(pixels,), episode_steps=10_000)
    place = world.places[0]

    def sizes(frames: int) -> tuple[int, int]:
        config = PolicyConfig.model_validate({"algorithm": {"name": name, "frames": frames}})
        layout = segment_layout(world, place, config)
        context = BufferContext("one", layout, scripted.Source(), scripted.counters())
        batch = BatchAssembler(context, Interface.at(world, place, config), 2).empty()
        columns = [column for one in fields(batch) if (column := getattr(batch, one.name)) is not None]
        memories = {column.untyped_storage().data_ptr(): column.untyped_storage().nbytes() for column in columns}
        return layout.segment_bytes, sum(memories.values())

    for alone, stacked in zip(sizes(1), sizes(4), strict=True):
        assert alone < stacked <= 1.1 * alone
