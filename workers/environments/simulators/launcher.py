"""Simulators that the actor starts itself, by a command of the operating system: one for each copy of the world.

In flow: time. Out flows: processes, started again when they crash, as long as their budget lasts; who of them is gone.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.simulators import guardian

log = logging.getLogger(__name__)

FIELDS = ("address", "host", "port", "seed", "instance", "name", "machine")
"""What a command may ask for in braces."""
_LOOK_EVERY = 0.1
_BACK_OFF, _LONGEST_BACK_OFF = 0.5, 30.0
"""Seconds before the first restart of an instance, doubled with each further one."""
_END_SECONDS = 3.0


@dataclass(slots=True)
class _Instance:
    name: str
    command: list[str]
    popen: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    again_at: float = 0.0
    over: str = ""
    """Why it is not started again."""


def command_of(template: str, fields: Mapping[str, object]) -> list[str]:
    """The words of a command line; ConfigurationError for one that asks for what there is not."""
    try:
        words = [word.format(**fields) for word in shlex.split(template)]
    except (ValueError, KeyError, IndexError) as fault:
        raise ConfigurationError(
            "simulator_command_malformed",
            value=template,
            fault=type(fault).__name__,
            reason=str(fault),
            choices=list(FIELDS),
            key="environment.settings.command",
        ) from None
    if not words:
        raise ConfigurationError("simulator_command_empty", key="environment.settings.command")
    return words


def commands_of(
    template: str, names: Sequence[str], address: str, seed_of: Callable[[str], int], machines: Sequence[str]
) -> dict[str, list[str]]:
    """The command of each of the instances `names`, to which `seed_of` gives seeds. They are spread over `machines`,
    which a command is told as `{machine}`; how to start something there is its own affair (`ssh`)."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    found = {}
    for number, name in enumerate(names):
        fields = {"address": address, "host": host, "port": port, "seed": seed_of(name), "instance": number}
        fields |= {"name": name, "machine": machines[number % len(machines)] if machines else "localhost"}
        found[name] = command_of(template, fields)
    return found


class SimulatorLauncher:
    """Instances by name, of which each is started by its command, and again at most `restarts` times. `on_gone` is told
    the name of one that ended. Logs go to `logs`, a file each. They find the folder `keys` in `ROOKERY_KEYS`."""

    def __init__(
        self,
        commands: Mapping[str, list[str]],
        restarts: int,
        logs: Path | None,
        on_gone: Callable[[str, str], None],
        keys: str = "",
    ) -> None:
        self._instances = [_Instance(name, command) for name, command in commands.items()]
        self._budget, self._logs, self._on_gone = restarts, logs, on_gone
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("ROOKERY_PARENT", "ROOKERY_KEYS")
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
        self._environment = {**inherited, "PATH": path, **({"ROOKERY_KEYS": keys} if keys else {})}
        self._looked_at = 0.0
        self.restarts = 0
        for instance in self._instances:
            self._start(instance)

    def poll(self) -> None:
        """Starts again what crashed; EnvironmentFault when none is left that could be."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        for instance in self._instances:
            if instance.popen is not None and (code := instance.popen.poll()) is not None:
                self._ended(instance, code, now)
            elif instance.again_at and now >= instance.again_at:
                instance.again_at, instance.restarts = 0.0, instance.restarts + 1
                self.restarts += 1
                self._start(instance)
        if all(instance.over for instance in self._instances):
            last = self._instances[0]
            raise EnvironmentFault(
                "simulators_all_ended",
                reason=last.over,
                file=self._log_of(last.name),
                key="environment.settings.command",
            )

    def close(self) -> None:
        """Ends all of them."""
        living = [instance.popen for instance in self._instances if instance.popen is not None]
        for popen in living:
            assert popen.stdin is not None
            popen.stdin.close()
        end = time.monotonic() + _END_SECONDS
        for popen in living:
            try:
                popen.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                popen.kill()  # which kills the simulator with it
                popen.wait()
        self._instances.clear()

    def _start(self, instance: _Instance) -> None:
        with ExitStack() as stack:
            output: IO[bytes] | int = 2
            if self._logs is not None:
                self._logs.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(Path(self._log_of(instance.name)).open("ab"))
            instance.popen = subprocess.Popen(
                [sys.executable, "-I", str(Path(guardian.__file__)), *instance.command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the actor alone
            )
        log.info("event=simulator_started name=%s restart=%d", instance.name, instance.restarts)

    def _ended(self, instance: _Instance, code: int, now: float) -> None:
        popen, instance.popen = instance.popen, None
        assert popen is not None
        assert popen.stdin is not None
        popen.stdin.close()
        why = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        self._on_gone(instance.name, f"its process {why}")
        if code == 0 or instance.restarts >= self._budget:
            instance.over = why if code == 0 else f"{why} after {instance.restarts} restarts"
            log.warning("event=simulator_over name=%s reason=%s", instance.name, instance.over)
            return
        pause = min(_BACK_OFF * 2**instance.restarts, _LONGEST_BACK_OFF)
        instance.again_at = now + pause
        log.warning("event=simulator_crashed name=%s reason=%s again_in=%g", instance.name, why, pause)

    def _log_of(self, name: str) -> str:
        return "what it wrote" if self._logs is None else str(self._logs / f"{name}.log")
