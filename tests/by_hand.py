"""Starts a coordinator, two learners and an actor as a user does by hand, each told one address and the run's keys;
waits for the end.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.ports import choose_block
from tests.waiting import PATIENCE

_SMALL = ("--set", "steps=8000", "--set", "environment.copies=32", "--set", "baseline_episodes=8")


def main() -> int:
    """0 if every worker ended with 0."""
    base = choose_block()
    if base is None:
        raise SystemExit("no ten consecutive loopback ports are free between 20000 and 32000")
    program = shutil.which("rookery") or str(Path(sys.executable).parent / "rookery")
    address = f"tcp://127.0.0.1:{base}"
    with tempfile.TemporaryDirectory() as folder:
        run_dir = str(Path(folder) / "run")
        commands = [
            ["coordinator", "treasure-hunt", "--run-dir", run_dir, "--bind", f"127.0.0.1:{base}", *_SMALL],
            *([role, "--coordinator", address, "--keys", run_dir] for role in ("learner", "learner", "actor")),
        ]
        workers = [subprocess.Popen([program, *command]) for command in commands]
        codes = []
        for worker in workers:
            try:
                codes.append(worker.wait(timeout=PATIENCE))
            except subprocess.TimeoutExpired:
                worker.kill()
                codes.append(worker.wait())
    sys.stdout.write(f"exit codes: {codes}\n")
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
