"""One run under faults: `rookery train` in a process of its own, whose workers are found by their command lines.

In flow: faults (plan.py). Out flows: what was thrown, what the command said; it is given again where it ended early.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.chaos import clocks, witness
from tests.chaos.attacks import ATTACKS, KEYED, MEMBERS, SERVED, Target
from tests.chaos.ground import Ground
from tests.chaos.lasting import Awaited, Lasting
from tests.chaos.plan import OF_ALL, ROLES, WORKERS, Fault
from tests.flows.runs import agent_steps
from tests.leak_guard import MARK
from tests.tools import ROOT, require

__all__ = ["Scene"]

_PATIENCE = 300.0
"""Seconds until the end of a run that is left in peace, or until a phase that is waited for."""


@dataclass
class Scene:
    """A run in `ground`, begun by `begin`. `mark`: what all its processes have in their environment."""

    ground: Ground
    data: dict[str, Any]
    mark: str
    say: Callable[[str], None]
    thrown: Counter[str] = field(default_factory=Counter)
    """Kind and phase of a fault -> how often."""
    met: Counter[str] = field(default_factory=Counter)
    """Kind of a fault and the role that it met, or `all` -> how often."""
    ended_early: list[str] = field(default_factory=list)
    """What the command said when a fault ended it."""
    descriptors: dict[int, list[int]] = field(default_factory=dict)
    """Open descriptors of the launcher, by its pid, over time."""
    findings: list[str] = field(default_factory=list)
    over: bool = False
    """Whether a fault ended the run in order, before its end."""
    seconds: float = 60.0
    """How long faults are thrown, from the first learner's start on; then the run may come to its end."""
    part: float = 1.0
    """Of the steps, after which the run is left in peace as well."""

    def __post_init__(self) -> None:
        self._until = 0.0
        self._lasting = Lasting()
        self._awaited: list[Awaited] = []
        """Faults for workers that have to start first."""

    @property
    def folder(self) -> Path:
        """The run's."""
        return self.ground.disk / "run"

    @property
    def notes(self) -> Path:
        """What the workers were seen to do; not on the disk that is filled."""
        return self.ground.folder / "witness.jsonl"

    @property
    def clocks(self) -> Path:
        """What time its processes are told."""
        return self.ground.folder / "clocks"

    @property
    def said(self) -> Path:
        """What the command said."""
        return self.ground.folder / "train.txt"

    def live(self, plan: Iterator[Fault]) -> None:
        """From the start to the end of the run, with faults of `plan` (its first for the end) as long as there are any,
        and again where it was killed."""
        ending = next(plan)
        while True:
            code = self._one_life(plan, ending)
            if code == 0:
                return
            last = self.said.read_text().strip().splitlines()[-1:]
            self.ended_early.append(last[0] if last else f"exit code {code}")
            self.say(f"  the command ended with {code}: {self.ended_early[-1]}")
            if code > 0 and not _tells_what_to_do(self.ended_early[-1]):
                self.findings.append(f"the run ended with {code} and said {self.ended_early[-1]!r}")
                return
            if (self.folder / "summary.json").exists():  # it ended in order, and is over
                self.over = True
                return

    def undisturbed(self) -> None:
        """The same run, left in peace."""
        with self._started() as popen:
            if popen.wait(600) != 0:
                self.findings.append(f"an undisturbed run failed: {self.said.read_text()[-500:]!r}")

    def _one_life(self, plan: Iterator[Fault], ending: Fault) -> int:
        with self._started() as popen:
            self._throw_all(popen, plan, ending)
            if not self._wait(popen, lambda: popen.poll() is not None):
                self.findings.append(f"the run hung: {self._where(popen)}")
                return 0
            return popen.returncode

    @contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        """The command; nothing of it lives afterwards."""
        config = self.ground.folder / "config.yaml"
        config.write_text(yaml.safe_dump(self.data))
        site = self.ground.folder / "site"
        site.mkdir(exist_ok=True)
        self.clocks.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(witness.SITE)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
            "ROOKERY_MEMORY": str(self.ground.memory),
            witness.VARIABLE: str(self.notes),
            clocks.VARIABLE: str(self.clocks),
            MARK: f"{os.environ.get(MARK, '')}:{self.mark}".strip(":"),
        }
        command = [require("rookery"), "train", str(config), "--run-dir", str(self.folder), "--no-progress"]
        command += ["--open"] if self.data.get("seed", 0) % 2 else []  # where hostile peers come further
        with self.said.open("a") as stream:
            popen = subprocess.Popen(
                [*self.ground.on, *command],
                cwd=self.ground.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            yield popen
        finally:
            self._awaited.clear()
            self._lasting.undo(everything=True)
            if popen.poll() is None:
                self._kill_all(popen)
            popen.wait()

    def _throw_all(self, popen: subprocess.Popen[bytes], plan: Iterator[Fault], ending: Fault) -> None:
        self._wait(popen, lambda: bool(self._workers(popen, "learner")))
        self._until = self._until or time.monotonic() + self.seconds
        while popen.poll() is None and not self._ends():
            more = time.monotonic() < self._until and agent_steps(self.ground.disk) < self.part * self.data["steps"]
            fault = next(plan, None) if more else None
            if fault is None:
                self._wait(popen, self._ends)
                break
            self._sleep(popen, fault.pause, self._ends)
            if popen.poll() is None and not self._ends():
                self._throw(popen, fault)
            with suppress(psutil.Error):
                self.descriptors.setdefault(popen.pid, []).append(psutil.Process(popen.pid).num_fds())
        if popen.poll() is None and not self.thrown["in the ending"]:
            self.thrown["in the ending"] += 1
            self._throw(popen, ending)

    def _throw(self, popen: subprocess.Popen[bytes], fault: Fault) -> None:
        """Waits for its phase and does it."""
        if fault.phase in ("starting", "recovering"):
            others = [role for role in WORKERS if role != fault.role]
            first = fault.role if fault.phase == "starting" else others[fault.number % len(others)]
            known = {*self._workers(popen, first)}
            if self._hit(popen, first, fault.number, signal.SIGKILL) is None:
                return
            self._count("kill", "running", first)
            if fault.phase == "starting":
                self._awaited.append(Awaited(fault, first, known))
                return
        self._sleep(popen, fault.delay)
        self._do_and_count(popen, fault)

    def _do_and_count(self, popen: subprocess.Popen[bytes], fault: Fault) -> None:
        if popen.poll() is None and self._do(popen, fault):
            self._count(fault.kind, fault.phase, "all" if fault.kind in OF_ALL else fault.role)
            self.say(f"  {fault}")

    def _tend(self, popen: subprocess.Popen[bytes]) -> None:
        """What has its time meanwhile: ends of faults that last, and faults whose workers have started."""
        self._lasting.undo()
        for one in list(self._awaited):
            if not one.due and not one.known.issuperset(self._workers(popen, one.role)):
                one.due = time.monotonic() + one.fault.delay
            if one.due and time.monotonic() >= one.due and one in self._awaited:
                self._awaited.remove(one)
                self._do_and_count(popen, one.fault)

    def _do(self, popen: subprocess.Popen[bytes], fault: Fault) -> bool:
        """Whether it could be done. What lasts is undone later (`_tend`), while others are thrown."""
        ground, newest = self.ground, fault.phase == "starting"
        if fault.kind == "kill_all":
            self._kill_all(popen)
            return True
        if fault.kind == "kill":
            return self._hit(popen, fault.role, fault.number, signal.SIGKILL, newest=newest) is not None
        if fault.kind == "clock":
            there = self._target(popen, fault.role, fault.number, newest=newest)
            return there is not None and clocks.jump(self.clocks, there, fault.seconds, fault.wall)
        if fault.kind == "stop":
            pid = self._hit(popen, fault.role, fault.number, signal.SIGSTOP, newest=newest)
            if pid is None:
                return False
            self._lasting.add(f"stop {pid}", fault.seconds, partial(_continue, pid))
            return True
        if fault.kind == "hostile":
            return self._attack(fault)
        if fault.kind == "truncate":
            return self._wait(popen, lambda: self._truncate(popen, fault))
        if fault.kind in self._lasting or (fault.kind == "full_disk" and "slow_disk" in self._lasting):
            return False  # who fills a disk that does not answer waits himself
        ways: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "full_disk": (partial(ground.fill, ground.disk), partial(ground.free, ground.disk)),
            "full_memory": (partial(ground.fill, ground.memory), partial(ground.free, ground.memory)),
            "slow_disk": (ground.freeze, ground.thaw),
            "cut": (ground.cut, ground.heal),
        }
        begin, end = ways[fault.kind]
        self._lasting.add(fault.kind, fault.seconds, end)
        begin()
        return True

    def _truncate(self, popen: subprocess.Popen[bytes], fault: Fault) -> bool:
        """Makes a ring of an actor shorter, once it has one; mostly within its first pages."""
        pid = self._target(popen, "actor", fault.number, newest=fault.phase == "starting")
        with suppress(psutil.Error, OSError):
            files = psutil.Process(pid).open_files() if pid is not None else []
            rings = [Path(file.path) for file in files if file.path.endswith(".ring")]
            if rings:
                os.truncate(rings[0], int(rings[0].stat().st_size * (fault.number / 8) ** 3))
                return True
        return False

    def _attack(self, fault: Fault) -> bool:
        """A stranger attacks the run where its members were last told to be."""
        keys = self.folder / "run-keys"
        left_out = {*MEMBERS, *SERVED, *(() if keys.exists() else KEYED)}
        strangers = [name for name in ATTACKS if name not in left_out]
        name = strangers[(fault.number + sum(self.thrown.values())) % len(strangers)]
        try:
            place = json.loads((self.folder / "coordinator.json").read_text())
            members = json.loads((self.folder / "state.json").read_text())["members"]
            route = next(member["routes"][0] for member in members if member["routes"])
        except (OSError, ValueError, StopIteration):
            return False
        doors = {door: route[door] for door in ("experience", "weights", "acknowledgements")}
        known = {"http": place["http"], "policy": route["policy"], "keys": str(keys)}
        target = Target(place["address"], **doors, **known, seconds=fault.seconds)
        command = [*self.ground.on, sys.executable, "-m", "tests.chaos.attacks", name]
        attacker = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, MARK: f"{os.environ.get(MARK, '')}:{self.mark}".strip(":")},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._lasting.add(f"{name} {attacker.pid}", fault.seconds, partial(_end, attacker))
        assert attacker.stdin is not None
        with attacker.stdin as told:
            told.write(target.text().encode())
        self.say(f"  {name}")
        return True

    def _hit(
        self, popen: subprocess.Popen[bytes], role: str, number: int, what: signal.Signals, newest: bool = False
    ) -> int | None:
        """Sends a signal to a worker; its pid, None if there is none."""
        pid = self._target(popen, role, number, newest=newest)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, what)
                return pid
        return None

    def _target(self, popen: subprocess.Popen[bytes], role: str, number: int, *, newest: bool) -> int | None:
        there = self._workers(popen, role)
        return (there[-1] if newest else there[number % len(there)]) if there else None

    def _kill_all(self, popen: subprocess.Popen[bytes]) -> None:
        family = [
            popen.pid,
            *(pid for role in ROLES for pid in self._workers(popen, role)),
        ]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._lasting.undo(everything=True)  # who waits for a disk that does not answer dies when it does
        popen.wait()

    def _workers(self, popen: subprocess.Popen[bytes], role: str) -> list[int]:
        """The living workers of a role, or fork servers, oldest first."""
        found = []
        with suppress(psutil.Error):
            for child in psutil.Process(popen.pid).children():
                with suppress(psutil.Error):
                    if f"workers.{role}" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                        found.append((child.create_time(), child.pid))
        return [pid for _, pid in sorted(found)]

    def _ends(self) -> bool:
        """Whether the last steps are made."""
        with suppress(OSError):
            return "stage=actors_draining" in (self.folder / "logs" / "coordinator.log").read_text()
        return False

    def _wait(self, popen: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
        end = time.monotonic() + _PATIENCE
        while popen.poll() is None and time.monotonic() < end:
            self._tend(popen)
            if ready():
                return True
            time.sleep(0.02)
        return ready()

    def _sleep(self, popen: subprocess.Popen[bytes], seconds: float, early: Callable[[], bool] = lambda: False) -> None:
        end = time.monotonic() + seconds
        while popen.poll() is None and not early() and (left := end - time.monotonic()) > 0:
            time.sleep(min(0.05, left))
            self._tend(popen)

    def _count(self, kind: str, phase: str, role: str) -> None:
        self.thrown[f"{kind} {phase}"] += 1
        self.met[f"{kind} {role}"] += 1

    def _where(self, popen: subprocess.Popen[bytes]) -> str:
        roles = {role: self._workers(popen, role) for role in ROLES}
        return f"{roles} {self.said.read_text()[-500:]!r}"


def _end(attacker: subprocess.Popen[bytes]) -> None:
    attacker.kill()
    attacker.wait()


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _tells_what_to_do(line: str) -> bool:
    """Whether a run that ended early said why in a sentence."""
    return line.startswith("rookery: ") and "Traceback" not in line
