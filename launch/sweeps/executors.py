"""On which machine each of many runs goes, and what holds it there: processes here, `ssh` for others.

In flows: machines with their cores, from a sweep's or a population's file; runs. Out flow: started runs. The runs'
folder must be one that all machines see under the same path, as on a shared disk: that is tried before the first run.
"""

from __future__ import annotations

import secrets
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from launch.cluster import ssh
from launch.cluster.plan import Command, Host, Hosts, There, no_option
from launch.cluster.ssh import HostFailed, Remote
from launch.local import process
from launch.local.process import Process
from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError
from protocol.spaces import Label

HERE = "localhost"
"""The machine that needs no ssh."""
_END_SECONDS = 30.0
Running = Process | Remote


class Machine(ConfigModel):
    """One of several."""

    cores: int = Field(default=2, ge=1)
    """All runs there at one time take no more."""
    ssh: Annotated[str, AfterValidator(no_option)] = ""
    """Where `ssh` goes; empty: its name here. The machine called localhost is this one."""
    folder: There = "."
    """Where runs are started, from the home directory."""
    rookery: str = "rookery"
    """The command there."""


NamedMachines = dict[Label, Machine]


class Machines:
    """`told` of a file, or this machine alone with `cores`."""

    def __init__(self, told: Mapping[str, Machine] | None, cores: int) -> None:
        self._all = dict(told) if told else {HERE: Machine(cores=cores)}
        places = {name: Host(ssh=one.ssh, folder=one.folder) for name, one in self._all.items()}
        self._hosts = Hosts(hosts=places)
        self._taken = dict.fromkeys(self._all, 0)

    def free(self, cores: int) -> str | None:
        """The machine with most room for a run that takes so many cores; None where there is none now."""
        left = {name: one.cores - self._taken[name] for name, one in self._all.items()}
        name = max(left, key=lambda name: left[name])
        return name if left[name] >= cores else None

    def begin(self, name: str, cores: int, words: Sequence[str], output: Path) -> Running:
        """Starts `rookery WORDS` there; what it writes goes to the file `output`."""
        self.take(name, cores)
        if name == HERE:
            return process.start_process("run", ["launch", *words], output)
        there = self._all[name]
        command = Command(name, "run", output.stem, there.folder, (there.rookery, *words))
        return Remote(self._hosts, command, output.parent, _END_SECONDS, 0)

    def take(self, name: str, cores: int) -> None:
        """A run there begins."""
        self._taken[name] += cores

    def ended(self, name: str, cores: int) -> None:
        """A run there has ended."""
        self._taken[name] -= cores

    def check(self, folder: Path) -> None:
        """HostFailed, in one sentence, unless every machine can be reached and sees `folder`."""
        others = [name for name in self._all if name != HERE]
        if not others:
            return
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / f".seen-{secrets.token_hex(4)}"
        mark.touch()
        try:
            for name in others:
                words = ssh.ssh(self._hosts, name, f"test -f {shlex.quote(str(mark))}")
                found = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                if found.returncode == ssh.LOST:
                    said = " ".join(found.stderr.split())
                    raise HostFailed("host_unreachable", address=words[-2], reason=said, peer=name)
                if found.returncode:
                    raise HostFailed("host_without_shared_folder", peer=name, file=folder)
        finally:
            mark.unlink()


def tell_to_end(one: Running) -> None:
    """In order, when it has the time."""
    if isinstance(one, Remote):
        one.tell()
    elif one.code is None:
        one.popen.send_signal(signal.SIGTERM)


def end_all(running: Sequence[Running], seconds: float) -> None:
    """Tells all to end, and kills those that do not within `seconds`."""
    for one in running:  # all of them first: they end side by side
        if isinstance(one, Remote):
            one.tell()
    process.end_all([one for one in running if isinstance(one, Process)], seconds)
    ssh.end_all([one for one in running if isinstance(one, Remote)], seconds)


def check_fits(cores: int, machines: Mapping[str, Machine] | None, here: int, what: str) -> None:
    """ConfigurationError unless a run that takes so many cores fits on some machine; `here`: cores without any."""
    most = max((one.cores for one in machines.values()), default=0) if machines else here
    if cores > most:
        raise ConfigurationError(
            "run_needs_more_cores",
            count=cores,
            holder=what,
            limit=most,
            where=" on a host" if machines else "",
            key="cores",
        )
