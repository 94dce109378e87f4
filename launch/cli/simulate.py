"""`rookery simulate`: simulators for trying the wire, and checks of an actor or a simulator that somebody wrote.

In flow: an endpoint, or a port. Out flow: steps that were played; a line for each check.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import gymnasium
import yaml

from protocol.clients.python import cartpole, noise
from protocol.conformance import Finding, check_server, check_simulator
from protocol.errors import ConfigurationError, WireError, one_sentence
from protocol.simulator.connection import ended
from protocol.simulator.serve import serve
from protocol.spaces import World, parse_world
from protocol.spaces.gymnasium import world_from_gymnasium
from protocol.transport.sockets import check_bind

_GYMNASIUM = "gymnasium:"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", default="", metavar="[cartpole | noise | gymnasium:ID]")
@click.option("--connect", default="", metavar="ENDPOINT", help="Play at a run's folder, or at what the run printed.")
@click.option("--name", default="sim-0", show_default=True, help="The simulator's identity.")
@click.option("--episodes", type=click.IntRange(min=1), help="Then leave; else play until the run is over.")
@click.option("--conform", default="", metavar="ENDPOINT", help="Check the actor that serves there.")
@click.option("--listen", default="", metavar="HOST:PORT", help="Check the simulator that connects to this port.")
@click.option(
    "--world", default="gymnasium:CartPole-v1", show_default=True, help="Of --listen: gymnasium:ID, or a file."
)
@click.option("--patience", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds to wait.")
@click.option("--keys", default="", metavar="DIR", help="Keys, as `rookery keys new` makes, or of the run in DIR.")
def simulate(
    what: str,
    connect: str,
    name: str,
    episodes: int | None,
    conform: str,
    listen: str,
    world: str,
    patience: float,
    keys: str,
) -> None:
    """A simulator for trying the wire; or checks of an actor, or of a simulator of your own.

    \b
    rookery simulate cartpole --connect runs/carts
    rookery simulate noise --connect 'tcp://…?keys=…'            any world, seen at random
    rookery simulate --conform runs/carts                        plays by the rules, then breaks each
    rookery simulate --listen 127.0.0.1:5700 --world train.yaml  and start your simulator

    --conform wants two free copies, and its steps are trained on: give it a run of its own.
    """
    if sum(map(bool, (connect, conform, listen))) != 1 or bool(what) != bool(connect):
        raise ConfigurationError("simulate_options_conflict")
    if connect:
        played = _play(what, connect, name, episodes, keys)
        click.echo(f"{name}: {played}{'; the run has ended' if ended(connect) else ''}")
        return
    if conform:
        findings = check_server(conform, keys, patience)
    else:
        keys = keys or os.environ.get("ROOKERY_KEYS", "")
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError("listen_address_invalid", value=listen)
        check_bind(host, keys, insecure=False)
        findings = check_simulator(host, int(port), _world(world), _say_where, keys, patience)
    sys.exit(_tell(findings))


def _say_where(address: str) -> None:
    click.echo(f"listens at {address}")


def _tell(findings: Iterable[Finding]) -> int:
    """Prints each as it comes; the exit code."""
    wrong = 0
    for finding in findings:
        click.echo(str(finding))
        wrong += not finding.good
    click.echo("all holds" if not wrong else f"{wrong} of what must hold does not")
    return min(wrong, 1)


def _play(what: str, endpoint: str, name: str, episodes: int | None, keys: str) -> str:
    if what.startswith(_GYMNASIUM):
        environment = _environment(what)
        return f"{serve(environment, endpoint, name, episodes=episodes, keys=keys)} episodes"
    simulators = {"cartpole": cartpole.main, "noise": noise.main}
    if what not in simulators:
        raise ConfigurationError("simulator_unknown", value=what)
    return f"{simulators[what](endpoint, name, episodes, keys)} steps"


def _environment(what: str) -> Any:
    try:
        return gymnasium.make(what.removeprefix(_GYMNASIUM))
    except gymnasium.error.Error as fault:
        raise ConfigurationError("gymnasium_not_made", value=what, reason=str(fault)) from None


def _world(what: str) -> World:
    if what.startswith(_GYMNASIUM):
        environment = _environment(what)
        return world_from_gymnasium(what, environment.observation_space, environment.action_space)
    try:
        told = yaml.safe_load(Path(what).read_text())
        if "environment" in told:  # a run's configuration
            told = told["environment"]["settings"]["world"]
        return _world(told) if isinstance(told, str) and told != what else parse_world(json.dumps(told))
    except (OSError, KeyError, TypeError, yaml.YAMLError, WireError) as fault:
        said = " ".join(str(fault).split())
        raise ConfigurationError("world_file_invalid", file=what, reason=said) from None


def main() -> None:
    """The command; every error of ours is one sentence and its own exit code."""
    with one_sentence():
        simulate(prog_name="rookery simulate")


if __name__ == "__main__":
    main()
