"""Several machines with a slow way between them: network namespaces at a switch in user space.

    0  10.81.0.1 ─┐
    1  10.81.0.2 ─┤ tests.flows.switch
    2  10.81.0.3 ─┘

The way between them can be late, slow, or cut in one direction or both, and neither end is told. Needs root.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flows.network import Place, ip_command
from tests.tools import ROOT, skip_or_fail

__all__ = ["JUMBO", "Machines", "address", "machines"]

JUMBO = 9_000
"""Bytes of a frame's content inside data centres; elsewhere 1500."""
_DEVICE = "eth0"
_numbers = itertools.count()


def address(machine: int) -> str:
    """Of a machine."""
    return f"10.81.0.{machine + 1}"


class Machines:
    """`count` machines."""

    def __init__(self, count: int, mtu: int) -> None:
        self._ip = ip_command()
        prefix = f"rookery{os.getpid()}-{next(_numbers)}"
        self.names = [f"{prefix}-{number}" for number in range(count)]
        self._mtu = mtu
        self._switch: subprocess.Popen[str] | None = None

    def up(self) -> None:
        """Makes and connects them; skips the test where that is not allowed."""
        for name in self.names:
            made = subprocess.run([self._ip, "netns", "add", name], capture_output=True, text=True, check=False)
            if made.returncode:
                skip_or_fail("no network namespaces", made.stderr.strip())
        if not Path("/dev/net/tun").exists():
            skip_or_fail("no TUN device", "/dev/net/tun is missing")
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.switch", _DEVICE, *self.names],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answered()
        for number, name in enumerate(self.names):
            for command in (
                ("addr", "add", f"{address(number)}/24", "dev", _DEVICE),
                ("link", "set", _DEVICE, "mtu", str(self._mtu)),
                ("link", "set", "lo", "up"),
                ("link", "set", _DEVICE, "up"),
            ):
                self._do("-n", name, *command)

    def down(self) -> None:
        """Removes them; what runs there must have ended."""
        if self._switch is not None:
            self._switch.communicate(timeout=30)
        for name in self.names:
            if Path(f"/run/netns/{name}").exists():
                self._do("netns", "del", name)

    def on(self, machine: int) -> Place:
        """That machine."""
        return Place(self.names[machine])

    def tell(self, command: str) -> None:
        """A command to the switch; it holds when this returns."""
        assert self._switch is not None
        assert self._switch.stdin is not None
        self._switch.stdin.write(f"{command}\n")
        self._switch.stdin.flush()
        self._answered()

    def sent(self, machine: int) -> int:
        """Bytes that a machine has put on its cable so far, headers of all layers included."""
        command = [*self.on(machine).words, "cat", f"/sys/class/net/{_DEVICE}/statistics/tx_bytes"]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout)

    def _answered(self) -> None:
        assert self._switch is not None
        assert self._switch.stdout is not None
        answer = self._switch.stdout.readline()
        if answer != "ok\n":
            skip_or_fail("no TUN device", answer.strip() or "the switch ended")

    def _do(self, *command: str) -> None:
        subprocess.run([self._ip, *command], check=True, capture_output=True, text=True, timeout=30)


@contextmanager
def machines(count: int, mtu: int = JUMBO) -> Iterator[Machines]:
    """Connected machines; removed at the end."""
    made = Machines(count, mtu)
    try:
        made.up()
        yield made
    finally:
        made.down()
