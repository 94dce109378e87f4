"""What is done to a run, drawn from a seed: the same seed throws the same faults in the same order. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["KINDS", "PHASES", "ROLES", "WORKERS", "Fault", "faults"]

KINDS = {
    "kill": 8,
    "stop": 5,
    "full_disk": 2,
    "slow_disk": 2,
    "full_memory": 2,
    "cut": 3,
    "clock": 3,
    "hostile": 4,
    "truncate": 2,
    "kill_all": 1,
}
"""Kind of a fault -> how often it is drawn, as a weight: kill -9, SIGSTOP and SIGCONT, no room on the run's disk, a
disk that answers nobody for a while, no room for shared memory, a silent cut of the network, a jump of the clocks that
a worker is told, a hostile peer (attacks.py), an actor's ring that another process makes shorter, and kill -9 of
everything at once, after which the same command is given again."""
AT_ONCE = ("kill", "truncate", "kill_all")
"""Kinds that do not last."""
OF_ALL = {"full_disk", "slow_disk", "full_memory", "cut", "hostile", "kill_all"}
"""Kinds that meet all workers at once."""
WORKERS = {"actor": 2, "learner": 2, "coordinator": 1}
ROLES = {**WORKERS, "fork_server": 1}
"""Whom a fault meets -> how often it is drawn, as a weight. The fork server starts workers and is none."""
PHASES = {"running": 4, "starting": 2, "recovering": 2}
"""When it happens: in the middle of the work, while its worker starts, while another worker comes back. A fourth, the
`ending`, when the last steps are made, comes by itself once a run."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done: to the `number`th worker of `role` where it meets one, `delay` seconds after its phase
    began, for `seconds` where it lasts; then `pause` seconds of peace."""

    kind: str
    role: str
    phase: str
    number: int
    delay: float
    seconds: float
    pause: float
    wall: float
    """Seconds by which the wall clock jumps; the monotonic one leaps `seconds`."""

    def __str__(self) -> str:
        target = "" if self.kind in OF_ALL and self.phase == "running" else f" {self.role}"
        lasting = "" if self.kind in AT_ONCE else f" for {self.seconds:.1f} s"
        return f"{self.kind}{target} {self.phase}+{self.delay:.1f} s{lasting}"


def faults(seed: str, kinds: Sequence[str], longest: float, pause: float = 1.5) -> Iterator[Fault]:
    """Without end; none of `kinds` lasts longer than `longest` seconds, and between them are `pause` seconds of peace
    on average. The first is the one for the run's end."""
    chance = random.Random(seed)
    weights = [KINDS[kind] for kind in kinds]
    ending = ("kill", "stop") if {"kill", "stop"} <= set(kinds) else kinds
    yield _draw(chance, chance.choice(ending), "ending", longest, pause)
    while True:
        kind = chance.choices(kinds, weights)[0]
        phase = chance.choices([*PHASES], [*PHASES.values()])[0]
        yield _draw(chance, kind, phase, longest, pause)


def _draw(chance: random.Random, kind: str, phase: str, longest: float, pause: float) -> Fault:
    role = chance.choices([*ROLES], [*ROLES.values()])[0]
    return Fault(
        kind,
        "actor" if kind == "truncate" else role,
        phase,
        chance.randrange(8),
        delay=chance.uniform(0.0, 3.0 if phase == "starting" else 1.0),
        seconds=chance.uniform(0.2, longest),
        pause=chance.expovariate(1 / pause),
        wall=chance.uniform(-3600.0, 3600.0),
    )
