"""Files of weights that people send to a run part by part, and name in a command by what they hold.

In flow: parts of files, from threads of the page. Out flow: files with the SHA-256 that they were sent under.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from pathlib import Path

from protocol.errors import ConfigurationError, disk_fault

_HASH = re.compile("[0-9a-f]{64}")
_MOST = 2**31
"""Bytes of all files that no command has named yet."""
_FORGOTTEN = 600.0
"""Seconds after which a file that nobody goes on sending is given up."""


class SentWeights:
    """Those of the run in `folder`; what was sent to an earlier coordinator is forgotten."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder / "sent", threading.Lock()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, sha256: str, offset: int, part: bytes) -> int:
        """Bytes of the file that are there now: with `part`, if there were `offset` of them. ConfigurationError or
        DiskFault."""
        path = self._path(sha256)
        others = sum(_kept(one) for one in self._folder.glob("*") if one != path)
        if others + offset + len(part) > _MOST:
            raise ConfigurationError("roster_weights_too_large", limit=_MOST)
        try:
            with self._lock:
                self._folder.mkdir(exist_ok=True)
                with path.open("ab") as file:
                    if file.tell() == offset:
                        file.write(part)
                return path.stat().st_size
        except OSError as fault:
            raise disk_fault(fault, "the file once more") or fault from None

    def whole(self, sha256: str) -> Path:
        """The file; ConfigurationError unless it is there, and holds what it was announced as."""
        path = self._path(sha256)
        if not path.is_file():
            raise ConfigurationError("roster_weights_not_sent", value=sha256, found="nothing")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            path.unlink()  # whoever sends it again begins anew
            raise ConfigurationError("roster_weights_not_sent", value=sha256, found=found)
        return path

    def forget(self, sha256: str) -> None:
        """The file, and what was made of it: a command has used or refused it."""
        for path in self._folder.glob(f"{sha256}*") if _HASH.fullmatch(sha256) else ():
            path.unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        if _HASH.fullmatch(sha256) is None:
            raise ConfigurationError("roster_weights_not_sent", value=sha256[:64], found="no SHA-256")
        return self._folder / sha256


def _kept(path: Path) -> int:
    """Its bytes; 0 where it is given up, or a command has just taken it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    if time.time() - found.st_mtime < _FORGOTTEN:
        return found.st_size
    path.unlink(missing_ok=True)
    return 0
