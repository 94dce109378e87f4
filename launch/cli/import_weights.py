"""`rookery import`: has a process of its own read a file of torch's, and tells how that ended.

In flow: the command line. Out flow: what `workers/tools/import_weights.py` says, or that the file has killed it.
"""

from __future__ import annotations

import signal
import subprocess

import click

from launch.local.process import python
from protocol.errors import ConfigurationError


@click.command(
    name="import",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def import_weights(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Writes the weights in a file of torch's (.pt) as safetensors, which runs start from."""
    ended = subprocess.run(
        python("workers.tools.import_weights", *arguments), stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode < 0:
        raise ConfigurationError("import_crashed", reason=signal.Signals(-ended.returncode).name)
    click.echo(ended.stdout, nl=False)
    ctx.exit(ended.returncode)
