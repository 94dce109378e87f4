"""Other runs beside this one, whose curves its page may show with its own: those in the same folder, by their names.

In flow: a name, as somebody on the page gave it. Out flow: the curves that the run left so far. A name means something
only if it is among those that the folder holds: no path is made of what a client says, and no link is followed.
"""

from __future__ import annotations

import threading
from pathlib import Path

from workers.metrics.history import History

_BYTES = 32 * 2**20
"""Of measurements that are read: the coordinator has something else to do."""
_MOST = 100
_KEPT = 8


class Siblings:
    """Those of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._lock = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int], History]] = {}
        """Name -> (size and time of what was read, its curves)."""

    def names(self) -> list[str]:
        """The newest first, a hundred at most."""
        found = [(path.lstat().st_mtime, path.name) for path in self._folder.parent.iterdir() if self._shows(path)]
        return [name for _, name in sorted(found, reverse=True)[:_MOST]]

    def history(self, name: str) -> History | None:
        """The curves of a run, called with its name; None if there is none of that name."""
        if name not in self.names():
            return None
        folder = self._folder.parent / name
        try:
            status = (folder / "metrics.jsonl").stat()
            state = status.st_size, status.st_mtime_ns
            with self._lock:
                known = self._read.pop(name, None)
                if known is None or known[0] != state:
                    history = History()
                    history.read(folder / "metrics.jsonl", of=name)
                    known = (state, history)
                self._read[name] = known  # the newest last
                while len(self._read) > _KEPT:
                    del self._read[next(iter(self._read))]
        except OSError:
            return None  # it was removed meanwhile
        return known[1]

    def _shows(self, folder: Path) -> bool:
        files = [folder / "config.yaml", folder / "metrics.jsonl"]
        if folder == self._folder or any(path.is_symlink() for path in (folder, *files)):
            return False
        return all(path.is_file() for path in files) and 0 < files[1].stat().st_size <= _BYTES
