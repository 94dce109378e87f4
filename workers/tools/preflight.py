"""`rookery doctor` before a run: whether this machine can carry it.

python -m workers.tools.preflight config.yaml --run-dir runs/first

In flow: a configuration, and what it will be started with. Out flow: a line for each thing looked at, with what to do
about it; exit code 1 if something would end the run.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Literal

import click
import torch
from packaging.requirements import Requirement

from protocol import RELEASE
from protocol.config.run import Run
from protocol.config.yaml_file import read_run
from protocol.control.processors import available_cores
from protocol.control.wording import shown
from protocol.errors import ConfigurationError, RookeryError, one_sentence
from protocol.errors.distribution import DISTRIBUTION
from protocol.experience.ring_buffer import ring_size
from protocol.memory.shared_file import files, memory_dir
from protocol.spaces import World
from protocol.transport.curve import ROLES, Keys
from protocol.transport.ports import BLOCK, LAST_BASE
from workers import freeze_startup_objects
from workers.algorithms.build import try_algorithm
from workers.environments.registry import describe
from workers.learning.device import choose_device
from workers.metrics.diagnostics import findings_of
from workers.planning.auxiliary_plan import plan_learners
from workers.planning.cohorts import kinds_of, learners_of
from workers.planning.foreseen import expected_lag, expected_passes, expected_updates, foreseen
from workers.planning.policy_plan import PolicyPlan, TrainingPlan
from workers.policies.build import build
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.last_words import watch_user_code
from workers.runtime.torch_setup import Precision

_MIB = 2**20
_SPACE = 1024 * _MIB
"""Bytes below which the disk of a run's folder is worth a word."""
_SKEW = 2.0
"""Seconds by which a file server's clock may differ."""
_DESCRIPTORS = 128
"""What a worker needs for itself; every connection and every shared file comes on top."""
State = Literal["ok", "note", "FAILS"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    state: State
    says: str

    @property
    def line(self) -> str:
        """For people."""
        return f"  {self.name:12} {self.state:10} {self.says}".rstrip()


@dataclass(frozen=True)
class RunContext:
    """What a run would be started with; `base` is the coordinator's port, 0 if any will do."""

    run: Run
    folder: Path
    host: str = "127.0.0.1"
    base: int = 0
    keys: Path | None = None

    @cached_property
    def world(self) -> World:
        """Learned from one copy; ConfigurationError if there can be none."""
        return describe(self.run.environment, self.run.lockstep_checkpoints)

    @cached_property
    def plans(self) -> dict[str, TrainingPlan]:
        """Of all that learns; ConfigurationError where configuration and world do not fit."""
        return plan_learners(self.run, self.world)


def preflight(situation: RunContext) -> Iterator[Check]:
    """Every check, the cheap ones first; a check that finds its subject missing says so as its finding."""
    shown = set[str]()
    for name, look in CHECKS.items():
        try:
            state, says = look(situation)
        except RookeryError as fault:
            if fault.traceback not in shown:
                sys.stderr.write(fault.traceback)
            shown.add(fault.traceback)
            state, says = "FAILS", fault.coded
        yield Check(name, state, says)


def packages(_: RunContext) -> tuple[State, str]:
    """What this release asks for is installed in the releases it allows."""
    try:
        needed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ("note", f"{DISTRIBUTION} is not installed, so nothing says what it needs: run pip install -e .")
    wrong = []
    for text in needed:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found == "missing" or not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name} is {found}, and {wanted.specifier or 'any'} is wanted")
    if wrong:
        return "FAILS", f"{'; '.join(wrong)}: run pip install -e . again"
    return "ok", f"rookery {RELEASE}, Python {sys.version.split()[0]}, torch {torch.__version__}"


def spaces(situation: RunContext) -> tuple[State, str]:
    """The environment can be made, and its agents and the policies fit each other."""
    agents = ", ".join(place.name for place in situation.world.places)
    return "ok", f"{situation.world.id}: agents {agents}; learners for {', '.join(situation.plans) or 'none'}"


