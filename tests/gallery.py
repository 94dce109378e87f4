"""Pictures for the site: `make gallery` trains each preset and draws its curve, the pages of two runs, and two films.

In flow: the presets. Out flow: launch/docs/site/gallery, and the page of all presets. A run that is over is kept in
build/gallery, and one that was interrupted goes on; a picture that is there stays.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from launch.cli.plot import draw
from launch.local.run_handle import RunHandle
from launch.presets import preset_names, sentence
from launch.sweeps.curves import groups_of, read_run
from tests import pictures
from tests.tools import ROOT
from tests.waiting import until
from tests.workers.coordination.dashboard.browser import browser

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
_TOLD = (
    "freeze agent_1",
    "thaw agent_1",
    "add third agent_1 algorithm.name=impala network.hidden=[64]",
    "freeze agent_0",
    "assign agent_1 third",
    "retire agent_1",
)
"""What the run of the tutorial is told, as often as this:"""
_TOLD_EVERY = 20.0
_BOX = """
    const box = document.getElementById('curves').firstElementChild.getBoundingClientRect();
    return [box.left, box.top, box.right, box.bottom].map(Math.round);
"""
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


def living() -> None:
    """Of the run of a tutorial, which is told what to do: the curves of its page."""
    from PIL import Image

    folder, said = RUNS / "living", RUNS / "living.txt"
    line = f"train treasure-hunt --steps 400000000 --run-dir {folder} --no-progress"
    with said.open("w") as output, ExitStack() as stack:
        run = subprocess.Popen([sys.executable, "-m", "launch", *line.split()], cwd=ROOT, stdout=output, stderr=output)
        stack.callback(pictures.end, run)
        url = until(lambda: pictures.page_in(said), what="the address of the page")
        window = stack.enter_context(browser(RUNS, 1_300, 1_400))
        window.open(url)
        for words in _TOLD:
            time.sleep(_TOLD_EVERY)
            RunHandle(folder).roster(*words.split())
        time.sleep(2 * _TOLD_EVERY)
        window.do("document.getElementById('curves').firstElementChild.scrollIntoView({ block: 'center' })")
        time.sleep(1.0)
        window.picture(RUNS / "living.png")
        box = window.do(_BOX)
    picture = Image.open(RUNS / "living.png").convert("RGB").crop(box).quantize(64)
    picture.save(FOLDER / "living.png", optimize=True)


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
    if (not names or "living" in names) and not (FOLDER / "living.png").exists():
        living()
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
