"""`python -m workers.evaluation`: evaluates a run while it goes on."""

from __future__ import annotations

from workers import all_imported
from workers.evaluator import main
from workers.runtime.process import worker_command

command = worker_command("evaluation", main)

if __name__ == "__main__":
    all_imported()
    command()
