"""The front door of the `rookery` command: a worker's becomes that worker at once, any other is `launch/cli/main.py`.

In flow: the command line. Out flow: another program in this process's place. To import the whole command first would
cost each worker a fifth of the processor time of its start.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from launch.local.process import python
from protocol.errors import told_in_a_sentence

__all__ = ["BECOMES", "become", "main"]

BECOMES = {
    "actor": ("workers.actor", "One actor"),
    "learner": ("workers.learner", "One learner"),
    "relay": ("workers.relay", "One relay, for all workers of its node"),
    "evaluation": ("workers.evaluator", "The evaluation of a run that goes on"),
    "evaluate": ("workers.tools.evaluate", "Plays the policies of a run without exploring, and says what they earn"),
    "watch": (
        "workers.tools.play",
        "Shows the policies of a run at play: in the terminal, as a film, as a map of visited cells",
    ),
    "export": ("workers.tools.export", "Writes a policy of a run as a file that acts without it"),
    "dataset": ("workers.tools.dataset", "Writes what a run recorded as a dataset of Minari"),
    "bench": (
        "workers.tools.bench",
        "Measures this machine: transport, weights, rollout, simulators, learning, the whole pipeline",
    ),
    "simulate": ("launch.cli.simulate", "A simulator to try the wire with, or a check of one"),
}
"""Command -> the module that it becomes, and what that does."""


def become(module: str, arguments: Sequence[str]) -> None:
    """Runs `module` as a program instead of this one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, python(module, *arguments))


def main() -> None:
    """The console command."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in BECOMES:
        with told_in_a_sentence():
            become(BECOMES[name][0], sys.argv[2:])
    gc.disable()  # all that is imported stays; to look for garbage in it takes a seventh of a short command's time
    from launch.cli.main import main as command

    gc.freeze()
    gc.enable()
    command(prog_name="rookery")


if __name__ == "__main__":
    main()
