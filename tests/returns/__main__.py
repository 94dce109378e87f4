"""`make returns`: what each algorithm earns on each task, as it comes and with published hyperparameters.

Every cell is a run of `rookery train`, then of `rookery evaluate`. Its line is added to `returns.jsonl` as soon as it
is there, and the next start goes on behind it; `TABLE.md` is made of these lines.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from protocol.config.run import parse_run
from tests.learning.test_league import exploited_in_poker
from tests.playing import baselines
from tests.returns.cells import SEEDS, Cell, Task, pairs
from tests.returns.table import HERE, RESULTS, read, table
from tests.tools import ROOT
from tests.workers.league.exploitability import exploitability
from tests.workers.league.games import strategy_of, tree_of
from workers.environments.adapters.openspiel_adapter import load_game

EPISODES, EPISODE_SEED = 100, 20_000
LIMIT = 1_200.0
"""Seconds that a cell may take."""


def random_line(task: Task) -> dict[str, Any]:
    """What players earn that choose by chance."""
    config = parse_run(task.config).environment
    if config.id.startswith("openspiel:"):
        game = load_game(config.id, {})
        root, seen = tree_of(game)
        return {
            "exploitability": exploitability(root, strategy_of(seen, lambda _: np.ones(game.num_distinct_actions())))
        }
    found = baselines(config, 10 * EPISODES, EPISODE_SEED).values()
    return {"return": task.agents * statistics.mean(one["random"] for one in found)}


def said_by(module: str, *arguments: str) -> Any:
    """What the command says as JSON; CalledProcessError or TimeoutExpired where it fails."""
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True)
    return json.loads(ended.stdout)


def processor_seconds() -> float:
    """Of all commands that have ended, with their workers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cell_line(cell: Cell, folder: Path) -> dict[str, Any]:
    """Makes the run in `folder` and plays its policies without exploring."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = folder.parent / f"{folder.name}.yaml"
    config.write_text(yaml.safe_dump(cell.config, sort_keys=False))
    began, before = time.monotonic(), processor_seconds()

    def spent() -> dict[str, float]:
        return {
            "seconds": round(time.monotonic() - began, 1),
            "processor": round(processor_seconds() - before, 1),
        }

    if cell.form == "single-file":
        return {**said_by(*cell.command), **spent(), "findings": []}
    summary = said_by("launch", "train", str(config), "--run-dir", str(folder), "--no-progress", "--json")
    task = cell.pair.task
    line = {
        "steps": summary["agent_steps"],
        **spent(),
        "lag": round(summary["lag"]["mean"], 1),
        "findings": sorted({one["finding"] for one in summary["health"]["findings"]}),
        "last": task.agents * statistics.mean(one["last"] for one in summary["returns"].values()),
    }
    if cell.pair.by == "exploitability":
        return line | {"exploitability": exploited_in_poker(folder, summary, task.config["environment"]["id"])}
    arguments = ("--episodes", str(EPISODES), "--seed", str(EPISODE_SEED), "--json")
    evaluated = said_by("launch", "evaluate", str(folder), *arguments)
    return line | {"greedy": task.agents * statistics.mean(one["mean"] for one in evaluated)}


def commit() -> str:
    """The last one that changed the code; `+` where it has been changed since."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", "protocol", "workers", "launch"]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    return git("log", "-1", "--format=%h") + "+" * bool(git("status", "--porcelain"))


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.returns", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="cells with TEXT in their names, as `cartpole dqn`")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="so many seeds of each")
    parser.add_argument("--forget", metavar="TEXT", help="measure cells with TEXT in their names again")
    parser.add_argument("--show", action="store_true", help="measure nothing, make the table")
    given = parser.parse_args()
    if given.forget is not None:
        kept = [line for line in read() if given.forget not in line["name"]]
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in kept))
    known = {(line["name"], line["digest"]) for line in read()}

    def keep(name: str, digest: str, line: dict[str, Any]) -> None:
        known.add((name, digest))
        with RESULTS.open("a") as file:
            file.write(json.dumps({"name": name, "digest": digest, **line, "commit": commit()}) + "\n")
        (HERE / "TABLE.md").write_text(table())
        sys.stdout.write(f"{name}: {line}\n")
        sys.stdout.flush()

    cells = [cell for pair in pairs() for cell in pair.cells() if given.only in cell.name and cell.seed < given.seeds]
    for cell in [] if given.show else cells:
        task = cell.pair.task
        if (task.random, task.digest) not in known:
            keep(task.random, task.digest, random_line(task))
        if (cell.name, cell.digest) not in known:
            keep(cell.name, cell.digest, cell_line(cell, ROOT / "build" / "returns" / cell.name.replace(" ", "-")))
    (HERE / "TABLE.md").write_text(table())


if __name__ == "__main__":
    main()
