"""The commands that another program becomes: a worker, a tool."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from launch.local.process import python

BECOMES = {
    "actor": ("workers.actor", "One actor"),
    "learner": ("workers.learner", "One learner"),
    "relay": ("workers.relay", "One relay, for all workers of its node"),
    "evaluator": ("workers.evaluator", "The evaluator of a run that goes on"),
    "hooks": ("workers.hooks", "The hooks of a run that are told what happens to it"),
    "evaluate": ("workers.tools.evaluate", "Plays the policies of a run without exploring, and says what they earn"),
    "watch": (
        "workers.tools.watch",
        "Shows the policies of a run at play: in the terminal, as a film, as a map of visited cells",
    ),
    "play": ("workers.tools.play", "Lets a person play an agent, in a browser, with or against trained policies"),
    "page": ("workers.tools.page", "Shows the page of runs that are over, several beside each other"),
    "export": ("workers.tools.export", "Writes a policy of a run as a file that acts without it"),
    "dataset": ("workers.tools.dataset", "Writes what a run recorded as a dataset of Minari"),
    "bench": (
        "workers.tools.bench",
        "Measures this machine: transport, weights, rollout, learning, the whole pipeline",
    ),
    "bridge": ("launch.cli.bridge", "Lets simulators that run in a browser of this machine take part in a run"),
    "simulate": ("launch.cli.simulate", "A simulator to try the wire with, or a check of one"),
}
"""Command -> the module that it becomes, and what that does."""


def become(module: str, arguments: Sequence[str]) -> None:
    """Runs `module` as a program instead of this one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, python(module, *arguments))
