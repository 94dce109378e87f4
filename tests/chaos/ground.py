"""What a run under faults stands on: a disk, a memory and a network of its own, which can be filled, stalled and cut.

With root the run's folder is a small ext4 file system on a loop device, shared memory a small tmpfs, and all processes
live in a network namespace whose loopback can be taken down: connections stay, packets vanish. Without, there are plain
folders, and the kinds of faults that need more are left out with a reason.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Ground", "ground"]

_DISK_MIB, _MEMORY_MIB = 96, 192
_FILLER = ".filler"
_BUSY_SECONDS = 10.0
"""How long those that were killed may take to let go of it."""


class Ground:
    """`disk`, `memory`: folders; `kinds`: the faults of the ground that are possible; `missing`: why others are not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk, self.memory = folder / "disk", folder / "memory"
        self.kinds: list[str] = []
        self.missing: list[str] = []
        self.on: list[str] = []
        """What a command begins with that shall run here."""
        self._network = f"rookery-{folder.name}"
        for place in (self.disk, self.memory):
            place.mkdir()

    def up(self) -> None:
        """Mounts what can be mounted."""
        if os.geteuid() != 0:
            self.missing.append("full_disk, slow_disk, full_memory and cut need root")
            return
        size = f"size={_MEMORY_MIB}m"
        if self._try("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.memory)):
            self.kinds.append("full_memory")
        image = self.folder / "disk.img"
        with image.open("wb") as stream:
            stream.truncate(_DISK_MIB << 20)
        made = self._try("mkfs.ext4", "-q", "-F", str(image))
        if made and self._try("mount", "-o", "loop,noatime", str(image), str(self.disk)):
            self.kinds += ["full_disk", "slow_disk"]
        if self._try("ip", "netns", "add", self._network) and self._try(*self._loopback("up")):
            self.kinds.append("cut")
            self.on = [_tool("ip"), "netns", "exec", self._network]

    def down(self) -> None:
        """Unmounts; what ran there must have ended."""
        self.thaw()
        if self.on:
            subprocess.run([_tool("ip"), "netns", "del", self._network], check=True, timeout=30)
        end = time.monotonic() + _BUSY_SECONDS
        for place in (self.disk, self.memory):
            while place.is_mount():
                late = ["--lazy"] if time.monotonic() > end else []
                subprocess.run([_tool("umount"), *late, str(place)], check=bool(late), capture_output=True, timeout=30)
                time.sleep(0.05)

    def fill(self, place: Path) -> None:
        """Takes all room that is left."""
        with suppress(OSError), (place / _FILLER).open("wb", buffering=0) as stream:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        stream.write(bytes(size))

    def free(self, place: Path) -> None:
        """Gives it back."""
        (place / _FILLER).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Whoever writes to the disk waits from now on."""
        subprocess.run([_tool("fsfreeze"), "--freeze", str(self.disk)], check=True, timeout=30)

    def thaw(self) -> None:
        """It answers again."""
        if "slow_disk" in self.kinds:
            subprocess.run(
                [_tool("fsfreeze"), "--unfreeze", str(self.disk)], check=False, capture_output=True, timeout=30
            )

    def cut(self) -> None:
        """Nothing goes from one process to another by the network any more."""
        subprocess.run([_tool("ip"), *self._loopback("down")[1:]], check=True, timeout=30)

    def heal(self) -> None:
        """It does again."""
        subprocess.run([_tool("ip"), *self._loopback("up")[1:]], check=True, timeout=30)

    def _loopback(self, state: str) -> list[str]:
        return ["ip", "-n", self._network, "link", "set", "lo", state]

    def left(self) -> list[str]:
        """What lies in the memory."""
        return sorted(path.name for path in self.memory.iterdir() if path.name != _FILLER)

    def _try(self, *command: str) -> bool:
        try:
            done = subprocess.run([_tool(command[0]), *command[1:]], capture_output=True, text=True, timeout=60)
        except OSError as fault:
            self.missing.append(f"{command[0]}: {fault}")
            return False
        if done.returncode:
            self.missing.append(f"{command[0]}: {done.stderr.strip()}")
        return done.returncode == 0


def _tool(name: str) -> str:
    for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"):
        if (Path(folder) / name).exists():
            return f"{folder}/{name}"
    return name


@contextmanager
def ground() -> Iterator[Ground]:
    """Made, and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="rookery-chaos-") as folder:
        made = Ground(Path(folder))
        try:
            made.up()
            yield made
        finally:
            made.down()
