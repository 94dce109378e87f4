"""Pictures for the site: `make gallery` trains each preset and draws its curve, a run's page, and two films.

In flow: the presets. Out flow: launch/docs/site/gallery, and the page of all presets. A run that is over is kept in
build/gallery, and one that was interrupted goes on; a picture that is there stays.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from launch.cli.plot import draw
from launch.presets import preset_names, sentence
from launch.sweeps.curves import groups_of, read_run
from tests import pictures
from tests.tools import ROOT

__all__ = ["FOLDER", "PATH", "curves", "main", "reference"]

FOLDER = ROOT / "launch" / "docs" / "site" / "gallery"
PATH = ROOT / "launch" / "docs" / "reference" / "presets.md"
RUNS = ROOT / "build" / "gallery"
_SECONDS = 120
"""Of the clock that a run has; those that show nothing by then:"""
_MORE = {"cleanup": 900}
_OTHERS = {
    "impala": "cartpole --set policy.algorithm.name=impala",
    "dqn": "cartpole-iqn --set policy.algorithm.name=dqn",
    "c51": "cartpole-iqn --set policy.algorithm.name=c51",
    "vdn": "matrix-game-qmix --set policy.algorithm.name=vdn",
    "expert": "cartpole --steps 200000 --set policy.record=true",
    "bc": "cartpole --set actors=0 --set policy.algorithm.name=bc --set policy.dataset.newest=50000 --steps 500000"
    " --set policy.dataset.path=build/gallery/expert/datasets",
}
"""Of algorithms that no preset has; the last learns from what the one before recorded."""
_SIMULATORS = 4
"""That play in `external`, which waits for them."""
_GREY = "#808792"
"""Seen on white and on black."""
_STYLE: Any = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "grid.color", "text.color"), _GREY),
    **dict.fromkeys(("xtick.color", "ytick.color"), _GREY),
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "rookery",
}
_FILMS = {"treasure-hunt": 100, "cleanup": 100}
"""Run -> turns of its film."""
_PAGE = ("middle-1300-light", "middle-1300-dark")
_HEAD = """# All presets

Made by `make gallery`, which trains them. A curve is the mean return of episodes in one run, exploration included, by
the command below it, on two cores of a shared machine. `rookery presets NAME` prints a preset.

Where players meet themselves, as in `kuhn-poker`, `tag` and the league, returns do not show progress: what one wins
another loses.
"""


def curves() -> dict[str, str]:
    """Run -> the words behind `rookery train` that make it."""
    words = {name: name for name in preset_names()} | _OTHERS
    return {name: f"{line} --set seconds={_MORE.get(name, _SECONDS)}" for name, line in words.items()}


def reference() -> str:
    """The page of all presets."""
    return "\n".join([_HEAD, *(_shown(name, curves()[name]) for name in preset_names())])


def _shown(name: str, words: str) -> str:
    curve = f"![Return of {name} over agent steps](../site/gallery/{name}.svg)"
    return f"## {name}\n\n{fill(sentence(name), 120)}\n\n{curve}\n\n`rookery train {words}`\n"


def train(name: str, words: Sequence[str]) -> Path:
    """The folder of a run that is over."""
    folder = RUNS / name
    if not (folder / "summary.json").exists():
        launch = [sys.executable, "-m", "launch"]
        with ExitStack() as stack:
            for number in range(_SIMULATORS if name == "external" else 0):
                simulate = [*launch, "simulate", "cartpole", "--connect", str(folder), "--name", f"sim-{number}"]
                stack.callback(subprocess.Popen(simulate).terminate)
            subprocess.run([*launch, "train", *words, "--run-dir", folder, "--no-progress"], cwd=ROOT, check=True)
    return folder


def curve(name: str, folder: Path) -> None:
    """Draws what the run earned, or of one that does not play how well it imitates."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        draw(groups_of([read_run(folder)]), FOLDER / f"{name}.svg", ["agreement" if name == "bc" else "return"])


def film(name: str, turns: int) -> None:
    """Of the run's policies at play."""
    watch = [sys.executable, "-m", "launch", "watch", str(RUNS / name), "-o", str(FOLDER / f"{name}.gif")]
    subprocess.run([*watch, "--turns", str(turns)], cwd=ROOT, check=True)


def page() -> None:
    """Of a run in its middle, in few colours."""
    from PIL import Image

    pictures.main(RUNS / "page")
    for name in _PAGE:
        picture = Image.open(RUNS / "page" / f"{name}.png").convert("RGB").quantize(64)
        picture.save(FOLDER / f"page-{name.rpartition('-')[2]}.png", optimize=True)


@click.command(name="python -m tests.gallery")
@click.argument("names", nargs=-1)
def main(names: Sequence[str]) -> None:
    """Makes what is missing; of NAMES alone, if there are any."""
    FOLDER.mkdir(exist_ok=True)
    for name, words in curves().items():
        if (not names or name in names) and not (FOLDER / f"{name}.svg").exists():
            curve(name, train(name, words.split()))
            click.echo(f"{name}: drawn")
    for name, turns in _FILMS.items():
        if (not names or name in names) and not (FOLDER / f"{name}.gif").exists():
            film(name, turns)
    if (not names or "page" in names) and not (FOLDER / "page-dark.png").exists():
        page()
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
