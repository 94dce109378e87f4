"""Many workers of one kind, each a process that runs the real command: forked of one that has imported torch for all of
them, which costs seconds and hundreds of megabytes each time. `python -m tests.flows.crowd workers.actor` is that one.

In flow, a line each as JSON: `{"arguments": [...], "output": PATH}` to start one, `{"wait": PID}`. Out flow: its pid,
its exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.flows import runs

__all__ = ["Crowd", "Forked", "crowd"]


@dataclass(frozen=True)
class Forked:
    """One worker of a crowd."""

    of: Crowd
    pid: int
    output: Path

    @property
    def said(self) -> str:
        """Everything it wrote."""
        return self.output.read_text()

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return bool(runs.alive([self.pid]))

    def wait(self, seconds: float) -> int:
        """Its exit code, minus the number of the signal that killed it."""
        runs.until(lambda: not self.lives, seconds, f"{self.output.name} has ended")
        return self.of.ask({"wait": self.pid})


class Crowd:
    """Whoever forks them."""

    def __init__(self, popen: subprocess.Popen[str], folder: Path) -> None:
        self._popen, self._folder, self._count = popen, folder, 0

    def start(self, *arguments: str) -> Forked:
        """Another worker."""
        self._count += 1
        output = self._folder / f"forked-{self._popen.pid}-{self._count}.txt"
        return Forked(self, self.ask({"arguments": arguments, "output": str(output)}), output)

    def ask(self, what: dict[str, object]) -> int:
        """The answer to one line."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(what) + "\n")
        self._popen.stdin.flush()
        return int(self._popen.stdout.readline())


@contextmanager
def crowd(module: str, folder: Path) -> Iterator[Crowd]:
    """Workers of `module` that run in `folder`; those that still run are left to the leak guard."""
    command = [runs.PYTHON, "-m", "tests.flows.crowd", module]
    with subprocess.Popen(
        command, cwd=folder, env=runs.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as popen:
        try:
            yield Crowd(popen, folder)
        finally:
            popen.kill()


def main(module: str) -> None:
    """Forks, and says how they ended, until nobody asks any more."""
    command = importlib.import_module(module).command
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer
            continue
        pid = os.fork()
        if pid:
            print(pid, flush=True)  # noqa: T201 - the answer
            continue
        os.setsid()
        nothing, said = os.open(os.devnull, os.O_RDONLY), os.open(asked["output"], os.O_WRONLY | os.O_CREAT, 0o644)
        for number, descriptor in ((0, nothing), (1, said), (2, said)):
            os.dup2(descriptor, number)
        command(asked["arguments"])


if __name__ == "__main__":
    main(sys.argv[1])
