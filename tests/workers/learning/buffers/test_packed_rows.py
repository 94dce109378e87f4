"""Rows of several leaves, packed side by side for an encoder: what batches of them hold is what was seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config.run import PolicyConfig
from protocol.experience.layout import segment_layout
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Dict, Discrete, MultiBinary, Text, World
from protocol.weights.manifest import Version, pack
from tests.workers import scripted
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.segment_check import BufferContext
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.interface import Interface

SEEN = Dict(
    spaces={
        "far": Box(shape=(), dtype="float64"),
        "flags": MultiBinary(shape=(5,)),
        "here": Discrete(n=3, start=-1),
        "image": Box(shape=(3, 3, 1), dtype="uint8"),
        "open": Box(shape=(3,), dtype="bool"),
        "said": Text(max_length=3),
        "speed": Box(shape=(3,)),
    }
)
WORLD = World(id="w", agents=(Agent(name="a", observation=SEEN, action=Discrete(n=2)),))
POLICY = PolicyConfig.model_validate({"network": {"encoder": {"image": "cnn"}}, "segment_length": 4})
INTERFACE = Interface.at(WORLD, WORLD.places[0], POLICY)
SHOWN = INTERFACE.observation_encoding


def acted(segments: int) -> scripted.Sender:
    """Whole segments with arbitrary observations; a picture's bytes are 255, four of which would be a float NaN."""
    sender, rng = scripted.Sender(segment_layout(WORLD, WORLD.places[0], POLICY), 1, segments), np.random.default_rng(0)
    columns = sender.ring.columns
    for name in ("action", "reward", "terminated", "truncated", "log_probability", "value"):
        columns[name].fill(0)
    for part in SHOWN.parts:
        column = columns[part.column]
        column[:] = 255 if part.path == "image" else rng.integers(0, 2, column.shape)
        if column.dtype.kind == "f":
            column += rng.standard_normal(column.shape).astype(column.dtype)
    columns["version"][:], columns["final_row"][:] = pack(Version(1, 1)), -1
    for _ in range(segments):
        sender.finish(sender.take(scripted.never), POLICY.segment_length, 0)
    return sender


def assembled(sender: scripted.Sender, segments: int) -> tuple[BatchAssembler, Counters]:
    """A batch of so many of its segments."""
    source, counters = scripted.Source(), scripted.counters()
    batch = BatchAssembler(BufferContext("one", sender.ring.layout, source, counters), INTERFACE, segments)
    for records in sender.finished:
        source.arrive(sender.ring, records)
    batch.fill(Version(1, 4))
    return batch, counters


def leaves_of(packed: torch.Tensor) -> dict[str, NDArray[Any]]:
    """Each leaf of rows [..., bytes], as an encoder is given it."""
    split = RowSplitter(SHOWN).split(packed.flatten(0, -2))
    return {path: leaf.numpy() for path, leaf in split.items()}


def test_leaves_of_a_batch_have_the_dtypes_shapes_and_values_that_were_seen() -> None:
    sender = acted(3)
    found = leaves_of(assembled(sender, 3)[0].take_batch().observation)
    assert {*found} == {*SEEN.spaces}
    for part in SHOWN.parts:
        column = sender.ring.columns[part.column]
        assert (found[part.path].dtype, found[part.path].shape[1:]) == (column.dtype, column.shape[2:])
        np.testing.assert_array_equal(found[part.path], column.reshape(-1, *column.shape[2:]))


def test_a_nan_is_packed_bit_for_bit() -> None:
    strange = np.array([0x7FC00001, 0xFFC12345, 0x7F800000], np.uint32).view(np.float32)  # two NaNs, infinity
    rows: dict[str, NDArray[Any]] = {
        part.column: np.ones((2, *part.space.shape), part.space.dtype) for part in SHOWN.parts
    }
    rows["observation.speed"][:] = strange
    found = leaves_of(torch.from_numpy(SHOWN.encode(rows.__getitem__, (2,))))
    assert found["speed"].tobytes() == strange.tobytes() * 2
    assert found["far"].tolist() == [1, 1]


def test_a_segment_with_a_nan_in_one_leaf_is_refused_and_the_others_are_trained_on() -> None:
    for leaf in ("speed", "far"):
        sender = acted(3)
        sender.ring.columns[f"observation.{leaf}"][1, 2] = np.nan
        batch, counters = assembled(sender, 2)
        assert (counters["rejected.one"], batch.full) == (1, True), leaf
        whole = sender.ring.columns["observation.speed"][[0, 2]]
        np.testing.assert_array_equal(leaves_of(batch.take_batch().observation)["speed"], whole.reshape(-1, 3))
