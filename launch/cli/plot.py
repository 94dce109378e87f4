"""`rookery plot`: what runs measured, as a picture. Runs that differ by their seed alone are one curve with a band.

In flow: run folders. Out flow: a picture file: returns, evaluations, lag and throughput over agent steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from launch.sweeps.curves import CurveGroup, groups_of, read_run
from protocol.errors import ConfigurationError, one_sentence

__all__ = ["draw", "plot"]

_PANELS = {
    "return": ("return of episodes, exploring", "return"),
    "evaluation": ("return without exploring", "evaluation"),
    "lag": ("lag (versions)", "lag"),
    "speed": ("agent steps per second", "agent_steps_per_second"),
}
"""Name -> title and measure."""
_MOST = 12
"""Lines of one panel that a legend still tells apart."""


def draw(groups: list[CurveGroup], out: Path, only: str | None = None) -> None:
    """Writes the picture to `out`, in the format that its ending says, or one of its panels `only`; ConfigurationError
    where that cannot be."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("matplotlib_missing") from None
    keys = list(dict.fromkeys(key for group in groups for key in group.curves()))
    panels = [
        (title, chosen)
        for name, (title, measure) in _PANELS.items()
        if name == (only or name) and (chosen := [key for key in keys if key[1].partition("/")[0] == measure])
    ]
    if not panels:
        raise ConfigurationError("nothing_to_plot")
    figure = Figure(figsize=(6.0 * min(2, len(panels)), 3.6 * -(-len(panels) // 2)), layout="constrained")
    axes = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).ravel()
    for axis, (title, chosen) in zip(axes, panels, strict=False):
        _panel(axis, title, chosen, groups)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    try:
        figure.savefig(out, dpi=150)
    except ValueError as fault:
        raise ConfigurationError("picture_not_written", file=out, reason=" ".join(str(fault).split())) from None


def _panel(axis: Any, title: str, keys: list[tuple[str, str]], groups: list[CurveGroup]) -> None:
    lines = 0
    for group in groups:
        for key in keys:
            if key not in group.curves():
                continue
            steps, found = group.curve(key)
            policy, _, where = key[0], *key[1].partition("/")[1:]
            parts = [group.name if len(groups) > 1 else "", policy, where]
            (line,) = axis.plot(steps, found.value, label=" · ".join(part for part in parts if part), linewidth=1.4)
            if not np.isnan(found.low).any():
                axis.fill_between(steps, found.low, found.high, color=line.get_color(), alpha=0.2, linewidth=0)
            lines += 1
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("agent steps")
    axis.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5))
    axis.grid(alpha=0.3)
    if 1 < lines <= _MOST:
        axis.legend(fontsize=7)


@click.command()
@click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("-o", "--out", default="curves.png", show_default=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--only", type=click.Choice([*_PANELS]), help="One of the four curves.")
def plot(runs: tuple[Path, ...], out: Path, only: str | None) -> None:
    """Draws returns, evaluations, lag and throughput of RUNs; of several seeds, their interquartile mean with a band.

    \b
    rookery plot runs/first
    rookery plot runs/ppo-* runs/impala-* -o compared.svg
    rookery plot runs/first --only return
    """
    with one_sentence("another file"):
        if not out.parent.is_dir():
            raise ConfigurationError("picture_folder_missing", file=out.parent)
        draw(groups_of(read_run(run) for run in runs), out, only)
    click.echo(f"wrote {out}")
