"""Two machines and the switch between them, on one machine: network namespaces whose cable can be pulled.

    left  10.79.0.1 ---- switch ---- 10.79.0.2  right

A cut is silent: both ends keep their carrier, packets vanish at the switch, no TCP connection is told. Needs root.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.tools import require, skip_or_fail

__all__ = ["LEFT", "RIGHT", "Network", "Place", "ip_command", "network"]

LEFT, RIGHT = "10.79.0.1", "10.79.0.2"
_SIDES = {"left": LEFT, "right": RIGHT}
_numbers = itertools.count()
_NEW_MOUNTS, _NEW_NETWORK, _BIND, _PRIVATELY = 0x20000, 0x40000000, 0x1000, 0x4000 | 0x80000
"""CLONE_NEWNS, CLONE_NEWNET, MS_BIND, and MS_REC | MS_SLAVE: what is mounted here is seen here alone."""


def ip_command() -> str:
    """The path of `ip`; skips the test where it is missing or may do nothing."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    return require("ip")


@dataclass(frozen=True)
class Place:
    """A machine that is a network namespace on this one. `memory`: where its workers have their shared memory; `seen`:
    the folder as which they see that, if not as itself."""

    network: str
    memory: str = ""
    seen: str = ""

    def keeping(self, memory: Path, seen: Path | None = None) -> Place:
        """The same, with a folder of its own."""
        return replace(self, memory=str(memory), seen=str(seen or ""))

    @property
    def variables(self) -> dict[str, str]:
        """That differ there."""
        return {"ROOKERY_MEMORY": self.seen or self.memory} if self.memory else {}

    @property
    def words(self) -> list[str]:
        """What a command line begins with that shall run there."""
        words = [
            require("ip"),
            "netns",
            "exec",
            self.network,
            "env",
            *(f"{name}={it}" for name, it in self.variables.items()),
        ]
        mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
        return [*words, "sh", "-c", mount, self.memory, self.seen] if self.seen else words

    def enter(self) -> None:
        """Brings this process there, as its words would but for /sys."""
        libc = ctypes.CDLL(None, use_errno=True)
        file = os.open(f"/run/netns/{self.network}", os.O_RDONLY)
        failed = libc.setns(file, _NEW_NETWORK)
        os.close(file)
        if not failed and self.seen:
            failed = libc.unshare(_NEW_MOUNTS) or libc.mount(b"", b"/", None, _PRIVATELY, None)
            failed = failed or libc.mount(os.fsencode(self.memory), os.fsencode(self.seen), None, _BIND, None)
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot enter {self}")


class Network:
    """Both machines, connected."""

    def __init__(self) -> None:
        self._ip = ip_command()
        prefix = f"rookery{os.getpid()}-{next(_numbers)}"
        self._names = {side: f"{prefix}-{side}" for side in ("switch", *_SIDES)}

    def up(self) -> None:
        """Makes them; skips the test where that is not allowed."""
        made = subprocess.run(
            [self._ip, "netns", "add", self._names["switch"]], capture_output=True, text=True, check=False
        )
        if made.returncode:
            skip_or_fail("no network namespaces", made.stderr.strip())
        self._switch("link", "add", "bridge", "type", "bridge")
        self._switch("link", "set", "bridge", "up")
        for side, address in _SIDES.items():
            self._do("netns", "add", self._names[side])
            self._switch("link", "add", side, "type", "veth", "peer", "name", "eth0", "netns", self._names[side])
            self._switch("link", "set", side, "master", "bridge", "up")
            for command in (("link", "set", "lo", "up"), ("link", "set", "eth0", "up")):
                self._do("-n", self._names[side], *command)
            self._do("-n", self._names[side], "addr", "add", f"{address}/24", "dev", "eth0")

    def down(self) -> None:
        """Removes them; what runs there must have ended."""
        for name in self._names.values():
            if Path(f"/run/netns/{name}").exists():
                self._do("netns", "del", name)

    def on(self, side: str) -> Place:
        """That machine."""
        return Place(self._names[side])

    def cut(self) -> None:
        """Nothing goes from one machine to the other any more, and neither is told."""
        self._switch("link", "set", "right", "nomaster")

    def heal(self) -> None:
        """Connects them again."""
        self._switch("link", "set", "right", "master", "bridge")

    def _switch(self, *command: str) -> None:
        self._do("-n", self._names["switch"], *command)

    def _do(self, *command: str) -> None:
        subprocess.run([self._ip, *command], check=True, capture_output=True, text=True, timeout=60)


@contextmanager
def network() -> Iterator[Network]:
    """Two connected machines; removed at the end."""
    made = Network()
    try:
        made.up()
        yield made
    finally:
        made.down()
