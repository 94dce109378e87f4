"""What a configuration comes to, as `workers.tools.resources` says: the workers that whoever starts them has to start.

In flow: a configuration. Out flow: an `ResourcePlan`. The world is asked for by a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launch.local.process import python
from launch.run_dir import write_config
from protocol.config.run import Run
from protocol.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """`policies` that learn, names of learner processes, and bytes of shared memory of an actor and of the largest
    learner."""

    policies: list[str]
    learners: list[str]
    actor_memory: int
    learner_memory: int
    run_hooks: bool = False
    """Whether a hook is to be told what happens to the run."""


def outline_of(run: Run) -> ResourcePlan:
    """Raises ConfigurationError where the configuration does not fit its world."""
    with tempfile.TemporaryDirectory() as scratch:
        command = python("workers.tools.resources", str(write_config(run, Path(scratch))))
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ConfigurationError.heard(ended.stderr.strip().splitlines()[-1].removeprefix("rookery: "))
    return ResourcePlan(**json.loads(ended.stdout))
