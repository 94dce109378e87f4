"""What the coordinator on another machine tells of its run: `rookery status` there, read through an ssh of its own.

In flow: lines of JSON. Out flow: the newest view, and the token of the run's page.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any

from launch.cluster.plan import COORDINATOR, Hosts
from launch.cluster.ssh import ssh
from protocol.transport.ports import HTTP
from protocol.transport.sockets import bracketed

_PAUSE = 2.0
"""Seconds until it is tried again: the coordinator may not have begun, or have died."""


class RemoteView:
    """Of the run on the first of `hosts`; what is written there about it goes to `output`."""

    def __init__(self, hosts: Hosts, output: Path) -> None:
        self._hosts, self._output = hosts, output
        self._first, host = next(iter(hosts.hosts.items()))
        self._folder = shlex.quote(host.folder)
        self._run = shlex.quote(hosts.folder)
        status = shlex.join([host.rookery, "status", hosts.folder, "--watch", "--json"])
        self._words = ssh(hosts, self._first, f"cd {self._folder} && cat {self._run}/token && exec {status}")
        self._popen: subprocess.Popen[str] | None = None
        self._again_at = 0.0
        self._lock = threading.Lock()
        self._newest: dict[str, Any] | None = None
        self.page = ""
        """Its address; empty until it is known."""

    @property
    def folder(self) -> str:
        """The run's, as scp would call it."""
        host = self._hosts.hosts[self._first]
        return f"{host.ssh or self._first}:{Path(host.folder) / self._hosts.folder}"

    def newest(self) -> dict[str, Any] | None:
        """A view, where there is one that was not asked for before. Begins to ask, also again."""
        if (self._popen is None or self._popen.poll() is not None) and time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + _PAUSE
            self._begin()
        with self._lock:
            found, self._newest = self._newest, None
        return found

    def summary(self) -> dict[str, Any]:
        """The run's, once it is over; empty where it cannot be had."""
        line = f"cat {self._folder}/{self._run}/summary.json"
        with self._output.open("a") as errors:
            ended = subprocess.run(
                ssh(self._hosts, self._first, line),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, check=False,
            )  # fmt: skip
        return dict(json.loads(ended.stdout)) if ended.returncode == 0 else {}

    def close(self) -> None:
        """Asks no more."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()

    def _begin(self) -> None:
        if self._popen is not None:
            self._popen.wait()
        with self._output.open("a") as errors:
            self._popen = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, args=(self._popen.stdout,), name="views", daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        with lines:
            token = lines.readline().strip()
            for line in lines:
                host = self._hosts.hosts[self._first].address or self._first
                self.page = f"http://{bracketed(host)}:{COORDINATOR + HTTP}/#token={token}"
                with self._lock:
                    self._newest = json.loads(line)
