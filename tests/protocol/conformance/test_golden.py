"""The bytes of protocol/golden, in both directions: what this release says and what it understands.

Whoever writes a worker in another language checks it against the same files; protocol/README.md walks through them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.experience.layout import Field, Layout
from protocol.experience.ring_buffer import Ring
from protocol.experience.validation import read_columns, read_records
from protocol.messages.codec import decode, encode
from protocol.messages.core import Message
from protocol.weights.manifest import Entry, Manifest, Version
from protocol.weights.shared_snapshot import SharedSnapshot
from tests.protocol.golden_vectors import FOLDER, columns, flat_weights, vectors
from tests.protocol.strategies import CLASSES

GOLDEN: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MESSAGES = [name for name in GOLDEN if "frames" in GOLDEN[name]]
BY_TYPE = {cls.type: cls for cls in CLASSES}


def frames_of(name: str) -> list[bytes]:
    """The frames of a golden message."""
    return [bytes.fromhex(frame) for frame in GOLDEN[name]["frames"]]


def message_of(name: str) -> Message:
    """A golden message, made of its fields alone."""
    fields = dict(GOLDEN[name]["fields"])
    return BY_TYPE[fields.pop("type")].model_validate_json(json.dumps(fields))


def image_of(name: str) -> bytes:
    """The golden memory."""
    image = bytearray(GOLDEN[name]["size"])
    for at, piece in GOLDEN[name]["pieces"].items():
        image[int(at) : int(at) + len(piece) // 2] = bytes.fromhex(piece)
    return bytes(image)


def golden_layout() -> Layout:
    """The golden layout, made of its description alone."""
    plain = GOLDEN["layout"]["fields"]
    fields = (Field(name, dtype, tuple(shape), per) for name, dtype, shape, per in plain["fields"])
    return Layout(tuple(fields), plain["length"], plain["before"])


def test_every_message_has_a_golden_one() -> None:
    assert {GOLDEN[name]["fields"]["type"] for name in MESSAGES} == set(BY_TYPE)


def test_what_this_release_would_write_today_is_what_was_written() -> None:
    today = vectors()
    assert today.keys() == GOLDEN.keys()
    assert [name for name, written in GOLDEN.items() if today[name] != written] == []


@pytest.mark.parametrize("name", MESSAGES)
def test_Z4_golden_fields_become_golden_bytes_and_back(name: str) -> None:
    """Z4: header and raw buffers; every field is there, with its value, but those that are empty and not sent then."""
    frames = frames_of(name)
    message = message_of(name)
    assert encode(message) == frames[0]
    again, rest = decode(frames)
    assert again == message
    assert list(rest) == frames[1:]
    silent = {field for field in message.omitted if not getattr(message, field)}
    assert set(GOLDEN[name]["fields"]) == {"type", *type(message).model_fields} - silent


def test_golden_segments_are_taken_in_as_what_they_are() -> None:
    layout = golden_layout()
    for name in ("segments-inline", "segments-ring"):
        records = read_records(frames_of(name)[1], 1, layout)
        assert records.tobytes().hex() == GOLDEN["record"]["bytes"]
    found = read_columns(frames_of("segments-inline")[2:], 1, layout)
    for field, column in columns().items():
        assert np.array_equal(found[field], column)


def test_a_golden_layout_and_manifest_have_the_hash_of_their_text() -> None:
    layout, manifest = GOLDEN["layout"], GOLDEN["manifest"]
    for golden in (layout, manifest):
        assert json.loads(golden["text"]) == golden["fields"]
        assert hashlib.sha256(golden["text"].encode()).hexdigest()[:16] == golden["hash"]
    assert golden_layout().hash == layout["hash"]
    assert GOLDEN["segments-inline"]["fields"]["layout"] == layout["hash"]
    made = Manifest([Entry(e["name"], e["dtype"], tuple(e["shape"]), e["offset"]) for e in manifest["fields"]])
    assert (made.text, made.hash, made.nbytes) == (manifest["text"], manifest["hash"], len(frames_of("weights")[1]))


def test_a_golden_ring_is_attached_and_its_segment_whole(memory_dir: Path) -> None:
    path = memory_dir / "rookery-golden.ring"
    path.write_bytes(image_of("ring"))
    path.chmod(0o600)
    ring = Ring.attach(path, golden_layout())
    assert (ring.slots, ring.nonce, ring.checksums) == (2, GOLDEN["ring"]["fields"]["nonce"], True)
    record = ring.table[1:2].copy()
    assert (record["number"][0], record["stream"][0], record["sequence"][0], record["state"][0]) == (1, 3, 2, 2)
    assert ring.intact(record).all()
    for field, column in columns().items():
        assert np.array_equal(ring.columns[field][1:2], column)
    ring.columns["reward"][1, 0] = 7.0
    assert not ring.intact(record).any()  # its checksum speaks of what was there
    ring.remove()


def test_a_golden_mailbox_is_attached_and_its_weights_read(memory_dir: Path) -> None:
    path = memory_dir / "rookery-golden.weights"
    path.write_bytes(image_of("mailbox"))
    path.chmod(0o600)
    mailbox = SharedSnapshot.attach(path, GOLDEN["manifest"]["hash"], 192)
    out = np.empty(192, np.uint8)
    assert mailbox.read(out, 0) == Version(1, 5)
    assert np.array_equal(out, flat_weights())
    assert mailbox.nonce >> 1 == GOLDEN["beacon"]["fields"]["nonce"]
    mailbox.remove()
