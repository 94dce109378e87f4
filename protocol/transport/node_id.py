"""Which node a worker is on. Workers of one node see the same shared memory; all others talk by TCP.

In flow: this machine's name, boot and memory folder, or a name that somebody gave. Out flow: a label.
"""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path

from protocol.errors import ConfigurationError
from protocol.memory.shared_file import memory_dir

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HOST = 100
"""Characters of a host's name that are kept."""


def node_name(given: str = "") -> str:
    """`given`, or a name made of the host's, this boot's identity and the device on which the memory folder lies: two
    containers without a common /dev/shm are two nodes. ConfigurationError if `given` is no label."""
    if given:
        if not _LABEL.fullmatch(given):
            raise ConfigurationError("node_name_malformed", value=given)
        return given
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    digest = hashlib.sha256(f"{boot}/{memory_dir().stat().st_dev}".encode()).hexdigest()[:8]
    host = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node()).lstrip(".-")[:_HOST]
    return f"{host or 'node'}-{digest}"
