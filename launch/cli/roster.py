"""`rookery roster`: what a run is told of its policies while it goes on, and what it was told so far.

In flow: where a run can be asked, and the words of a command. Out flow: the number of the command, once it is written
in the run's history, which the run then follows; or the history.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import platform
import urllib.error
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from launch.cli.status import CoordinatorAddress, ask, find, refusal
from protocol.config.yaml_file import read_mapping
from protocol.control.run_summary import NO_COMMANDS, read_summary
from protocol.errors import ConfigurationError, Refused, Timeout

_PART = 60_000
"""Bytes of a file that are sent at a time."""
_SECONDS = 150.0
"""For an answer: some commands are tried first, in a process of their own."""
_VALUED = ("set", "assign", "worlds")
"""Commands that put one value in place of another."""


def command(place: CoordinatorAddress, words: Sequence[str], weights: Path | None = None) -> dict[str, Any]:
    """Its line of the history: its `number`, the `old` value and the `new` one, and more; `weights`: the file that goes
    with it, or the folder of a checkpoint. ConfigurationError or Refused in one sentence, and nothing has changed;
    Timeout where nobody answers, and the history says whether the command is in it."""
    by = f"{os.environ.get('USER') or os.getuid()}@{platform.node()}"
    sent = {} if weights is None else {"weights": _send(place, weights)}
    return _answered(place, "roster", json.dumps({"words": [*words], "by": by, **sent}).encode())


def _send(place: CoordinatorAddress, path: Path) -> str:
    """The SHA-256 of a file, which the run has got then, part by part."""
    path = path / "weights.safetensors" if path.is_dir() else path
    try:
        with path.open("rb") as file:
            sha256, size, at = hashlib.file_digest(file, "sha256").hexdigest(), file.tell(), 0
            while at < size:
                file.seek(at)
                if not (part := file.read(_PART)):
                    raise OSError(errno.EIO, "it became shorter while it was sent")
                at = _answered(place, f"weights?sha256={sha256}&offset={at}", part)["size"]
    except OSError as fault:
        raise ConfigurationError("start_not_safetensors", key="--from", file=path, reason=fault.strerror) from None
    return sha256


def told(place: CoordinatorAddress) -> dict[str, Any]:
    """All `commands` that the run was given, and what they come to: learning `rates` that were set, and which policies
    are `frozen`, and which policies `agents` were given, and which `shares` of episodes and `settings` members of a
    collection; which policies were `added`, `retired`, and given other weights (`replaced`), and which
    `members` a league's library was given."""
    return _answered(place, "roster", None)


def _answered(place: CoordinatorAddress, what: str, asked: bytes | None) -> dict[str, Any]:
    try:
        answer = ask(place, what) if asked is None else ask(place, what, "POST", asked, _SECONDS)
        return dict(json.loads(answer))
    except urllib.error.HTTPError as fault:
        code, _, said = refusal(fault).partition(": ")
        if code == "400":
            raise ConfigurationError.heard(said) from None
        if code == "409":
            raise Refused.heard(said) from None
        if (summary := _summary(place)) is None:
            raise Refused("coordinator_answer_unusable", peer=place.url, reason=f"{code}: {said}") from None
    except (OSError, ValueError, http.client.HTTPException):
        summary = _summary(place)
    if summary is not None and asked is not None:
        raise Refused("roster_run_is_ending")
    if summary is not None and place.folder is not None:
        return {"commands": _history(place.folder), **NO_COMMANDS, **summary.get("roster", {})}
    if asked is not None and place.url:
        raise Timeout("roster_command_unanswered", peer=place.url)
    raise Timeout("coordinator_silent", peer=place.url or f"{place.folder}, a run in one process")


def _summary(place: CoordinatorAddress) -> dict[str, Any] | None:
    """What the run left, if it is over."""
    return None if place.folder is None else read_summary(place.folder)


def _history(folder: Path) -> list[dict[str, Any]]:
    """The commands in the history of a run that is over."""
    path = folder / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if "number" in line]


