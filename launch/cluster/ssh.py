"""Workers on other machines, each held by one `ssh` of the system: what is written there comes back here, and when the
connection ends, the worker is told to.

In flows: commands of a plan. Out flow: processes here that stand for processes there.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from launch.cluster.plan import Command, Hosts
from launch.local.restart_budget import RestartBudget
from protocol.errors import RookeryError
from protocol.errors.origin import ended
from protocol.transport.curve import ROLES

LOST = 255
"""Exit code of ssh itself."""
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6")
_HELD = (
    "exec 3<&0; ({line}) </dev/null 3<&- & worker=$!; (cat <&3; kill -TERM $worker; left={seconds}; "
    "while [ $left -gt 0 ] && kill -0 $worker; do sleep 1; left=$((left - 1)); done; "
    "kill -KILL $worker) >/dev/null 2>&1 & "
    "holder=$!; exec 3<&-; wait $worker; code=$?; kill $holder 2>/dev/null; exit $code"
)
"""Waits for the worker and for the end of its own input, whichever comes first: that is also how it learns that the
machine which started it is gone."""


class HostFailed(RookeryError):
    """A machine could not be made ready."""


def ssh(hosts: Hosts, host: str, line: str) -> list[str]:
    """The command that runs `line` on `host`."""
    return ["ssh", *_OPTIONS, hosts.hosts[host].ssh or host, line]


def copies(hosts: Hosts, commands: Sequence[Command], config: Path) -> list[list[str]]:
    """The commands that give each host the keys of its roles, and the first one the configuration."""
    made: list[list[str]] = []
    for name, host in hosts.hosts.items():
        roles = dict.fromkeys(command.role for command in commands if command.host == name)
        if not roles:
            continue
        there, start, keys = host.ssh or name, Path(host.folder), Path(hosts.keys)
        folder = shlex.quote(str(start / keys))
        made.append(ssh(hosts, name, f"mkdir -p {folder} && chmod 700 {folder}"))
        files = [*(str(keys / f"{role}.public") for role in ROLES), *(str(keys / f"{role}.secret") for role in roles)]
        made.append(["scp", "-p", "-q", *_OPTIONS, *files, f"{there}:{start / keys}/"])
        if "coordinator" in roles:
            run = start / hosts.folder
            made.append(ssh(hosts, name, f"mkdir -p {shlex.quote(str(run.parent))}"))
            made.append(["scp", "-p", "-q", *_OPTIONS, str(config), f"{there}:{run}.yaml"])
    return made


class Remote:
    """One worker there. `seconds`: what it may take to end when told to."""

    def __init__(self, hosts: Hosts, command: Command, logs: Path, seconds: float, restarts: int) -> None:
        self.command, self.budget = command, RestartBudget(restarts)
        self.output = logs / f"{command.name}.out"
        self._words = ssh(hosts, command.host, _HELD.format(line=command.line, seconds=max(1, round(seconds))))
        self.again_at = 0.0
        self.done_without = False
        """Whether it has ended for good, and the run goes on."""
        self.lost = False
        """Whether the connection ended, and not it: until it notices, its ports and its place are taken."""
        self.start()

    def start(self) -> None:
        """Also again."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.again_at = 0.0
        with self.output.open("a") as stream:
            self._said_before = stream.tell()
            self._popen = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=stream, stderr=stream, start_new_session=True
            )
        self.budget.began(time.monotonic())

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs; or LOST."""
        return self._popen.poll()

    def in_order(self) -> bool:
        """Whether it said that its work was done, before it ended: a library can end it past Python, too."""
        said = self.output.read_bytes()[self._said_before :].decode(errors="replace")
        return ended(self.command.role) in said.splitlines()

    def last_words(self, lines: int = 3) -> str:
        """The end of what it wrote, in one line."""
        return " / ".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def tell(self) -> None:
        """To end, by the end of its input."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Whether it ended by itself; the connection is closed in any case."""
        try:
            self._popen.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            return False
        return True


def end_all(remotes: Sequence[Remote], seconds: float) -> list[str]:
    """Tells all to end and waits; the names of those that did not within `seconds`."""
    for remote in remotes:
        remote.tell()
    end = time.monotonic() + seconds
    return [remote.command.name for remote in remotes if not remote.wait(end - time.monotonic())]
