"""Golden messages, spoilt: by field, by frame and by byte, or right by their form and hostile.

In flow: a seed. Out flow: an endless row of messages as frames, most of them wrong in one place or a few, some right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgpack
import numpy as np

from protocol.config.run import PolicyConfig
from protocol.experience.layout import Layout, segment_layout
from protocol.experience.ring_buffer import RECORD
from protocol.spaces import Agent, Box, Discrete, World
from tests.protocol.golden_vectors import LAYOUT, POLICY, messages

__all__ = ["GATE", "GATES", "Mutator"]

T = TypeVar("T")

_AGENT = Agent(name="gate", observation=Box(shape=(2,)), action=Discrete(n=2), action_mask=True)
GATES = World(id="gates", agents=(_AGENT,), episode_steps=10)
GATE: Layout = segment_layout(GATES, GATES.places[0], PolicyConfig(segment_length=2))
"""Of an agent like that of the golden messages, with a mask."""
_WHOLE = (0, 1, 2, -1, 127, 128, 255, 2**16, 2**31 - 1, 2**32, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
_TEXTS = ("", ".", "..", "/", "a/b", "\0", "a\0b", "rookery-\0", "x" * 129, "x" * 5000, "ä" * 200, "\u2028", "gem")
_NASTY: tuple[Any, ...] = (
    None,
    True,
    False,
    0.0,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    b"",
    b"\x00" * 16,
    [],
    {},
    [[]],
    {"a": {}},
    [None] * 50,
    {"": 0},
    {"x" * 200: 1.0},
    [["gem", 1, 1, float("nan")]],
    [["gem", 1, 1, 1.0]] * 20,
    msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1, 2),
    "/dev/shm/rookery-" + "y" * 300,
    "/dev/null",
    "/proc/self/mem",
    *_WHOLE,
    *_TEXTS,
)
_CODES = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 40, b"\xc1")
_COUNTER = f"produced.{POLICY}"
_LIES = (-1e12, 1e300, 2.0**63, 9e18, -0.0)
_RECORD_FIELDS = [name for name in RECORD.names or () if name != "reserved"]


class Mutator:
    """Spoils what `messages()` of the golden vectors gives; the same seed gives the same row."""

    def __init__(self, seed: int, ring: str = "") -> None:
        """`ring`: the memory that segments are said to lie in."""
        self._random = random.Random(seed)
        self._seeds = [
            (msgpack.unpackb(msgpack.packb({"type": m.type, **m.model_dump()})), frames)
            for m, frames in messages().values()
        ]
        for header, _ in self._seeds:
            if header.get("ring"):
                header["ring"] = ring
        self._ways: list[Callable[[dict[str, Any]], None]] = [
            self._replace,
            self._replace,
            self._nudge,
            self._nudge,
            self._drop,
            self._add,
            self._inside,
            self._borrow,
        ]

    def message(self) -> list[bytes]:
        """The next one."""
        rng = self._random
        if rng.random() < 0.05:
            return self._hostile()
        seed, frames = self._seeds[rng.randrange(len(self._seeds))]
        header = dict(seed)
        way = rng.random()
        if way < 0.6:
            self.spoil(header)
        made = [bytes(msgpack.packb(header)), *frames]
        if way > 0.5 and len(made) > 1:
            self._spoil_frames(made)
        if way > 0.8:
            made[0] = self.spoil_bytes(made[0])
        return made

    def _hostile(self) -> list[bytes]:
        """One that is right by its form, of a peer that lies or wants to harm."""
        rng = self._random
        if rng.random() < 0.4:
            header = self._seed("heartbeat")[0] | {rng.choice(("counters", "metrics")): {_COUNTER: rng.choice(_LIES)}}
            header["episodes"] = [[POLICY, rng.choice((1, 2**62)), rng.choice((1, 10**15)), rng.choice(_LIES), 2]]
            if rng.random() < 0.03:
                header["episodes"] = [["x" * 100, 1, 1, 0.5, 1]] * 19_000
            return [bytes(msgpack.packb(header))]
        header, frames = self._seed("segments")
        record = np.frombuffer(frames[0], RECORD).copy()
        columns = {one.name: frame for one, frame in zip(LAYOUT.fields, frames[1:], strict=True)}
        match rng.randrange(6):
            case 0:
                header["actor"] = rng.choice((header["actor"], "actor-1"))
                record["number"] = rng.choice((10**9, 2**62, 2**63 - 1))
            case 1:
                record["version_min"], record["version_max"] = rng.choice(((2**62, 2**62), (2, 1), (2**64 - 1, 0)))
                columns["version"] = np.full(len(columns["version"]) // 8, record["version_max"][0], "<u8").tobytes()
            case 2:
                columns["truncated"] = b"\1" * len(columns["truncated"])
                columns["final_row"] = b"\xff" * len(columns["final_row"])
            case 3:
                columns["action"] = np.full(len(columns["action"]) // 8, rng.choice((2, -1, 2**62)), "<i8").tobytes()
            case 4:
                header |= {"policy": "gate", "layout": GATE.hash}
                columns["action_mask"] = bytes(rng.choice(((1, 0, 0, 1, 1, 1), (0,) * 6, (0, 1, 0, 1, 0, 1))))
                columns = {field.name: columns[field.name] for field in GATE.fields}
            case _:
                columns["reward"] = np.full(len(columns["reward"]) // 4, rng.choice((3e38, -3e38)), "<f4").tobytes()
        return [bytes(msgpack.packb(header)), record.tobytes(), *columns.values()]

    def _seed(self, kind: str) -> tuple[dict[str, Any], Sequence[bytes]]:
        """A golden message of a type; of segments one with columns."""
        found = (one for one in self._seeds if one[0]["type"] == kind and one[0].get("inline", True))
        header, frames = next(found)
        return dict(header), frames

    def spoil(self, header: dict[str, Any]) -> None:
        """Changes one place of a map, or three."""
        for _ in range(1 if self._random.random() < 0.7 else 3):
            self._random.choice(self._ways)(header)

    def choose(self, one_of: Sequence[T]) -> T:
        """Any of them."""
        return self._random.choice(one_of)

    def noise(self, most: int = 200) -> bytes:
        """Noise."""
        return self._random.randbytes(self._random.randrange(most))

    def _replace(self, header: dict[str, Any]) -> None:
        if header:
            header[self._key(header)] = self._random.choice(_NASTY)

    def _nudge(self, header: dict[str, Any]) -> None:
        """A value of the right type, and often a valid one."""
        rng, key = self._random, self._key(header)
        value = header.get(key)
        if isinstance(value, bool):
            header[key] = not value
        elif isinstance(value, int):
            header[key] = min(2**64 - 1, max(0, value + rng.choice((-1, 1, 1 << rng.randrange(60)))))
        elif isinstance(value, float):
            header[key] = value * rng.choice((-1.0, 1e9, 1e-9))
        elif isinstance(value, str):
            at = rng.randrange(len(value) + 1)
            header[key] = value[:at] + rng.choice("aZ0_.-/\0é") + value[at + rng.randrange(2) :]

    def _drop(self, header: dict[str, Any]) -> None:
        header.pop(self._key(header), None)

    def _add(self, header: dict[str, Any]) -> None:
        header[self._random.choice(("mood", "inline", "retry", "", "type ", "__class__"))] = self._random.choice(_NASTY)

    def _inside(self, header: dict[str, Any]) -> None:
        """Changes something within a list or map of the header."""
        rng = self._random
        nested = [key for key, value in header.items() if isinstance(value, list | dict) and value]
        if not nested:
            return
        key = rng.choice(nested)
        value = header[key] = msgpack.unpackb(msgpack.packb(header[key]))
        while True:
            place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
            if not isinstance(value[place], list | dict) or not value[place] or rng.random() < 0.3:
                value[place] = rng.choice(_NASTY)
                return
            value = value[place]

    def _borrow(self, header: dict[str, Any]) -> None:
        other, _ = self._random.choice(self._seeds)
        key = self._key(other)
        header[key] = other[key]

    def _key(self, header: dict[str, Any]) -> str:
        return self._random.choice(list(header)) if header else "type"

    def _spoil_frames(self, frames: list[bytes]) -> None:
        rng = self._random
        which = rng.randrange(1, len(frames))
        match rng.randrange(7):
            case 0:
                del frames[which]
            case 1:
                frames.insert(which, self.noise())
            case 2:
                frames[which] = frames[which][: rng.randrange(len(frames[which]) + 1)]
            case 3:
                frames[which] += self.noise()
            case 4:
                frames[which] = self.spoil_bytes(frames[which])
            case _ if len(frames[1]) == RECORD.itemsize:
                record = np.frombuffer(frames[1], RECORD).copy()
                for _ in range(rng.randrange(1, 3)):
                    name = rng.choice(_RECORD_FIELDS)
                    most = 1 << 8 * record[name].itemsize
                    record[name] = rng.choice((0, 1, 2, 3, most - 1, most // 2, rng.randrange(most)))
                frames[1] = record.tobytes()
            case _:
                frames[which] = self.spoil_bytes(frames[which])

    def spoil_bytes(self, raw: bytes) -> bytes:
        """The same with a few bytes changed, more or less."""
        rng, spoilt = self._random, bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(spoilt) + 1)
            match rng.randrange(5):
                case 0:
                    spoilt[at : at + 1] = rng.randbytes(1)
                case 1:
                    del spoilt[at : at + rng.randrange(1, 9)]
                case 2:
                    spoilt[at:at] = rng.randbytes(rng.randrange(1, 9))
                case 3 if at < len(spoilt):
                    spoilt[at] ^= 1 << rng.randrange(8)
                case _:
                    spoilt[at:at] = rng.choice(_CODES)
        return bytes(spoilt)