@click.command()
@click.argument("source", metavar="RUN-FOLDER|URL")
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With add: a YAML file with the section of the policy; KEY=VALUE goes before it.",
)
@click.option(
    "--from",
    "weights",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="With add, member and replace: weights (safetensors), or the folder of a checkpoint; its bytes are sent.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print that as JSON.",
)
def roster(source: str, words: tuple[str, ...], config: Path | None, weights: Path | None, as_json: bool) -> None:
    """Changes policies, agents and environments of a run that goes on.

    Without a command it shows what the run was told so far.

    \b
    rookery roster runs/first                                     the history, and what holds now
    rookery roster runs/first set agent_0 learning_rate=0.0001    until it is set again
    rookery roster runs/first freeze agent_0                      it acts on, and learns nothing
    rookery roster runs/first thaw agent_0                        it learns again
    rookery roster runs/first replace agent_0 --from runs/other/checkpoints/agent_0/900   other weights
    rookery roster runs/first member agent_0 --from runs/other/checkpoints/agent_0/900    one more in a league's library
    rookery roster runs/first assign agent_1 agent_0              from agent_1's next episode on agent_0 plays it
    rookery roster runs/first worlds hard share=3                 of all episodes, by the sum of all shares
    rookery roster runs/first worlds hard width=9                 a setting, from the next episodes on
    rookery roster runs/first add third agent_1 algorithm.name=dqn   a new policy with the spaces of agent_1
    rookery roster runs/first retire agent_1                      a policy without agents goes, its checkpoints stay

    Of an added policy, KEY=VALUE are keys of its section, as in policies.third of a configuration. It plays nothing
    until an agent is assigned to it. Nothing is started again, and nobody waits. A command that cannot be followed is
    refused in one sentence.
    """
    place = find(source)
    if words:
        section = {} if config is None else read_mapping(config)
        if config is not None and words[0] != "add":
            raise click.UsageError("--config goes with add alone.")
        try:
            keys = [f"{key}={json.dumps(value)}" for key, value in section.items()]
        except TypeError:  # a date
            raise ConfigurationError("roster_setting_malformed", value=str(config)) from None
        done = command(place, [*words[:3], *keys, *words[3:]], weights)
        changed = f" (before: {done['old']})" if words[0] in _VALUED else ""
        click.echo(json.dumps(done) if as_json else f"command {done['number']}: {' '.join(words)}{changed}")
        return
    now = told(place)
    if as_json:
        click.echo(json.dumps(now))
        return
    for one in now["commands"]:
        new = f" = {one['new']}" if one["command"] in (*_VALUED, "add", "replace", "member") else ""
        said = f"{one['number']:4} {one['time']} at step {one['agent_steps']:,} {one['command']} {one['key']}{new}"
        click.echo(f"{said}   by {one['by']} ({one['peer']})")
    rates = ", ".join(f"{name} {rate:g}" for name, rate in now["rates"].items())
    shares = ", ".join(f"{member} {share:g}" for member, share in now["shares"].items())
    given = ", ".join(f"{agent} to {policy}" for agent, policy in now["agents"].items())
    settings = ", ".join(f"{name} {one}" for name, one in now["settings"].items())
    members = ", ".join(one["member"] for each in now["members"].values() for one in each)
    frozen, replaced = ", ".join(now["frozen"]), ", ".join(now["replaced"])
    added = ", ".join(name for name in now["added"] if name not in now["retired"])
    holds = f"learning rates set: {rates or 'none, all are as configured'}; frozen: {frozen or 'none'}"
    holds += f"; agents given: {given or 'none'}; shares set: {shares or 'none'}"
    holds += f"; settings: {settings or 'as configured'}; weights replaced: {replaced or 'none'}"
    holds += f"; members added: {members or 'none'}"
    click.echo(f"{holds}; added: {added or 'none'}; retired: {', '.join(now['retired']) or 'none'}")
