"""Pictures of a run's page, for people to look at: `python -m tests.pictures FOLDER`.

A short real run is looked at before its first steps, in its middle and when it is over, light and dark, as wide as a
telephone and as a desk: 12 PNGs, called STAGE-WIDTH-THEME.png.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import click

from tests.waiting import until
from tests.workers.coordination.dashboard.asking import ask
from tests.workers.coordination.dashboard.browser import Browser, browser

__all__ = ["STAGES", "end", "main", "page_in"]

STAGES = {"start": 0.0, "middle": 0.5, "end": 1.0}
"""From which share of the steps on a picture is taken."""
_WIDTHS, _HEIGHT = (420, 1_300), 1_000
_DRAWN = 1.0
"""Seconds that all panels have to be drawn."""
_BEGUN = "return document.getElementById('stage').textContent !== '–'"
_SHARE = "return document.getElementById('progress').value"
_OVER = "return document.getElementById('stop').disabled"


def main(folder: Path, steps: int = 1_500_000) -> list[Path]:
    """The pictures, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = scratch / "runs" / "treasure-hunt"
        words = ["treasure-hunt", "--steps", str(steps), "--run-dir", str(run)]
        words += ["--set", "evaluation={every_seconds: 3, episodes: 4}"]
        windows = {}
        for name in (f"{width}-{theme}" for width in _WIDTHS for theme in ("light", "dark")):
            width, _, theme = name.partition("-")
            (scratch / name).mkdir()
            windows[name] = stack.enter_context(browser(scratch / name, int(width), _HEIGHT, dark=theme == "dark"))
        output = (scratch / "said").open("w")
        stack.callback(output.close)
        training = subprocess.Popen([sys.executable, "-m", "launch", "train", *words], stdout=output, stderr=output)
        stack.callback(end, training)
        url = until(lambda: page_in(scratch / "said"), what="the address of the page")
        order, token = url.partition("/#")[0] + "/api/{}", url.partition("token=")[2]
        ask(order.format("pause"), b"", Authorization=f"Bearer {token}")  # while the windows are opened
        for window in windows.values():
            window.open(url)
            window.until(_BEGUN)
        found = [*_stage(windows, folder, "start")]
        ask(order.format("resume"), b"", Authorization=f"Bearer {token}")
        return [*found, *_stage(windows, folder, "middle"), *_stage(windows, folder, "end")]


def _stage(windows: Mapping[str, Browser], folder: Path, stage: str) -> Iterator[Path]:
    """A picture of each window, as high as its page is, once all show so much of the run."""
    for window in windows.values():
        window.until(_OVER if stage == "end" else f"{_SHARE} >= {STAGES[stage]}")
    time.sleep(_DRAWN)
    for name, window in windows.items():
        width = int(name.partition("-")[0])
        window.resize(width, _HEIGHT)  # a page is at least as high as its window
        window.resize(width, int(window.do("return document.documentElement.scrollHeight")))
        path = folder / f"{stage}-{name}.png"
        window.picture(path)
        yield path


def page_in(said: Path) -> str | None:
    """The address of the page, once a run has said it."""
    return next((word for word in said.read_text().split() if "#token=" in word), None)


def end(training: subprocess.Popen[bytes]) -> None:
    """In order."""
    if training.poll() is None:
        training.send_signal(signal.SIGINT)
    training.wait()


@click.command(name="python -m tests.pictures")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--steps", default=1_500_000, show_default=True, help="Of the run.")
def _command(folder: Path, steps: int) -> None:
    """Takes pictures of a run's page, 12 into FOLDER."""
    for path in main(folder, steps):
        click.echo(path)


if __name__ == "__main__":
    _command()