def memory(situation: RunContext) -> tuple[State, str]:
    """All rings fit into the memory file system; each is reserved at once when it is made."""
    run, where = situation.run, memory_dir()
    needed = sum(ring_size(plan.layout, plan.blocks * plan.block) for plan in situation.plans.values()) * run.actors
    free = shutil.disk_usage(where).free
    says = f"rings take {shown(needed / _MIB)} MiB, {shown(free / _MIB)} MiB are free in {where}"
    if needed > free and run.transport != "tcp":
        remedy = "enlarge it, set ROOKERY_MEMORY, or lower environment.copies, actors, credits or buffer_capacity"
        return "FAILS", f"{says}: {remedy}"
    if left := len(list(files())):
        return ("note", f"{says}; {left} files of other runs lie there: `rookery clean` removes those that nobody uses")
    return "ok", says


def training(situation: RunContext) -> tuple[State, str]:
    """How often each policy will be updated, how often with each row, and how old that may be; what can be foreseen to
    keep it from learning."""
    run, world, says = situation.run, situation.world, []
    for name, plan in situation.plans.items():
        rows = run.end * plan.fraction_of_steps(world)
        updates, passes, lag = (expect(plan, rows) for expect in (expected_updates, expected_passes, expected_lag))
        often = f"about {shown(updates, 3)} updates, with each row {shown(passes, 2)} times"
        says.append(f"{name}: {often}, by weights of up to {math.ceil(lag)} versions ago")
    found = findings_of(situation.plans, {}, of_run=foreseen(situation.plans, world, run))
    if not found:
        return "ok", "; ".join(says) or "nothing learns"
    says += [f"{one['policy']}: {one['says']}; {one['remedy']}" for one in found]
    return "note", "; ".join(says)


def limits(situation: RunContext) -> tuple[State, str]:
    """The limit of open files carries the connections of the busiest worker."""
    run = situation.run
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    policies = max(1, len(situation.run.policies))
    needed = _DESCRIPTORS + 8 * (run.actors + policies)
    says = f"{soft} open files are allowed, about {needed} are needed"
    if soft != resource.RLIM_INFINITY and soft < needed:
        return "FAILS", f"{says}: run ulimit -n {needed if hard < 0 else min(hard, 2 * needed)} first"
    return "ok", says


def ports(situation: RunContext) -> tuple[State, str]:
    """The coordinator's block of ports is free."""
    host, base = situation.host, situation.base
    if not base:
        return "ok", f"any free block of {BLOCK} ports will be taken on {host}"
    if base > LAST_BASE:
        return "FAILS", f"there is no block of {BLOCK} ports at {base}: choose a base of at most {LAST_BASE}"
    with ExitStack() as stack:
        for port in range(base, base + BLOCK):
            try:
                family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                one = stack.enter_context(socket.socket(family[0]))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(family[4])
            except (OSError, OverflowError) as fault:
                return "FAILS", f"port {port} of {host} cannot be bound ({fault}): stop what uses it, or give --bind"
    return "ok", f"ports {base} to {base + BLOCK - 1} of {host} are free"


def keys(situation: RunContext) -> tuple[State, str]:
    """Keys are whole, belong together and are nobody else's to read; without keys nobody outside is let in."""
    folder = situation.keys
    if folder is None:
        return "ok", "none: sockets stay on loopback"
    own = [role for role in ROLES if (folder / f"{role}.secret").exists()]
    if not own:
        return "FAILS", f"{folder} has no secret of any role: make keys with `rookery keys new {folder}`, or copy them"
    for role in own:
        Keys.load(folder, role)
    return "ok", f"{folder} has the secrets of {', '.join(own)}"


