"""What a launcher and its fork server say to each other, as JSON over a socket pair."""

from __future__ import annotations

import msgspec

MAX_REQUEST_BYTES = 64 * 1024
STALE = "its code has changed on disk"
"""The refusal after which another server can do better."""


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker to be started. Three open files come with it: for its output, for its errors, and one that it reads a
    byte from before it begins: the launcher's word that it knows its process."""

    command: list[str]
    """What stands behind `python -m`."""
    directory: str
    environment: dict[str, str]
    """ROOKERY_* alone; all else is as it was when the server was started."""


class ForkReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that was started, by now a child of the launcher, or why there is none. The first one, with neither,
    says that the server has imported all it needs."""

    pid: int = 0
    refusal: str = ""
