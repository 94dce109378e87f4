"""The latest weights of one policy, for all processes of a node.

`double_buffer` keeps two copies and a flip, `snapshot` one. A flip alone does not protect a slow reader from a writer
that laps it: in both modes the reader compares the copy's sequence word before and after reading, and reads again.
One process writes; any number read, threads of the writer included.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import time
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError
from protocol.experience.ring_buffer import ORDERED_STORES
from protocol.memory import futex
from protocol.memory.shared_file import SharedFile
from protocol.weights.manifest import Version, pack, unpack

log = logging.getLogger(__name__)

_MAGIC = b"ROOKMAIL"
_PAGE = 4096
_WORDS = 8  # a cache line for each copy's words
_ACTIVE, _NBYTES, _COPIES, _HASH, _NONCE, _BELL = 1, 2, 3, 4, 5, 6  # words of the header
_SEQUENCE, _VERSION, _CHECKSUM = 0, 1, 2  # words of a copy


class SharedSnapshot:
    """`nbytes` bytes of weights with their version."""

    def __init__(self, memory: SharedFile | mmap.mmap) -> None:
        self._memory = memory
        buffer = _buffer(memory)
        words = np.ndarray((_PAGE // 8,), np.uint64, buffer=buffer)
        self._header = words
        self.nbytes = int(words[_NBYTES])
        copies = int(words[_COPIES])
        stride = _stride(self.nbytes)
        if len(buffer) < _PAGE + copies * stride or not 1 <= copies <= 2 or int(words[_ACTIVE]) >= copies:
            raise SharedMemoryError("mailbox_damaged", file=self.path)
        self._words = [words[16 + i * _WORDS : 16 + (i + 1) * _WORDS] for i in range(copies)]
        self._copies = [
            np.ndarray((self.nbytes,), np.uint8, buffer=buffer, offset=_PAGE + i * stride) for i in range(copies)
        ]
        self._head = words[:_BELL].copy()
        self._bell = int(words.ctypes.data) + 8 * _BELL
        self.retries = 0
        """Reads that met a copy that was empty, being written, or overwritten while it was read."""

    @classmethod
    def create(
        cls, path: Path | None, nbytes: int, manifest_hash: str, mode: Literal["double_buffer", "snapshot"]
    ) -> SharedSnapshot:
        """An empty mailbox (version 0 of incarnation 0: nothing published); `path` None: private to this process."""
        copies = 2 if mode == "double_buffer" else 1
        size = _PAGE + copies * _stride(nbytes)
        memory = mmap.mmap(-1, size) if path is None else SharedFile.create(path, size)
        buffer = _buffer(memory)
        words = np.ndarray((_PAGE // 8,), np.uint64, buffer=buffer)
        words[_NBYTES], words[_COPIES] = nbytes, copies
        words[_HASH] = int(manifest_hash[:16], 16)
        words[_NONCE] = secrets.randbits(64)
        buffer[: len(_MAGIC)] = _MAGIC  # last: a reader that sees the magic sees a whole mailbox
        return cls(memory)

    @classmethod
    def attach(cls, path: Path, manifest_hash: str, nbytes: int | None = None) -> SharedSnapshot:
        """An existing mailbox; SharedMemoryError if it is gone, damaged or holds weights of another network (or, where
        `nbytes` is given, of another size)."""
        memory = SharedFile.attach(path)
        try:
            if memory.size < _PAGE or bytes(memory.buffer[: len(_MAGIC)]) != _MAGIC:
                raise SharedMemoryError("not_a_mailbox", file=path)
            mailbox = cls(memory)
            other = int(mailbox._header[_HASH]) != int(manifest_hash[:16], 16)
            if other or mailbox.nbytes != (mailbox.nbytes if nbytes is None else nbytes):
                mailbox._forget()
                raise SharedMemoryError("mailbox_of_another_network", file=path)
            return mailbox
        except BaseException:
            memory.close()
            raise

    @property
    def path(self) -> Path | None:
        """The file, or None for private memory."""
        return self._memory.path if isinstance(self._memory, SharedFile) else None

    @property
    def nonce(self) -> int:
        """A random number that proves to be looking at the same memory."""
        return int(self._head[_NONCE])

    @property
    def whole(self) -> bool:
        """Whether nobody made the file shorter. Where somebody did nothing of it may be read, until the next `write`
        has mended it."""
        return not isinstance(self._memory, SharedFile) or not self._memory.short

    @property
    def version(self) -> Version:
        """The newest published version."""
        return unpack(int(self._words[int(self._header[_ACTIVE])][_VERSION]))

    def write(self, weights: NDArray[np.uint8], version: Version) -> None:
        """Publishes `weights` [nbytes]; ValueError unless `version` is newer than the last one and the size fits."""
        self._mend()
        if version <= self.version:
            raise ValueError(f"version {version} is not newer than {self.version}")
        word = pack(version)  # whatever can be refused is refused before the first store
        if weights.dtype != np.uint8 or weights.shape != (self.nbytes,):
            raise ValueError(f"weights of type {weights.dtype} and shape {weights.shape}, expected {self.nbytes} bytes")
        index = (int(self._header[_ACTIVE]) + 1) % len(self._copies)
        words, copy = self._words[index], self._copies[index]
        words[_SEQUENCE] |= np.uint64(1)
        copy[:] = weights
        if not ORDERED_STORES:
            words[_CHECKSUM] = zlib.crc32(copy.data)
        words[_VERSION] = word
        words[_SEQUENCE] += np.uint64(1)
        self._header[_ACTIVE] = index
        self._header[_BELL] += np.uint64(1)
        if futex.AVAILABLE:
            futex.wake(self._bell)

    def wait(self, have: Version, seconds: float) -> None:
        """Sleeps until weights newer than `have` are there, at most for `seconds`. Only where `futex.AVAILABLE`."""
        if not self.whole:
            return time.sleep(seconds)
        rung = int(self._header[_BELL]) & 0xFFFFFFFF  # before the look: what is published from now on changes it
        written = int(self._words[int(self._header[_ACTIVE])][_SEQUENCE]) & 1
        if written or self.version <= have:
            futex.sleep(self._bell, rung, seconds)

    def warm(self) -> None:
        """Starts the inactive copy from the active one, so that the next write finds its memory mapped and filled.

        Nothing to do with a single copy, or while nothing whole was published.
        """
        active = int(self._header[_ACTIVE])
        words = self._words[active]
        if len(self._copies) == 1 or not int(words[_SEQUENCE]) or int(words[_SEQUENCE]) & 1:
            return
        other = self._words[1 - active]
        other[_SEQUENCE] |= np.uint64(1)
        self._copies[1 - active][:] = self._copies[active]
        other[_CHECKSUM], other[_VERSION] = words[_CHECKSUM], words[_VERSION]
        other[_SEQUENCE] += np.uint64(1)

    def read(self, out: NDArray[np.uint8], seconds: float = 1.0) -> Version | None:
        """Copies the newest weights to `out` [nbytes]; None if none whole was found in `seconds` (0: one try)."""
        end = time.monotonic() + seconds
        while True:
            whole = self.whole
            index = int(self._header[_ACTIVE]) if whole else 0
            words = self._words[index]
            before = int(words[_SEQUENCE]) if whole else 0
            if before and not before & 1:
                version, checksum = int(words[_VERSION]), int(words[_CHECKSUM])
                out[:] = self._copies[index]
                same = int(words[_SEQUENCE]) == before
                if same and (ORDERED_STORES or zlib.crc32(out.data) == checksum):
                    return unpack(version)
            self.retries += 1
            if time.monotonic() >= end:
                return None
            time.sleep(0)

    def close(self) -> None:
        """Unmaps; the file stays for others."""
        self._forget()
        if isinstance(self._memory, SharedFile):
            self._memory.close()

    def remove(self) -> None:
        """Unmaps and unlinks unless another process still holds the file."""
        self._forget()
        if isinstance(self._memory, SharedFile):
            self._memory.remove()

    def _mend(self) -> None:
        """Gives the file its size back, if it was made shorter, as an empty mailbox: with copies that are being written
        before there is room for any, so that nobody takes zeros for weights."""
        if not isinstance(self._memory, SharedFile) or not self._memory.short:
            return
        log.warning("event=shared_memory_mended file=%s reason=made_shorter_by_a_process_of_this_user", self.path)
        words = np.zeros(_PAGE // 8, np.uint64)
        words[:_BELL] = self._head
        words[_ACTIVE] = 0
        for i in range(len(self._copies)):
            words[16 + i * _WORDS + _SEQUENCE] = secrets.randbits(48) | 1  # no reader has seen it before
        os.pwrite(self._memory.descriptor, words.tobytes(), 0)
        os.ftruncate(self._memory.descriptor, self._memory.size)

    def _forget(self) -> None:
        self._copies, self._words = [], []
        self._header = np.zeros(8, np.uint64)


def _buffer(memory: SharedFile | mmap.mmap) -> memoryview:
    return memory.buffer if isinstance(memory, SharedFile) else memoryview(memory)


def _stride(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
