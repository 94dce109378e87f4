"""The long form: `python -m tests.fuzz --count 1000000 --seed 1`."""

from __future__ import annotations

import secrets

import click

from tests.fuzz.run import fuzz


@click.command(help="Sends spoilt messages to the ends of the wire.")
@click.option("--count", default=1_000_000, show_default=True, help="Messages.")
@click.option("--seed", type=int, default=None, help="What makes them; another one each time by default.")
def main(count: int, seed: int | None) -> None:
    """Prints the count, the rate and what the worst message cost."""
    seed = secrets.randbelow(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    click.echo(str(fuzz(count, seed, lambda number: click.echo(f"{number} ..."))))


if __name__ == "__main__":
    main()
