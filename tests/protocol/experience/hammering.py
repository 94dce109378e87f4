"""The processes that hammer on a ring: one that writes without end, others that read for a while.

python -m tests.protocol.experience.hammering RING
python -m tests.protocol.experience.hammering RING SECONDS SEGMENTS OVERTAKINGS
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path

import numpy as np

from protocol.experience.layout import Field, Layout
from protocol.experience.ring_buffer import FINISHED, Ring

WIDE = Layout((Field("words", "<u8", (64,)), Field("crc", "<u4", (), "slot")), length=63)
"""32 KiB a slot, and a CRC of it that the writer made before it wrote."""
_PATIENCE = 100.0
"""Seconds more that a reader may take on a loaded machine to see enough."""


def write_for_ever(ring: Ring) -> None:
    """Blocks of two segments, round and round."""
    number, words, crc = 1, ring.columns["words"], ring.columns["crc"]
    body = np.arange(words[0].size, dtype=np.uint64).reshape(words[0].shape)
    while True:
        for at in range(0, ring.slots, 2):
            ring.begin(slice(at, at + 2))
            for slot in (at, at + 1):
                content = body * np.uint64(number + slot - at)
                crc[slot] = zlib.crc32(content.data)
                words[slot] = content
            ring.finish(slice(at, at + 2), [number, number + 1], WIDE.length, 0)
            number += 2


def read(ring: Ring, seconds: float, segments: int, overtakings: int) -> None:
    """Copies whatever is finished, for so long, until it has seen enough of it, and says what became of it."""
    accepted = overtaken = torn = 0
    first = last = 0
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end or (
        now < end + _PATIENCE and (min(accepted, last - first) <= segments or overtaken < overtakings)
    ):
        for slot in range(ring.slots):
            with ring.reading():
                record = ring.table[slot : slot + 1].copy()
                if int(record["sequence"][0]) % 2 or record["state"][0] != FINISHED:
                    continue
                copy, crc = ring.columns["words"][slot].copy(), int(ring.columns["crc"][slot])
                intact = bool(ring.intact(record)[0])
            last = int(record["number"][0])
            first = first or last
            accepted += intact
            overtaken += not intact
            torn += intact and (zlib.crc32(copy.data) != crc or int(copy.reshape(-1)[1]) != last)
    found = {"accepted": accepted, "overtaken": overtaken, "torn": torn, "written": last - first}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Arguments: the ring's file, and for a reader how long and until it has seen how much."""
    ring = Ring.attach(Path(sys.argv[1]), WIDE)
    if len(sys.argv) > 2:
        read(ring, float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        write_for_ever(ring)
