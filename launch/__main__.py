"""The `rookery` command: one that is a worker's becomes that worker at once, any other is launch/cli/main.py.

In flow: the command line. Out flow: another program in this process's place. To import the whole command first would
cost each worker a fifth of the processor time of its start.
"""

from __future__ import annotations

import gc
import sys

from launch import packages

try:
    packages.check()
except ValueError:
    from protocol.errors import one_sentence

    with one_sentence():
        raise

from launch.cli.exec import BECOMES, become
from protocol.errors import one_sentence


def main() -> None:
    """The console command."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in BECOMES:
        with one_sentence():
            become(BECOMES[name][0], sys.argv[2:])
    gc.disable()  # all that is imported stays; to look for garbage in it takes a seventh of a short command's time
    from launch.cli.main import main as command

    gc.freeze()
    gc.enable()
    command(prog_name="rookery")


if __name__ == "__main__":
    main()
