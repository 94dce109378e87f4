"""The latest weights of one policy, for all processes of a node.

`double_buffer` keeps two copies and a flip, `snapshot` one. A flip alone does not protect a slow reader from a writer
that laps it: in both modes the reader compares the copy's sequence word before and after reading, and reads again.
"""

from __future__ import annotations

import secrets
import time
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError
from protocol.memory import SharedFile
from protocol.ring import ORDERED_STORES
from protocol.version import Version, pack, unpack

__all__ = ["Mailbox"]

_MAGIC = b"ROOKMAIL"
_PAGE = 4096
_WORDS = 8  # a cache line for each copy's words
_ACTIVE, _NBYTES, _COPIES, _HASH, _NONCE = 1, 2, 3, 4, 5  # words of the header
_SEQUENCE, _VERSION, _CHECKSUM = 0, 1, 2  # words of a copy


class Mailbox:
    """`nbytes` bytes of weights with their version."""

    def __init__(self, memory: SharedFile) -> None:
        self._memory = memory
        words = np.ndarray((_PAGE // 8,), np.uint64, buffer=memory.buffer)
        self._header = words
        self.nbytes = int(words[_NBYTES])
        copies = int(words[_COPIES])
        stride = _stride(self.nbytes)
        if memory.size < _PAGE + copies * stride or not 1 <= copies <= 2 or int(words[_ACTIVE]) >= copies:
            raise SharedMemoryError(f"{memory.path} is damaged; remove it with `rookery clean`")
        self._words = [words[16 + i * _WORDS : 16 + (i + 1) * _WORDS] for i in range(copies)]
        self._copies = [
            np.ndarray((self.nbytes,), np.uint8, buffer=memory.buffer, offset=_PAGE + i * stride) for i in range(copies)
        ]
        self.retries = 0

    @classmethod
    def create(cls, path: Path, nbytes: int, manifest_hash: str, mode: Literal["double_buffer", "snapshot"]) -> Mailbox:
        """An empty mailbox (version 0 of incarnation 0: nothing published)."""
        copies = 2 if mode == "double_buffer" else 1
        memory = SharedFile.create(path, _PAGE + copies * _stride(nbytes))
        words = np.ndarray((_PAGE // 8,), np.uint64, buffer=memory.buffer)
        words[_NBYTES], words[_COPIES] = nbytes, copies
        words[_HASH] = int(manifest_hash[:16], 16)
        words[_NONCE] = secrets.randbits(64)
        memory.buffer[: len(_MAGIC)] = _MAGIC
        return cls(memory)

    @classmethod
    def attach(cls, path: Path, manifest_hash: str, nbytes: int | None = None) -> Mailbox:
        """An existing mailbox; SharedMemoryError if it is gone, damaged or holds weights of another network (or, where
        `nbytes` is given, of another size)."""
        memory = SharedFile.attach(path)
        try:
            if memory.size < _PAGE or bytes(memory.buffer[: len(_MAGIC)]) != _MAGIC:
                raise SharedMemoryError(f"{path} is no mailbox; remove it with `rookery clean`")
            mailbox = cls(memory)
            other = int(mailbox._header[_HASH]) != int(manifest_hash[:16], 16)
            if other or mailbox.nbytes != (mailbox.nbytes if nbytes is None else nbytes):
                mailbox._forget()
                raise SharedMemoryError(
                    f"{path} holds weights of another network; "
                    "start all workers with the same configuration and release"
                )
            return mailbox
        except BaseException:
            memory.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._memory.path

    @property
    def nonce(self) -> int:
        """A random number that proves to be looking at the same memory."""
        return int(self._header[_NONCE])

    @property
    def version(self) -> Version:
        """The newest published version."""
        return unpack(int(self._words[int(self._header[_ACTIVE])][_VERSION]))

    def write(self, weights: NDArray[np.uint8], version: Version) -> None:
        """Publishes `weights` [nbytes]; ValueError unless `version` is newer than the last one and the size fits."""
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

    def read(self, out: NDArray[np.uint8], seconds: float = 1.0) -> Version | None:
        """Copies the newest weights to `out` [nbytes]; None if nothing whole could be read in `seconds`."""
        end = time.monotonic() + seconds
        while True:
            index = int(self._header[_ACTIVE])
            words = self._words[index]
            before = int(words[_SEQUENCE])
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
        self._memory.close()

    def remove(self) -> None:
        """Unmaps and unlinks unless another process still holds the file."""
        self._forget()
        self._memory.remove()

    def _forget(self) -> None:
        self._copies, self._words = [], []
        self._header = np.zeros(8, np.uint64)


def _stride(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
