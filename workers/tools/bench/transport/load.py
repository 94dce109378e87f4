"""What the transport benchmarks move: segments of a chosen size in a ring of a chosen size, and the raw primitives.

Both sides of a comparison use the same two processes, the same ring, the same numpy calls; only the messages differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from protocol.config.run import PPO, PolicyConfig
from protocol.experience.layout import Layout, segment_layout
from protocol.experience.proof import ActorIdentity, proof_of
from protocol.spaces import Agent, Box, Discrete, World
from workers.policies.interface import Interface

RUN, POLICY, SECRET = "bench", "policy", "bench"
ACTOR = ActorIdentity(RUN, "actor", 1, proof_of(SECRET, RUN, "actor", 1))
_BATCH = 64
"""Segments that a learner trains on at a time where nothing else is said: one of each copy of an environment."""


@dataclass(frozen=True, slots=True)
class TransportLoad:
    """`segments` segments a message, each of 64 steps with observations of `floats` float32; `blocks` messages fit.

    `keys`: a folder of keys with which everything is encrypted.
    """

    floats: int
    segments: int
    blocks: int
    folder: str
    keys: str = ""

    @property
    def layout(self) -> Layout:
        """What PPO stores for an agent with such observations."""
        world = World(id="bench", agents=(self._agent,), episode_steps=1000)
        return segment_layout(world, world.places[0], PolicyConfig(algorithm=PPO(), segment_length=64))

    @property
    def interface(self) -> Interface:
        """What its policy sees and does."""
        return Interface.of(self._agent)

    @property
    def _agent(self) -> Agent:
        return Agent(name=POLICY, observation=Box(shape=(self.floats,)), action=Discrete(n=4))

    @property
    def slots(self) -> int:
        """Slots of the ring."""
        return self.segments * self.blocks

    @property
    def credits(self) -> int:
        """Messages that may be in flight."""
        return self.blocks - 2

    @property
    def batch(self) -> int:
        """Segments of the learner's batch: whole messages."""
        return max(1, _BATCH // self.segments) * self.segments

    @property
    def message_bytes(self) -> int:
        """Payload of one message."""
        return self.layout.segment_bytes * self.segments

    @property
    def ring(self) -> Path:
        """The ring's file."""
        return Path(self.folder) / f"rookery-{RUN}-{ACTOR.name}.1-{POLICY}.ring"

    def block(self, index: int) -> slice:
        """The slots of message `index`."""
        start = index % self.blocks * self.segments
        return slice(start, start + self.segments)

    def place(self, index: int) -> slice:
        """Where message `index` lies in the batch."""
        start = index * self.segments % self.batch
        return slice(start, start + self.segments)

    def to_json(self) -> str:
        """For another process's command line."""
        return TypeAdapter(dict[str, int | str]).dump_json(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> TransportLoad:
        """The inverse of `to_json`."""
        return TypeAdapter(cls).validate_json(text)


def fill(columns: Mapping[str, NDArray], slots: slice, value: int) -> None:
    """Writes every byte of `slots`."""
    for name, column in columns.items():
        column[slots].fill(-1 if name == "final_row" else value & 1)


def copy_out(columns: Mapping[str, NDArray], slots: slice, batch: Mapping[str, NDArray], place: slice) -> None:
    """Copies `slots` of the columns to `place` in the arrays of `batch`."""
    for name, target in batch.items():
        np.copyto(target[place], columns[name][slots])
