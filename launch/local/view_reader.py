"""What a run in one process tells of itself: workers/runtime/sole_process.py writes it.

In flow: bytes of a pipe. Out flows: its newest view; when it was heard last.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import IO, Any


class ViewReader:
    """The end of the pipe that is read, without waiting."""

    def __init__(self, pipe: IO[str]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe, self._rest = pipe, b""
        self.heard_at = 0.0
        """time.monotonic(); 0: never yet."""

    def newest(self) -> dict[str, Any] | None:
        """The newest view that came since it was asked last."""
        if self._pipe.closed:
            return None
        with suppress(BlockingIOError):
            while part := os.read(self._pipe.fileno(), 1 << 16):
                self.heard_at = time.monotonic()
                self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        views = [line for line in lines if line]
        return dict(json.loads(views[-1])) if views else None

    def close(self) -> None:
        """Nothing is read any more, of which the run takes note as an order to stop."""
        self._pipe.close()
