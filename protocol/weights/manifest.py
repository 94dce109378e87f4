"""What lies where in flat weights, and the two forms in which they cross a wire.

In flow: the ordered entries of a policy. Out flows: their hash, by which both ends know that they mean the same
network, and the packed bytes: the flat ones as they are (`float32`), or without padding and with every float32 value
rounded to its upper sixteen bits (`bf16`).

Which weights they are: (incarnation, version), packed into one unsigned 64-bit word that compares in that order.
`version` counts a policy's publications and goes on across incarnations; `incarnation` grows when its learner restarts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import WireError

_BITS = 40
_MASK = (1 << _BITS) - 1


class Version(NamedTuple):
    """Which weights; tuples compare in order of age."""

    incarnation: int
    version: int


NOTHING = Version(0, 0)
"""Before the first publication."""


def pack(version: Version) -> int:
    """One word: incarnation in the upper 24 bits, version in the lower 40; ValueError if one does not fit."""
    if not (0 <= version.incarnation < 1 << 24 and 0 <= version.version <= _MASK):
        raise ValueError(f"{version} does not fit into 24 + 40 bits")
    return version.incarnation << _BITS | version.version


def unpack(word: int) -> Version:
    """The inverse of `pack`."""
    return Version(word >> _BITS, word & _MASK)


def lag(now: Version, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Publications between each packed version in `words` and `now`, of the same shape as `words`."""
    return now.version - (words & np.uint64(_MASK)).astype(np.int64)


Wire = Literal["float32", "bf16"]

ALIGNMENT = 64
"""Bytes: every entry begins at a multiple."""
_DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1", "|b1")
_CHUNK = 1 << 18
"""Values converted at a time, so that intermediate results stay in the cache."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter or buffer: where it lies in the flat bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Manifest:
    """The entries in the order they lie. `text` is their compact JSON, which is what the hash is of."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        plain = [{"name": e.name, "dtype": e.dtype, "shape": list(e.shape), "offset": e.offset} for e in entries]
        self.text = json.dumps(plain, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """The manifest whose `text` this is; WireError if it is none, or its entries overlap or are out of place."""
        fault = WireError("manifest_malformed")
        try:
            manifest = cls([Entry(e["name"], e["dtype"], tuple(e["shape"]), e["offset"]) for e in json.loads(text)])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise fault from None
        end = 0
        for entry in manifest.entries:
            plain = isinstance(entry.name, str) and entry.dtype in _DTYPES
            whole = all(type(n) is int and n >= 0 for n in (*entry.shape, entry.offset))
            if not plain or not whole or entry.offset % ALIGNMENT or entry.offset < end:
                raise fault
            end = entry.offset + entry.size
        if manifest.text != text:
            raise fault
        return manifest

    @cached_property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def nbytes(self) -> int:
        """Bytes of the flat weights, padding included."""
        return -(-(self.entries[-1].offset + self.entries[-1].size) // ALIGNMENT) * ALIGNMENT if self.entries else 0

    def packed_bytes(self, wire: Wire) -> int:
        """Bytes that `pack` makes."""
        if wire == "float32":
            return self.nbytes
        return sum(size for _, _, size in self._packed())

    def pack(self, flat: NDArray[np.uint8], wire: Wire) -> NDArray[np.uint8]:
        """What travels of `flat` [nbytes]; `float32` gives `flat` itself."""
        if wire == "float32":
            return flat
        out = np.empty(self.packed_bytes(wire), np.uint8)
        for entry, at, size in self._packed():
            source, target = flat[entry.offset : entry.offset + entry.size], out[at : at + size]
            if entry.dtype == "<f4":
                _narrow(source.view("<u4"), target.view("<u2"))
            else:
                target[:] = source
        return out

    def unpack(self, data: NDArray[np.uint8], wire: Wire) -> NDArray[np.uint8]:
        """The flat weights [nbytes] that `pack` made `data` of; WireError if the size is another."""
        if len(data) != self.packed_bytes(wire):
            raise WireError("weights_wrong_size", value=len(data), expected=self.packed_bytes(wire))
        if wire == "float32":
            return data
        flat = np.zeros(self.nbytes, np.uint8)
        for entry, at, size in self._packed():
            source, target = data[at : at + size], flat[entry.offset : entry.offset + entry.size]
            if entry.dtype == "<f4":
                np.left_shift(source.view("<u2"), 16, out=target.view("<u4"), dtype=np.uint32)
            else:
                target[:] = source
        return flat

    def _packed(self) -> Iterator[tuple[Entry, int, int]]:
        """Each entry with where it begins and how many bytes it takes in the form `bf16`."""
        at = 0
        for entry in self.entries:
            size = entry.size // 2 if entry.dtype == "<f4" else entry.size
            yield entry, at, size
            at += size


def _narrow(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Upper halves of float32 `bits` to `out`, rounded to nearest, ties to even; a NaN stays one."""
    for start in range(0, len(bits), _CHUNK):
        part = bits[start : start + _CHUNK]
        halves = (part + (((part >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
        nan = (part & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        if nan.any():
            halves[nan] = (part[nan] >> np.uint32(16)) | np.uint32(0x40)
        out[start : start + _CHUNK] = halves
