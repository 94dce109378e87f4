"""Pairs of an actor's and a learner's end, started and killed (-9) over and over: does anything of them stay?

    python -m tests.chaos.pairs [--cycles N] [--seed S]

In flow: a seed, which chooses who dies first and when: while they start, or once segments and weights went to and fro.
Out flow: what is left of them. Both are forked from one process and have the rings, ledgers, mailboxes and sockets of
real workers, without the seconds that each of these takes to import torch.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
import psutil

from protocol.memory.shared_file import files, memory_dir, sweep
from protocol.messages.core import Route
from protocol.weights.manifest import Version
from protocol.weights.shared_snapshot import SharedSnapshot
from tests.protocol.parts import RUN, Actor, Learner, write

__all__ = ["kill_pairs"]

_RING, _WEIGHTS = f"rookery-{RUN}-actor-0.1-gem.ring", f"rookery-{RUN}-gem.weights"
_BYTES, _NETWORK = 4_000, "0123456789abcdef"
_PATIENCE = 120.0


def kill_pairs(cycles: int, seed: int, memory: Path) -> tuple[Counter[str], list[str]]:
    """Starts and kills so many, with `memory` as their shared memory; (moment -> how many died then, what was left)."""
    chance, moments, found = random.Random(seed), Counter[str](), list[str]()
    here, before = psutil.Process(), _held()
    with tempfile.TemporaryDirectory(prefix="rookery-pairs-") as folder:
        for number in range(cycles):
            moment, left = _cycle(Path(folder) / "ledger", chance)
            moments[moment] += 1
            found += [f"cycle {number}, killed {moment}: {one}" for one in left]
    found += [f"process left: {child.pid}" for child in here.children(recursive=True)]
    found += [f"descriptor left: {target}" for target in (_held() - before).elements()]
    found += [f"file left: {path}" for path in memory.iterdir()]
    return moments, found


def _cycle(ledger: Path, chance: random.Random) -> tuple[str, list[str]]:
    """One pair; when it died, and what its death and the janitor's work after it left or took away wrongly."""
    route_in, route_out = os.pipe()
    told_in, told_out = os.pipe()
    learner = _forked(lambda: _learn(ledger, route_out, told_out))
    actor = _forked(lambda: _act(route_in, told_out))
    for descriptor in (route_in, route_out, told_out):
        os.close(descriptor)
    at_work = chance.random() < 0.7
    if at_work:
        _wait_for_both(told_in)
    else:
        time.sleep(chance.uniform(0.0, 0.03))
    os.close(told_in)
    found = []
    first, second = (actor, learner) if chance.random() < 0.5 else (learner, actor)
    _kill(first)
    own = memory_dir() / (_WEIGHTS if second == learner else _RING)
    held = at_work and own.exists()
    sweep(RUN)
    if held and not own.exists():
        found.append(f"{own.name} was taken away from the living")
    _kill(second)
    sweep(RUN)
    ledger.unlink(missing_ok=True)
    found += [f"file left: {path.name}" for path in files(RUN)]
    return ("at work" if at_work else "starting"), found


def _learn(ledger: Path, route_out: int, told_out: int) -> None:
    """Takes segments, acknowledges them, publishes weights, without end."""
    learner, weights = Learner(ledger), np.zeros(_BYTES, np.uint8)
    mailbox = SharedSnapshot.create(memory_dir() / _WEIGHTS, _BYTES, _NETWORK, "snapshot")
    mailbox.write(weights, Version(1, 1))
    os.write(route_out, learner.route.model_dump_json().encode())
    version, told = 1, False
    while True:
        if learner.use() and not told:
            told = os.write(told_out, b"l") > 0
        version += 1
        mailbox.write(weights, Version(1, version))
        time.sleep(0.001)


def _act(route_in: int, told_out: int) -> None:
    """Writes and sends segments, adopts weights, without end."""
    route = Route.model_validate_json(os.read(route_in, 1 << 16))
    mailbox = SharedSnapshot.attach(memory_dir() / _WEIGHTS, _NETWORK, _BYTES)
    actor, into, told = Actor(memory_dir() / _RING), np.empty(_BYTES, np.uint8), False
    actor.sender.route(route, inline=False)
    while True:
        write(actor.sender, actor.written + 1)
        actor.written += 2
        if mailbox.read(into) is not None and not told and actor.counters["produced.gem"] > 12:  # more than credits
            told = os.write(told_out, b"a") > 0


def _forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(int(_PATIENCE))  # whatever becomes of the one who kills
            run()
        except BrokenPipeError:
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    return pid


def _wait_for_both(told_in: int) -> None:
    """Until both have done some work."""
    end, told = time.monotonic() + _PATIENCE, b""
    while set(told) != set(b"al") and time.monotonic() < end:
        if select.select([told_in], [], [], 1.0)[0]:
            some = os.read(told_in, 2)
            if not some:
                break
            told += some
    if set(told) != set(b"al"):
        raise RuntimeError(f"the pair did not come to work, only {told!r} told so")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _held() -> Counter[str]:
    """What this process's descriptors are, without their numbers."""
    folder, held = Path("/proc/self/fd"), Counter[str]()
    for entry in folder.iterdir():
        with suppress(OSError):
            held[os.readlink(entry).partition(":[")[0]] += 1
    return held


@click.command(help="Starts pairs of an actor's and a learner's end and kills them.")
@click.option("--cycles", default=1_000, show_default=True)
@click.option("--seed", type=int, default=None, help="What chooses the moments; another one each time by default.")
def main(cycles: int, seed: int | None) -> None:
    """Prints a row of counts, and what was left."""
    seed = secrets.randbelow(2**31) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="rookery-pairs-", dir=memory_dir()) as memory:
        os.environ["ROOKERY_MEMORY"] = memory
        began = time.monotonic()
        moments, found = kill_pairs(cycles, seed, Path(memory))
        seconds = time.monotonic() - began
    told = ", ".join(f"{count} {moment}" for moment, count in sorted(moments.items()))
    click.echo(f"seed {seed}: {cycles} pairs in {seconds:.0f} s, killed {told}; left: {len(found)}")
    click.echo("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
