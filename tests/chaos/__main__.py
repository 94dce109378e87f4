"""`make chaos [MINUTES=n] [SEED=s]`: runs under faults until the time is over, then a table. Exit code 1: findings."""

from __future__ import annotations

import secrets
import signal
import sys

import click

from tests.chaos.kit import chaos


@click.command(help="Throws faults at training runs and balances their books.")
@click.option("--minutes", default=5.0, show_default=True, help="No run is begun after so many.")
@click.option("--seed", type=int, default=None, help="What chooses the faults; another one each time by default.")
@click.option("--world", "worlds", multiple=True, help="Only these runs; may be repeated.")
@click.option("--scale", default=1.0, show_default=True, help="Of the length of each run.")
@click.option("--pause", default=0.7, show_default=True, help="Seconds of peace between two faults, on average.")
@click.option("--seconds", default=90.0, show_default=True, help="How long faults are thrown at a run.")
@click.option("--keep", default=None, help="A folder that a run with findings is copied to.")
def main(
    minutes: float,
    seed: int | None,
    worlds: tuple[str, ...],
    scale: float,
    pause: float,
    seconds: float,
    keep: str | None,
) -> None:
    """Prints what was thrown and what was found."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # mounts and workers are cleared away in any case
    seed = secrets.randbelow(2**31) if seed is None else seed
    report = chaos(minutes, seed, click.echo, worlds, scale=scale, keep=keep, pause=pause, seconds=seconds)
    click.echo(report.table())
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
