"""`rookery keys`."""

from __future__ import annotations

from pathlib import Path

import click

from protocol.errors import one_sentence
from protocol.simulator.connection import addresses_of, ended
from protocol.transport.curve import ROLES, connect_string, new_keys, revoke


@click.group()
def keys() -> None:
    """Keys with which workers on several machines know each other."""


@keys.command("new")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def make_keys(folder: Path) -> None:
    """Makes a pair of keys for every role in DIR.

    \b
    rookery keys new keys
    rookery coordinator --keys keys --bind 0.0.0.0:5600
    rookery learner --keys keys --coordinator tcp://trainer:5600 --bind 0.0.0.0:5610 --advertise gpu-1

    A machine needs all *.public files and the *.secret files of the roles that run on it.
    """
    with one_sentence("another DIR"):
        for path in new_keys(folder):
            click.echo(f"wrote {path}")


@keys.command("revoke")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("role", type=click.Choice(ROLES))
def revoke_keys(folder: Path, role: str) -> None:
    """Makes a new pair for ROLE in DIR, a folder of keys or of a run: whoever has the old one is hung up on and let in
    no more, in a living run either.

    Copy ROLE.public to each machine that has the keys. Of a run's own keys only the simulators' can be made anew.
    """
    with one_sentence("another DIR"):
        for path in revoke(folder, role):
            click.echo(f"wrote {path}")
        if role == "simulator" and not ended(folder):  # whoever has the strings that were told is outside now
            for address in addresses_of(folder):
                click.echo(f"simulators connect to {connect_string(address, folder)}")
