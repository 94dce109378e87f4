"""`rookery evaluate`: what the policies of a run earn when they do not explore.

python -m workers.tools.evaluate runs/first --episodes 100

In flow: a run's folder, finished or not. Out flow: a line for each environment and policy, also in `evaluations.jsonl`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from protocol.config.run import FrozenPolicy, Run
from protocol.config.yaml_file import read_run_in
from protocol.control.wording import shown, shown_interval
from protocol.errors import ConfigurationError, one_sentence
from protocol.spaces import World
from workers import freeze_startup_objects
from workers.environments.registry import describe
from workers.evaluation.episodes import environments_of
from workers.evaluation.evaluation import Evaluation
from workers.evaluation.forked import apart
from workers.evaluation.scores import append
from workers.planning.fixed_policy_plan import FixedPolicyPlan, check_frozen
from workers.policies.export import from_checkpoint
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.runtime import torch_setup
from workers.runtime.entry_points import add_cwd_to_path


def evaluate(
    folder: Path, episodes: int, seed: int = 0, others: Mapping[str, str] | None = None, which: str = "newest"
) -> list[dict[str, Any]]:
    """What all policies of the run in `folder` earn, as of the checkpoint `which` (`newest`, `best` or a train step);
    `others`: policy -> path of an exported policy or of a checkpoint that plays in its stead.

    One line for each environment and policy. ConfigurationError in one sentence.
    """
    if episodes < 1:
        raise ConfigurationError("episodes_too_few", value=episodes, key="episodes")
    if seed < 0:
        raise ConfigurationError("value_invalid", value=seed, key="seed", reason="should be at least 0")
    run = load_run(folder)
    world = describe(next(iter(environments_of(run.environment, 1).values())))
    frozen = frozen_policies(folder, run, world, others or {}, which)
    evaluator = Evaluation(run, episodes, seed)
    try:
        scores = evaluator.play(frozen)
    finally:
        evaluator.close()
    return [
        score.line(time=time.time(), source="checkpoint", **_provenance(frozen.get(score.policy))) for score in scores
    ]


def load_run(folder: Path) -> Run:
    """The configuration of the run in `folder`; ConfigurationError if there is none."""
    return read_run_in(folder).anchored()


def frozen_policies(
    folder: Path, run: Run, world: World, others: Mapping[str, str], which: str
) -> dict[str, ExportedPolicy]:
    """The players of all policies but of those that do not learn and are to play as the run says."""
    mapping = run.policy_of(world)
    for name in others:
        if name not in mapping.values():
            raise ConfigurationError("policy_option_unused", policy=name, choices=sorted({*mapping.values()}))
    found = {}
    for name in dict.fromkeys(mapping.values()):
        if name in others:
            agents = tuple(i for i, agent in enumerate(world.agents) if mapping[agent.name] == name)
            path = Path(others[name])
            check_frozen(FixedPolicyPlan(name, agents, FrozenPolicy(path=str(path)), 1, 1), world)
            found[name] = ExportedPolicy(*from_checkpoint.read(path)) if path.is_dir() else ExportedPolicy.load(path)
        elif run.fixed(name) is None:
            found[name] = ExportedPolicy(*from_checkpoint.find_checkpoint(folder, name, which)[1:])
    return found


def _provenance(frozen: ExportedPolicy | None) -> dict[str, Any]:
    """Where its weights are from; of who does not learn, nothing."""
    if frozen is None:
        return {"run": None, "train_steps": None, "version": None}
    told = frozen.manifest.provenance
    return {"run": told.folder, "train_steps": told.train_steps, "version": told.version}


def table(lines: list[dict[str, Any]]) -> Table:
    """For people."""
    found = Table("environment", "policy", "train steps", "episodes", "mean return", "95 % interval")
    for line in lines:
        sure = shown_interval(line["low"], line["high"])
        steps = "–" if line["train_steps"] is None else str(line["train_steps"])
        found.add_row(line["environment"], line["policy"], steps, str(line["episodes"]), shown(line["mean"]), sure)
    return found


def parse_pairs(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """NAME=PATH of a command line."""
    found = {}
    for one in given:
        name, sign, path = one.partition("=")
        if not (name and sign and path):
            raise click.BadParameter(f"{one!r} is not of the form NAME=PATH; write for example agent_0=x.safetensors")
        found[name] = os.path.abspath(path)
    return found


others_option = click.option(
    "--policy", "others", multiple=True, metavar="NAME=PATH", callback=parse_pairs, help="Another that plays it."
)
which_option = click.option(
    "--checkpoint", "which", default="newest", show_default=True, metavar="newest|best|N", help="Which one."
)


@click.command(name="evaluate", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN", type=click.Path(file_okay=False, path_type=Path, resolve_path=True))
@click.option("--episodes", default=100, show_default=True, help="In each environment.")
@click.option("--seed", default=0, show_default=True, help="Of the episodes.")
@others_option
@which_option
@click.option("--json", "as_json", is_flag=True, help="Print the lines as JSON.")
def main(run: Path, episodes: int, seed: int, others: dict[str, str], which: str, as_json: bool) -> None:
    """Plays the policies of RUN without exploring, and says what they earn.

    \b
    rookery evaluate runs/first --episodes 200
    rookery evaluate runs/first --policy agent_1=runs/other/exports/agent_1-5000.safetensors
    """
    torch_setup.configure_torch()
    add_cwd_to_path()
    with one_sentence():
        lines = evaluate(run, episodes, seed, others, which)
        append(run, lines)
    if as_json:
        click.echo(json.dumps(lines, indent=2))
    else:
        Console().print(table(lines))


def command() -> None:
    """The command line, in a process of its own: it may end as it likes."""
    apart(lambda: main(prog_name="rookery evaluate"))


if __name__ == "__main__":
    freeze_startup_objects()
    command()
