"""Copies of one world spread over processes, in groups that take turns: one group is stepped while the actor chooses
the actions of another.

In flows: actions of the group returned last. Out flow: the next group's turn. A process that crashes or hangs is
started again, and the episodes it held end as truncated.

Legend: `E` copies, `G` groups, `P` processes.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import EnvironmentFault
from protocol.errors.origin import Crash
from protocol.memory.shared_file import PREFIX, SharedFile, memory_dir
from protocol.spaces import World
from workers.environments.base import Environment, Episodes, Turn
from workers.environments.checks.closing import closed_on_failure
from workers.environments.vectorized.actor_side import TurnReader
from workers.environments.vectorized.process_handle import Deadline, ProcessDied, ProcessHandle
from workers.environments.vectorized.shared_arrays import Partition, SharedTurns

log = logging.getLogger(__name__)

_START_SECONDS = 60.0
"""For a process to start and to import what it needs, beyond `step_timeout` for making its environments."""
_END_SECONDS = 5.0
_FIRST_SECONDS = 30.0
"""Of a process, within which a crash that comes again at the same place would come for ever."""
_BACK_OFF = 0.1
"""Seconds before the first restart of a process, doubled with each further one."""
_LONGEST_BACK_OFF = 5.0
"""However many restarts there were: all copies wait, and so does a command to stop."""


class ProcessEnvironment(Environment):
    """E copies of `config` in its P processes and G groups; group g has the copies g * E/G to (g + 1) * E/G - 1.

    Every process makes its environments itself, in copies that are next to one another, and guards them: the world's
    code never runs here. `reset` starts all groups and returns group 0's turn. `step` hands over the actions of the
    group returned last, without waiting, and returns the next group's turn, which was being computed meanwhile; so
    groups alternate, and none is ever more than one step ahead. Where all copies of an agent are present its arrays are
    views of shared memory, valid until the next `step`.

    The same seed, P and G give the same turns. Each process's share of a group is seeded by (seed, its first copy), the
    one of copy 0 by the seed itself: P = G = 1 gives the turns of the same environment in this process; another P or G
    gives other ones, as a world's copies share one seed.

    A process that ends or does not answer within `step_timeout` is killed and started again, at most `restarts` times.
    All actions of its copies that wait for their reward are then told as truncated, with reward 0 and the last
    observation as the final one (a process killed in the act of writing may leave some of the next one in it).
    Raises EnvironmentFault once the restarts are used up, and what an environment itself did wrong at once.

    Processes live no longer than the thread that made this (the kernel sees to it); let it be the one that steps.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._division = Partition.of(config)
        self.copies, self.groups = config.copies, config.async_factor
        self._memory: SharedFile | None = None
        self._groups: list[TurnReader] = []
        self._used = [0] * config.processes
        self._crashes = set[Crash | None]()
        """Of processes that had hardly begun."""
        self._seed = self._now = 0
        self._curriculum = ""
        """What was heard last, as JSON."""
        self._children: list[ProcessHandle] = []
        self._episodes: Episodes = {}
        with closed_on_failure(config.id, self.close):
            for index in range(config.processes):
                self._children.append(ProcessHandle(config, index, self._episodes))
            self.world = self._handshake()
            self._share()

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies, reproducibly from `seed`; the turn is group 0's."""
        for number in range(self.groups):
            self._wait(number)
        self._seed, self._now = seed, 0
        for number, group in enumerate(self._groups):
            group.begin()
            for index in range(len(self._children)):
                self._reset(index, number)
        return self._receive()

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Hands over actions for the turn returned last; the turn is the next group's."""
        self._groups[self._now].write_actions(actions)
        for child in self._children:
            child.step(self._now)
        self._now = (self._now + 1) % self.groups
        return self._receive()

    def set_curriculum(self, curriculum: Mapping[str, Any]) -> None:
        """Handed on to all processes, unless they know it."""
        said = json.dumps(curriculum)
        if said != self._curriculum:
            self._curriculum = said
            for child in self._children:
                child.set_curriculum(said)

    def take_episodes(self) -> Episodes:
        """What ended since the last call in all processes, whose shares of a collection know nothing of one another."""
        taken = dict(self._episodes)
        self._episodes.clear()
        return taken

    def close(self) -> None:
        """Ends all processes, which close their environments, and frees the memory."""
        for child in self._children:
            child.release()
        deadline = Deadline(_END_SECONDS, "processes ended")
        for index, child in enumerate(self._children):
            code = child.end(deadline)
            if code != 0:
                log.warning("event=environment_closed_badly copies=%s code=%s", self._division.named(index), code)
        self._children.clear()
        self._groups.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _handshake(self) -> World:
        """Waits until all processes are ready; the world that all of them step."""
        deadline = self._timeout()
        worlds = []
        for index, child in enumerate(self._children):
            try:
                worlds.append(child.world(deadline))
            except ProcessDied as lost:
                raise EnvironmentFault(
                    "environment_process_not_started",
                    environment=self._config.id,
                    copies=self._division.named(index),
                    reason=str(lost),
                ) from None
        for world in worlds[1:]:
            self._agree(worlds[0], world)
        return worlds[0]

    def _share(self) -> None:
        """Makes the memory. Its file has no name from the start: nothing is left of it, however everybody dies."""
        size = SharedTurns.size(self.world, self._division)
        path = memory_dir() / f"{PREFIX}environment-{os.getpid()}-{secrets.token_hex(4)}"
        self._memory = SharedFile.create(path, size)
        path.unlink()
        exchange = SharedTurns(self.world, self._division, self._memory.buffer)
        self._groups = [TurnReader(exchange, group) for group in range(self.groups)]
        for child in self._children:
            child.attach(self._memory.descriptor)

    def _receive(self) -> Turn:
        self._wait(self._now)
        return self._groups[self._now].read()

    def _wait(self, group: int) -> None:
        """Until every process has written its part of the group's turn."""
        deadline = Deadline(self._config.step_timeout, "environments stepped")
        for index in range(len(self._children)):
            while group in self._children[index].pending:
                try:
                    self._children[index].wait(group, deadline)
                except ProcessDied as lost:
                    self._replace(index, lost)
                    deadline = Deadline(self._config.step_timeout, "environments stepped")

    def _replace(self, index: int, why: ProcessDied) -> None:
        """Another process instead of the lost one. The turn that is awaited is always the oldest that a process owes,
        so the lost one owed all groups, and all begin anew."""
        owed = self._children[index].pending
        while True:
            self._children[index].kill()
            self._count_restart(index, why)
            child = self._children[index] = ProcessHandle(self._config, index, self._episodes)
            try:
                world = child.world(self._timeout())
            except ProcessDied as lost:
                why = lost
                continue
            self._agree(self.world, world)
            assert self._memory is not None
            child.attach(self._memory.descriptor)
            if self._curriculum:
                child.set_curriculum(self._curriculum)
            for group in sorted(owed, key=lambda group: (group - self._now) % self.groups):
                self._reset(index, group)
            return

    def _count_restart(self, index: int, why: ProcessDied) -> None:
        budget, copies = self._config.restarts, self._division.named(index)
        early = why.crash is not None and self._children[index].age < _FIRST_SECONDS
        if self._used[index] == budget or (early and why.crash in self._crashes):
            raise EnvironmentFault(
                "environment_restarts_exhausted",
                environment=self._config.id,
                copies=copies,
                reason=str(why),
                count=self._used[index],
                limit=budget,
                key="environment.restarts",
            )
        if early:
            self._crashes.add(why.crash)
        self._used[index] += 1
        self.restarts += 1
        said = copies, self._used[index], budget, str(why)
        log.warning('event=environment_restarted copies=%s restart=%d of=%d reason="%s"', *said)
        time.sleep(min(_BACK_OFF * 2 ** (self._used[index] - 1), _LONGEST_BACK_OFF))

    def _reset(self, index: int, group: int) -> None:
        seed = partition_seed(self._seed, self._division.first(index, group), self._used[index])
        self._children[index].reset(group, seed)

    def _timeout(self) -> Deadline:
        return Deadline(_START_SECONDS + self._config.step_timeout, "processes started")

    def _agree(self, world: World, other: World) -> None:
        if world != other:
            raise EnvironmentFault("environment_processes_differ", environment=self._config.id)


def partition_seed(seed: int, first: int, restarts: int = 0) -> int:
    """The seed of the environment whose first copy is `first`, of a process that was started again so often."""
    if not first and not restarts:
        return seed
    return int(np.random.SeedSequence([seed, first, restarts]).generate_state(1, np.uint64)[0]) >> 1
