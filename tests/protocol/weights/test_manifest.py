"""The manifest: what lies where, and what becomes of it on a wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.weights.manifest import ALIGNMENT, Entry, Manifest, Wire
from tests.faults import raises

DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1", "|b1")


def _manifest(parts: list[tuple[str, list[int]]]) -> Manifest:
    entries, end = [], 0
    for number, (dtype, shape) in enumerate(parts):
        entries.append(Entry(f"e{number}", dtype, tuple(shape), end))
        end = -(-(end + entries[-1].size) // ALIGNMENT) * ALIGNMENT
    return Manifest(entries)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=6), st.data())
def test_Z4_what_is_packed_is_unpacked_whatever_the_entries(
    parts: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    """Z4: exactly, except that float32 loses its lower half with bf16; padding comes back as zero."""
    manifest = _manifest(parts)
    flat = np.zeros(manifest.nbytes, np.uint8)
    seed = data.draw(st.integers(0, 2**32))
    for entry in manifest.entries:
        random = np.random.default_rng(seed + entry.offset).integers(0, 100, entry.size, np.uint8)
        flat[entry.offset : entry.offset + entry.size] = random
    assert np.array_equal(manifest.unpack(manifest.pack(flat, "float32"), "float32"), flat)
    packed = manifest.pack(flat, "bf16")
    assert len(packed) == manifest.packed_bytes("bf16")
    back = manifest.unpack(packed, "bf16")
    for entry in manifest.entries:
        sent, got = (each[entry.offset : entry.offset + entry.size] for each in (flat, back))
        if entry.dtype == "<f4":
            assert (abs(got.view("<u4").astype(np.int64) - sent.view("<u4")) <= 0x8000).all()
            sent[:] = 0
            got[:] = 0
    assert np.array_equal(back, flat)


@pytest.mark.parametrize(("wire", "nbytes"), [("float32", 128), ("bf16", 31)])
def test_bytes_of_another_size_are_refused(wire: Wire, nbytes: int) -> None:
    manifest = _manifest([("<f4", [3, 5]), ("|b1", [])])
    flat = np.zeros(manifest.nbytes, np.uint8)
    flat[:60].view("<f4")[:], flat[64] = 1.5, 1
    packed = manifest.pack(flat, wire)
    assert len(packed) == nbytes
    assert np.array_equal(manifest.unpack(packed, wire), flat)
    for size in (nbytes - 1, nbytes + 1):
        with raises(WireError, "weights_wrong_size", expected=nbytes):
            manifest.unpack(np.zeros(size, np.uint8), wire)
