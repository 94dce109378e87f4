"""`rookery bench`: what this machine can do, always beside its limit.

python -m workers.tools.bench transport --json
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import click

from protocol.control.wording import shown
from workers import freeze_startup_objects
from workers.runtime import torch_setup
from workers.tools.bench.pipeline.workloads import WORKLOADS

_PAIRED = {
    "transport": ("transport.segments", 9, "Segments: same node, TCP, the cost of a header."),
    "weights": ("transport.weights", 9, "Weights from one learner to four subscribers."),
    "rollout": ("rollout", 15, "Acting: what a turn costs beside its forward passes."),
}
"""Command -> its module, how many pairs it measures, and what."""
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measures this machine, each figure beside the limit or the raw primitive in the same run."""
    torch_setup.configure_torch()


def _paired(name: str, module: str, pairs: int, says: str) -> None:
    """The command `name`, whose figures are medians over interleaved pairs."""

    @main.command(name, help=says)
    @click.option("--rounds", type=click.IntRange(min=1), default=pairs, show_default=True, help="Interleaved pairs.")
    @_json
    def command(rounds: int, as_json: bool) -> None:
        _tell(import_module(f"workers.tools.bench.{module}").measure(rounds), as_json)


for _name, _about in _PAIRED.items():
    _paired(_name, *_about)


@main.command()
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Interleaved pairs.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
)
@_json
def learner(rounds: int, device: str, as_json: bool) -> None:
    """Learning: a learner beside the bare update, a cohort beside its policies one by one."""
    from workers.tools.bench.learner import measure

    _tell(measure(rounds, device), as_json)


@main.command()
@click.option("--workload", type=click.Choice(WORKLOADS), default="W3-lite", show_default=True, help="What is trained.")
@click.option("--windows", type=click.IntRange(min=1), default=6, show_default=True, help="Medians are of so many.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Of each window.")
@click.option("--warm", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds before the first.")
@click.option("--copies", type=click.IntRange(min=1), help="Of the environment, instead of the workload's.")
@_json
def pipeline(workload: str, windows: int, seconds: float, warm: float, copies: int | None, as_json: bool) -> None:
    """A whole run that learns, beside what two cores could do at most."""
    from workers.tools.bench.pipeline.pipeline import measure

    _tell(measure(workload, windows, seconds, warm, {} if copies is None else {"copies": copies}), as_json)


def _tell(figures: dict[str, float], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:40} {shown(value):>12}\n")


if __name__ == "__main__":
    freeze_startup_objects()
    main(prog_name="rookery bench")
