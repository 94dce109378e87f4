"""The long form: `python -m tests.fuzz --count 1000000 --seed 1`."""

from __future__ import annotations

import secrets

import click

from tests.fuzz.run import fuzz


@click.command(help="Sends spoilt messages to the ends of the wire, and has spoilt files read.")
@click.option("--count", default=1_000_000, show_default=True, help="Messages.")
@click.option("--files", default=200_000, show_default=True, help="Files: configurations and checkpoints.")
@click.option("--seed", type=int, default=None, help="What makes them; another one each time by default.")
def main(count: int, files: int, seed: int | None) -> None:
    """Prints the count, the rate and what the worst one cost."""
    seed = secrets.randbelow(2**31) if seed is None else seed
    click.echo(f"seed {seed}")

    def progress(number: int) -> None:
        click.echo(f"{number} ...")

    click.echo(f"messages: {fuzz(count, seed, progress)}")
    click.echo(f"files: {fuzz(files, seed, progress, files=True)}")


if __name__ == "__main__":
    main()
