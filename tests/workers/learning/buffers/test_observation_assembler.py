"""What others saw is copied once into an auxiliary's next batch; what was overwritten meanwhile never gets there."""

from __future__ import annotations

import torch

from protocol.config.run import PPO
from protocol.experience.layout import Layout
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Discrete
from protocol.weights.manifest import Version
from tests.workers import scripted
from workers.learning.buffers.batch_assembler import ObservationAssembler
from workers.learning.buffers.segment_check import BufferContext
from workers.policies.interface import Interface

POLICY = scripted.config(PPO())
NOW = Version(1, 4)
HOST = torch.device("cpu")


def sighted(segments: int, device: torch.device = HOST) -> tuple[ObservationAssembler, scripted.Source, Counters]:
    """Sightings for batches of `segments`, of which there are those columns that an auxiliary is sent."""
    layout = scripted.layout_of(POLICY)
    fields = [field for field in layout.fields if field.name in ("observation", "final_observation", "final_row")]
    layout = Layout(tuple(fields), layout.length, layout.before)
    source, counters = scripted.Source(), scripted.counters()
    context = BufferContext("one", layout, source, counters, device)
    shown = Interface.of(Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=2))).observation_encoding
    return ObservationAssembler(context, shown, segments), source, counters


def test_batches_fill_from_what_has_arrived_and_their_memory_is_used_again(cuda: torch.device) -> None:
    """What a GPU still reads is not written over, on this machine's processor what was taken is that memory."""
    sightings, source, counters = sighted(2, cuda)
    sender = scripted.acted(POLICY, 3, copies=2)
    taken = []
    for finished in sender.finished:
        assert not sightings.fill(NOW)
        source.arrive(sender.ring, finished)
        assert sightings.fill(NOW)
        taken.append(sightings.take_batch())
    assert [batch.observation[:, 0].tolist() for batch in taken] == [
        [[0, 0], [1, 0]],
        [[0, 4], [1, 4]],
        [[0, 8], [1, 8]],
    ]
    assert {tensor.device.type for tensor in (taken[0].observation, taken[0].final_row, taken[0].valid)} == {"cuda"}
    assert taken[2].valid.tolist() == [4, 4]
    assert counters["received.one"] == 6
    assert [origin.number for origin in sightings.provenance()] == [5, 6]


def test_what_is_overwritten_before_it_is_copied_is_left_out_and_counted() -> None:
    sightings, source, counters = sighted(3)
    sender = scripted.acted(POLICY, 1, copies=4)
    source.arrive(sender.ring, sender.finished[0])
    sender.ring.begin(slice(1, 2))
    assert sightings.fill(NOW)
    assert sightings.take_batch().observation[:, 0, 0].tolist() == [0, 2, 3]
    assert (counters["torn.one"], counters["dropped.recycled.one"], counters["received.one"]) == (1, 1, 3)


def test_what_waits_is_in_a_cut_and_the_batch_is_the_same_as_without_one() -> None:
    sender = scripted.acted(POLICY, 2, copies=2)
    batches = []
    for cut in (False, True):
        sightings, source, _ = sighted(4)
        source.arrive(sender.ring, sender.finished[0])
        assert not sightings.fill(NOW)
        if cut:
            (whole, state), (sightings, source, _) = (sightings, sightings.get_state()), sighted(4)
            assert whole.count == 2
            sightings.set_state(state)
        source.arrive(sender.ring, sender.finished[1])
        assert sightings.fill(NOW)
        batches.append((sightings.take_batch().observation.clone(), sightings.provenance()))
    assert torch.equal(batches[0][0], batches[1][0])
    assert batches[0][1] == batches[1][1]
