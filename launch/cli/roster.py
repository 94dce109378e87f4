"""`rookery roster`: what a run is told of its policies while it goes on, and what it was told so far.

In flow: where a run can be asked, and the words of a command. Out flow: the number of the command, once it is written
in the run's history, which the run then follows; or the history.
"""

from __future__ import annotations

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
from protocol.control.run_summary import read_summary
from protocol.errors import ConfigurationError, Refused, Timeout

_VALUED = ("set", "assign", "worlds")
"""Commands that put one value in place of another."""
_NOTHING: dict[str, Any] = {"rates": {}, "frozen": [], "agents": {}, "shares": {}, "added": {}, "retired": []}


def command(place: CoordinatorAddress, words: Sequence[str]) -> dict[str, Any]:
    """Its line of the history: its `number`, the `old` value and the `new` one, and more. ConfigurationError or Refused
    in one sentence, and nothing has changed; Timeout where nobody answers, and the history says whether the command is
    in it."""
    by = f"{os.environ.get('USER') or os.getuid()}@{platform.node()}"
    return _answered(place, {"words": [*words], "by": by})


def told(place: CoordinatorAddress) -> dict[str, Any]:
    """All `commands` that the run was given, and what they come to: learning `rates` that were set, and which policies
    are `frozen`, and which policies `agents` were given, and which `shares` of episodes members of a collection; which
    policies were `added`, and `retired`."""
    return _answered(place, None)


def _answered(place: CoordinatorAddress, asked: dict[str, Any] | None) -> dict[str, Any]:
    method, body = ("GET", None) if asked is None else ("POST", json.dumps(asked).encode())
    try:
        return dict(json.loads(ask(place, "roster", method, body)))
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
        return {"commands": _history(place.folder), **_NOTHING, **summary.get("roster", {})}
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
    "--json",
    "as_json",
    is_flag=True,
    help="Print that as JSON.",
)
def roster(source: str, words: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Changes policies, agents and environments of a run that goes on.

    Without a command it shows what the run was told so far.

    \b
    rookery roster runs/first                                     the history, and what holds now
    rookery roster runs/first set agent_0 learning_rate=0.0001    until it is set again
    rookery roster runs/first freeze agent_0                      it acts on, and learns nothing
    rookery roster runs/first thaw agent_0                        it learns again
    rookery roster runs/first assign agent_1 agent_0              from agent_1's next episode on agent_0 plays it
    rookery roster runs/first worlds hard share=3                 of all episodes, by the sum of all shares
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
        done = command(place, [*words[:3], *keys, *words[3:]])
        changed = f" (before: {done['old']})" if words[0] in _VALUED else ""
        click.echo(json.dumps(done) if as_json else f"command {done['number']}: {' '.join(words)}{changed}")
        return
    now = told(place)
    if as_json:
        click.echo(json.dumps(now))
        return
    for one in now["commands"]:
        new = f" = {one['new']}" if one["command"] in (*_VALUED, "add") else ""
        said = f"{one['number']:4} {one['time']} at step {one['agent_steps']:,} {one['command']} {one['key']}{new}"
        click.echo(f"{said}   by {one['by']} ({one['peer']})")
    rates = ", ".join(f"{name} {rate:g}" for name, rate in now["rates"].items())
    shares = ", ".join(f"{member} {share:g}" for member, share in now["shares"].items())
    given = ", ".join(f"{agent} to {policy}" for agent, policy in now["agents"].items())
    frozen = ", ".join(now["frozen"])
    added = ", ".join(name for name in now["added"] if name not in now["retired"])
    holds = f"learning rates set: {rates or 'none, all are as configured'}; frozen: {frozen or 'none'}"
    holds += f"; agents given: {given or 'none'}; shares set: {shares or 'none'}"
    click.echo(f"{holds}; added: {added or 'none'}; retired: {', '.join(now['retired']) or 'none'}")
