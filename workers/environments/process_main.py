"""A process that steps a share of an environment's copies, one environment for each group.

    python -P -m workers.environments.process_main SOCKET NOTES PARENT PROCESS CONFIG

In flows: commands of a few bytes on an inherited socket, actions in shared memory. Out flows: turns in shared memory,
an answer of a few bytes for each; or the sentence of an error. Where it dies of a signal or an `os._exit`, the
inherited file NOTES says where. It ends when its parent does, however that dies.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from protocol.config.run import EnvironmentConfig
from protocol.errors import RookeryError
from protocol.memory.shared_file import SharedFile
from workers import freeze_startup_objects
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.vectorized.process_handle import ANSWER, COMMAND, ProcessCommand
from workers.environments.vectorized.process_side import TurnWriter
from workers.environments.vectorized.shared_arrays import Partition, SharedTurns
from workers.runtime.last_words import end_with, watch_user_code


class EnvironmentProcess:
    """Process number `process` of those that `config` asks for."""

    def __init__(self, wire: socket.socket, process: int, config: EnvironmentConfig) -> None:
        self._wire, self._process = wire, process
        self._division = Partition.of(config)
        own = config.model_copy(update={"copies": self._division.share, "processes": 0, "async_factor": 1})
        self._environments = [CheckedEnvironment(make(own)) for _ in range(self._division.groups)]

    def run(self) -> None:
        """Says what world it is, and obeys until the socket ends."""
        world = self._environments[0].world
        _answer(self._wire, ProcessCommand.WORLD, 0, world.model_dump_json())
        _, (descriptor,), _, _ = socket.recv_fds(self._wire, 1, 1)
        memory = SharedFile(Path("memory of the parent"), descriptor, os.fstat(descriptor).st_size)
        exchange = SharedTurns(world, self._division, memory.buffer)
        shares = [TurnWriter(exchange, self._process, group) for group in range(self._division.groups)]
        while (command := self._wire.recv(COMMAND.size, socket.MSG_WAITALL)) != b"":
            kind, group, seed = COMMAND.unpack(command)
            if kind == ProcessCommand.HEAR:
                self._hear(self._wire.recv(seed, socket.MSG_WAITALL))
                continue
            environment, share = self._environments[group], shares[group]
            fresh = kind == ProcessCommand.RESET
            share.write(
                share.truncate_lost_episodes(environment.reset(seed)) if fresh else environment.step(share.actions())
            )
            episodes = environment.take_episodes()
            _answer(self._wire, ProcessCommand.TURN, group, json.dumps([*episodes.items()]) if episodes else "")

    def _hear(self, said: bytes) -> None:
        for environment in self._environments:
            environment.set_curriculum(json.loads(said))

    def close(self) -> None:
        """Closes its environments."""
        for environment in self._environments:
            environment.close()


def _answer(wire: socket.socket, kind: ProcessCommand, number: int, text: str = "") -> None:
    said = text.encode()
    wire.sendall(ANSWER.pack(kind, number, len(said)) + said)


def main(descriptor: int, notes: int, parent: int, process: int, config: str) -> None:
    """Steps until the parent closes the socket."""
    end_with(parent)
    watch_user_code(notes)
    with socket.socket(fileno=descriptor) as wire:
        wire.set_inheritable(False)
        try:
            stepper = EnvironmentProcess(wire, process, EnvironmentConfig.model_validate_json(config))
            with suppress(BrokenPipeError, ConnectionResetError):  # the parent has closed in the middle of a turn
                stepper.run()
            stepper.close()
        except RookeryError as fault:
            whole = "".join(traceback.format_exception(fault)) if fault.traceback else ""
            told = json.dumps([fault.coded, fault.facts, whole], default=str)
            _last_word(wire, ProcessCommand.FAULT, fault.exit_code, told)
            sys.exit(fault.exit_code)
        except BaseException as fault:
            _last_word(wire, ProcessCommand.CRASH, 0, traceback.format_exception_only(fault)[-1].strip())
            raise


def _last_word(wire: socket.socket, kind: ProcessCommand, number: int, text: str) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent listens no more; the exit code tells it
        _answer(wire, kind, number, text)


if __name__ == "__main__":
    freeze_startup_objects()
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
