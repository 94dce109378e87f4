"""`rookery plot`: what runs measured, as a picture. Runs that differ by their seed alone are one curve with a band.

In flow: run folders. Out flow: a picture file: returns with evaluations, loss, lag and throughput over agent steps, or
any other measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import numpy as np

from launch.sweeps.curves import CurveGroup, groups_of, read_run
from protocol.errors import ConfigurationError, one_sentence

_USUAL = ("return", "loss", "lag", "agent_steps_per_second", "rows_per_second")
_TITLES = {
    "return": "return of episodes",
    "evaluation": "return without exploring",
    "lag": "lag (versions)",
    "agent_steps_per_second": "agent steps per second",
    "rows_per_second": "rows trained per second",
}
_MOST = 12
"""Lines that a legend still tells apart."""
_LETTERS, _HANDLE = 70, 8
"""That have room below a panel; as wide as what stands before a name."""


def draw(groups: Sequence[CurveGroup], out: Path, only: Sequence[str] = ()) -> None:
    """Writes the picture to `out`, in the format that its ending says, with a panel for each measure of `only`;
    ConfigurationError where that cannot be."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("matplotlib_missing") from None
    known = {_measure(name) for group in groups for _, name in group.curves()}
    usual = _USUAL if "return" in known else ("evaluation", *_USUAL[1:])
    panels = [name for name in only or usual if known & _shown_in(name)]
    if not panels or any(name not in panels for name in only):
        raise _nothing(known, [name for name in only if name not in panels])
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.0 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    named: dict[str, Any] = {}
    colours: dict[str, str] = {}
    for axis, name in zip(axes, panels, strict=False):
        _panel(axis, name, groups, named, colours)
    for axis in axes[len(panels) :]:
        axis.remove()
    if 0 < len(named) <= _MOST:
        fitting = int(_LETTERS * columns / (max(map(len, named)) + _HANDLE))
        across = max(1, min(3, len(named), fitting))
        figure.legend(named.values(), named, loc="outside lower center", ncols=across, frameon=False)
    try:
        figure.savefig(out, dpi=150)
    except ValueError as fault:
        raise ConfigurationError("picture_not_written", file=out, reason=" ".join(str(fault).split())) from None


def _nothing(known: set[str], missing: list[str]) -> ConfigurationError:
    if not known:
        return ConfigurationError("nothing_to_plot")
    name = missing[0] if missing else "return"
    choices = ", ".join(get_close_matches(name, known, 1) or sorted(known))
    return ConfigurationError("measure_unknown", name=name, choices=choices)


def _measure(name: str) -> str:
    """Without the world that an evaluation is of."""
    return "evaluation" if name.startswith("evaluation/") else name


def _shown_in(measure: str) -> set[str]:
    """What is drawn in one panel."""
    return {measure, "evaluation"} if measure == "return" else {measure}


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _panel(
    axis: Any, measure: str, groups: Sequence[CurveGroup], named: dict[str, Any], colours: dict[str, str]
) -> None:
    """One measure, with evaluations beside the returns of training; `named` are the lines that the legend has: what is
    of the same policy and group has the same colour in each panel."""
    from matplotlib.ticker import EngFormatter

    told = [(group, *key) for group in groups for key in group.curves() if _measure(key[1]) in _shown_in(measure)]
    policies = {policy for group in groups for policy, _ in group.curves() if policy}
    worlds = {name for *_, name in told if _measure(name) != name}
    for group, policy, name in told:
        steps, found = group.curve((policy, name))
        whose = _joined(group.name * (len(groups) > 1), policy * (len(policies) > 1))
        colour = colours.setdefault(whose, f"C{len(colours) % 10}")
        apart = _measure(name) != measure
        where = name.partition("/")[2] if len(worlds) > 1 and name in worlds else ""
        mark = "o" if steps[0] == steps[-1] else ""
        (line,) = axis.plot(steps, found.value, "--" if apart else "-", marker=mark, linewidth=1.4, color=colour)
        if label := _joined(whose, where, "without exploring" * apart):
            named.setdefault(label, line)
        if not np.isnan(found.low).any():
            axis.fill_between(steps, found.low, found.high, color=colour, alpha=0.2, linewidth=0)
    axis.set_title(_TITLES.get(measure, measure.replace("$", r"\$")), fontsize=10)
    scales = {"rows trained" if run.config.get("actors") == 0 else "agent steps" for g, *_ in told for run in g.runs}
    axis.set_xlabel(" or ".join(sorted(scales)))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


@click.command()
@click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("-o", "--out", default="curves.png", show_default=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--only", metavar="MEASURE", multiple=True, help="Of metrics.jsonl, or evaluation; may be repeated.")
def plot(runs: tuple[Path, ...], out: Path, only: tuple[str, ...]) -> None:
    """Draws returns with evaluations, loss, lag and throughput of RUNS.

    Of several seeds it draws the interquartile mean with its 95 % interval.

    \b
    rookery plot runs/first
    rookery plot runs/ppo-* runs/impala-* -o compared.svg
    rookery plot runs/first --only return --only entropy
    """
    with one_sentence("another file"):
        if not out.parent.is_dir():
            raise ConfigurationError("picture_folder_missing", file=out.parent)
        measured = [read_run(run) for run in runs]
        for run in measured:
            if not run.curves:
                click.echo(f"{run.folder} has measured nothing yet: left out", err=True)
        draw(groups_of(run for run in measured if run.curves), out, only)
    click.echo(f"wrote {out}")
