"""Which worker runs on which host, and by which command: the plan that ssh, Slurm and `--dry-run` have in common. Pure.

In flows: a HOSTS.yaml, what its run comes to. Out flow: commands, the coordinator's first.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from launch.run_plan import ResourcePlan
from protocol.config.base import ConfigModel
from protocol.config.run import Run
from protocol.config.yaml_file import parsed, read_mapping
from protocol.errors import ConfigurationError
from protocol.spaces import Label
from protocol.transport.ports import BLOCK
from protocol.transport.sockets import bracketed

COORDINATOR, _LEARNER, _HOOKS, _EVALUATION, _RELAY, _ACTOR = 5600, 5610, 6180, 6190, 6200, 6210
"""First ports of each role on a host; a block for each worker."""


def _no_home(path: str) -> str:
    if path.startswith("~"):
        raise ConfigurationError("path_with_home_sign", value=path)
    return str(PurePosixPath(path))


def no_option(name: str) -> str:
    """Of what ssh is told."""
    if name.startswith("-"):
        raise ConfigurationError("ssh_name_like_option", value=name)
    return name


There = Annotated[str, Field(min_length=1), AfterValidator(_no_home)]
"""A path on a host, which every shell gets in quotes."""


class Host(ConfigModel):
    """One machine."""

    ssh: Annotated[str, AfterValidator(no_option)] = ""
    """Where `ssh` goes, as it is called in ~/.ssh/config or USER@HOST; empty: its name here."""
    address: str = ""
    """By which the others reach it; empty: its name here."""
    gpus: int = Field(default=0, ge=0)
    learners: bool | None = None
    """Whether learners run here; null: where there are GPUs, or else on the first host."""
    actors: int = Field(default=0, ge=0)
    folder: There = "."
    """Where the commands are started, from the home directory."""
    rookery: str = "rookery"
    """The command there, as /opt/rookery/bin/rookery."""
    cpus: int = Field(default=1, ge=1)
    """Cores for each learner here; Slurm gives them, others leave it at that."""


class Hosts(ConfigModel):
    """A run on several machines. The coordinator is on the first, where the run's folder lies."""

    run: str = "treasure-hunt"
    """A preset or a file."""
    set: list[str] = Field(default_factory=list)
    """Changes to it, as of --set."""
    folder: There = "runs/hosts"
    """The run's folder, seen from the first host's."""
    keys: There = "keys"
    """Keys as `rookery keys new` makes, here and, once copied, on every host."""
    insecure_ranks: bool = False
    """Let the ranks of a policy talk by torch.distributed, which knows no keys: where every machine is trusted."""
    hosts: dict[Label, Host]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.hosts:
            raise ConfigurationError("hosts_file_empty", key="hosts")
        return self


@dataclass(frozen=True, slots=True)
class Command:
    """One worker: what is started on `host`, in `folder`."""

    host: str
    role: str
    name: str
    folder: str
    words: tuple[str, ...]
    gpu: int | None = None

    @property
    def line(self) -> str:
        """For a shell there."""
        seen = f"CUDA_VISIBLE_DEVICES={self.gpu} " if self.gpu is not None else ""
        return f"cd {shlex.quote(self.folder)} && {seen}exec {shlex.join(self.words)}"


def read_hosts(path: Path) -> Hosts:
    """Raises ConfigurationError, in one sentence."""
    return parsed(path, read_mapping(path), Hosts)


def plan(hosts: Hosts, run: Run, outline: ResourcePlan) -> list[Command]:
    """Learners go in turn to the hosts for learners, each to a GPU of its own while there are any; a host with several
    actors and no learner gets a relay, unless a policy has ranks, which no relay tells apart. Raises ConfigurationError
    where hosts and configuration do not fit."""
    first = next(iter(hosts.hosts))
    actors = sum(host.actors for host in hosts.hosts.values())
    if actors > run.actors:
        raise ConfigurationError("too_many_actors", count=actors, limit=run.actors, key="actors")
    if run.actors and not actors:
        raise ConfigurationError("hosts_without_actors", key="hosts")
    if actors < run.actors:
        raise ConfigurationError("hosts_with_too_few_actors", count=actors, limit=run.actors)
    ranked = next((name for name in outline.policies if run.ranks(name) > 1), "")
    if ranked and not hosts.insecure_ranks:
        raise ConfigurationError("ranks_without_keys", policy=ranked, key="insecure_ranks: true")
    made = [_coordinator(hosts, first)]
    made += _learners(hosts, outline.learners, ["--insecure"] if ranked else [])
    if run.evaluation is not None:  # beside the coordinator, whose folder it writes to
        made.append(_worker(hosts, first, "evaluator", "evaluator-0", _EVALUATION))
    if run.hooks:
        made.append(_worker(hosts, first, "hooks", "hooks", _HOOKS))
    where = {command.host for command in made if command.role == "learner"}
    count = itertools.count()
    for name, host in hosts.hosts.items():
        if host.actors > 1 and name not in where and run.transport == "auto" and not ranked:
            called = f"relay-{name}"
            made.append(_worker(hosts, name, "relay", called, _RELAY, "--name", called))
        for number in range(host.actors):
            called = f"actor-{next(count)}"
            made.append(_worker(hosts, name, "actor", called, _ACTOR + number * BLOCK, "--name", called))
    return made


def _learners(hosts: Hosts, names: Sequence[str], more: Sequence[str]) -> list[Command]:
    for_learners = {name: host for name, host in hosts.hosts.items() if host.learners}
    with_gpus = {name: host for name, host in hosts.hosts.items() if host.gpus and host.learners is not False}
    chosen: Mapping[str, Host] = for_learners or with_gpus or dict([next(iter(hosts.hosts.items()))])
    made, here = [], dict.fromkeys(chosen, 0)
    for index, called in enumerate(names):
        name = list(chosen)[index % len(chosen)]
        number, gpus = here[name], chosen[name].gpus
        here[name] += 1
        named, gpu = ("--name", called), number % gpus if gpus else None
        made.append(_worker(hosts, name, "learner", called, _LEARNER + number * BLOCK, *more, *named, gpu=gpu))
    return made


def _coordinator(hosts: Hosts, name: str) -> Command:
    host = hosts.hosts[name]
    words = [host.rookery, "coordinator", f"{hosts.folder}.yaml", "--run-dir", hosts.folder]
    return Command(name, "coordinator", "coordinator", host.folder, (*words, *_at(hosts, name, COORDINATOR)))


def _worker(hosts: Hosts, name: str, role: str, called: str, port: int, *more: str, gpu: int | None = None) -> Command:
    host, (first, coordinator) = hosts.hosts[name], next(iter(hosts.hosts.items()))
    words = [host.rookery, role, "--coordinator", f"tcp://{bracketed(coordinator.address or first)}:{COORDINATOR}"]
    return Command(name, role, called, host.folder, (*words, *_at(hosts, name, port), *more), gpu)


def _at(hosts: Hosts, name: str, port: int) -> list[str]:
    """Where it listens, how others reach it, and its keys."""
    bind, known = ["--bind", f"{_everywhere(hosts)}:{port}"], ["--advertise", hosts.hosts[name].address or name]
    return [*bind, *known, "--keys", hosts.keys]


def _everywhere(hosts: Hosts) -> str:
    """All addresses of a host: of both kinds where any is given as IPv6."""
    return "[::]" if any(":" in host.address for host in hosts.hosts.values()) else "0.0.0.0"


def as_plain(commands: list[Command]) -> list[dict[str, Any]]:
    """For whoever starts them by other means."""
    return [{"host": c.host, "role": c.role, "name": c.name, "command": c.line} for c in commands]