def disk(situation: RunContext) -> tuple[State, str]:
    """The run's folder can be written, has room, and its file server keeps our time."""
    place = situation.folder
    while not place.exists():
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place) as probe:
            probe.write(b"x")
            probe.flush()
            os.fsync(probe.fileno())
            skew = os.stat(probe.name).st_mtime - time.time()
    except OSError as fault:
        return "FAILS", f"{place} cannot be written ({fault.strerror}): give another --run-dir"
    free = shutil.disk_usage(place).free
    says = f"{shown(free / _MIB)} MiB are free in {place}"
    if abs(skew) > _SKEW:
        return "note", f"{says}, whose clock is {skew:+.1f} s from this machine's: set both by NTP, or times mislead"
    if free < _SPACE:
        return "note", f"{says}: checkpoints may not fit; lower keep_checkpoints or give another --run-dir"
    return "ok", says


def losses(situation: RunContext) -> tuple[State, str]:
    """Networks and algorithms of the user's own can be imported and built, and make an update."""
    run = situation.run
    where = Precision(run.precision), choose_device(run, 0)
    for plan in situation.plans.values():
        if isinstance(plan, PolicyPlan) and plan.config.network.entries:
            build(plan.interface, plan.config, 0)
    tried = {
        name: try_algorithm(plan.interface, plan.config, *where, run.lockstep or plan.recorded)
        for name, plan in situation.plans.items()
    }
    return "ok", "; ".join(f"{name}: {told}" for name, told in tried.items() if told) or "all are Rookery's own"


def cores(situation: RunContext) -> tuple[State, str]:
    """As many cores as workers that compute, or a word that they take turns."""
    there = available_cores()
    run = situation.run.on_cores(there)
    learners = len(learners_of(run, [*situation.plans], kinds_of(situation.plans)))
    busy = learners + run.actors * max(1, run.environment.processes)
    says = f"{busy} processes compute, on {there:g} cores"
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None and threads != "1":
        return "note", f"{says}; OMP_NUM_THREADS is {threads}: unset it, as each worker computes in one thread"
    if busy > 2 * there:
        return "note", f"{says}: they take turns; set num_learner_processes: {max(1, int(there))} or fewer actors"
    return "ok", says


def device(situation: RunContext) -> tuple[State, str]:
    """The device that is asked for is there; one that is there and not asked for is worth a word."""
    chosen = choose_device(situation.run, 0)
    if chosen.type == "cpu" and torch.cuda.is_available():
        return "note", f"learners compute on the CPU, and {torch.cuda.get_device_name(0)} is idle: set device: auto"
    return "ok", f"learners compute on {torch.cuda.get_device_name(chosen) if chosen.type == 'cuda' else chosen.type}"


CHECKS: dict[str, Callable[[RunContext], tuple[State, str]]] = {
    "packages": packages,
    "limits": limits,
    "ports": ports,
    "keys": keys,
    "disk": disk,
    "device": device,
    "spaces": spaces,
    "losses": losses,
    "memory": memory,
    "cores": cores,
    "training": training,
}


@click.command(name="preflight", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), help="Of the run.")
@click.option("--bind", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Of the coordinator.")
@click.option("--keys", "folder", envvar="ROOKERY_KEYS", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def main(config: Path, run_dir: Path, bind: str, folder: Path | None, as_json: bool) -> None:
    """Says whether this machine can carry the run of CONFIG."""
    add_cwd_to_path()
    watch_user_code()
    with one_sentence():
        host, _, port = bind.rpartition(":")
        if not port.isdigit():
            raise ConfigurationError("bind_not_host_port", value=bind)
        found = []
        for check in preflight(RunContext(read_run(config), run_dir, host.strip("[]"), int(port), folder)):
            found.append(check)
            if not as_json:
                click.echo(check.line)
    if as_json:
        click.echo(json.dumps({"checks": [asdict(check) for check in found]}))
    sys.exit(1 if any(check.state == "FAILS" for check in found) else 0)


if __name__ == "__main__":
    freeze_startup_objects()
    main()
