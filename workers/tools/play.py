"""`rookery watch`: the policies of a run at play, as a film, in the terminal, or as a map of the cells they visit.

python -m workers.tools.play runs/first -o film.gif

In flow: a run's folder, finished or not. Out flow: pictures of whole episodes with exploration off, as files, or as
characters for a terminal.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, one_sentence
from workers import freeze_startup_objects
from workers.environments.base import Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.evaluation.episodes import environments_of, play_episodes
from workers.evaluation.evaluation import players_of
from workers.evaluation.forked import apart
from workers.runtime import torch_setup
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.seeds import seed_of
from workers.tools.evaluate import frozen_policies, load_run, others_option, which_option

_FILE = click.Path(dir_okay=False, path_type=Path, resolve_path=True)


class _Enough(Exception):
    """As many turns were seen as were asked for."""


class FrameRecorder:
    """Looks at copy 0 before each turn: for a `film`, to be `shown` in the terminal, or for a map alone."""

    def __init__(self, environment: Environment, film: bool, shown: bool, fps: float, most: int) -> None:
        self._environment, self._film, self._shown, self._fps, self._most = environment, film, shown, fps, most
        self.frames: list[NDArray[np.uint8]] = []
        self.visits: NDArray[np.int64] | None = None
        """[height, width]: turns in which an agent was there; None where the world is no grid."""
        self.turns = 0

    def look(self) -> None:
        """Takes one frame, or shows it; ConfigurationError where there is nothing to be seen."""
        if self.turns == self._most:
            raise _Enough
        self.turns += 1
        cells = self._environment.agent_cells()
        if cells is not None:
            self.visits = cells.astype(np.int64) if self.visits is None else self.visits + cells
        if self._film:
            frame = self._environment.render_rgb()
            if frame is None:
                raise ConfigurationError("world_without_picture")
            self.frames.append(frame.copy())
        if self._shown:
            self._show()

    def _show(self) -> None:
        picture = self._environment.render_rgb(0, 1)
        text = self._environment.render() if picture is None else half_block_text(picture)
        if not text:
            raise ConfigurationError("world_without_picture")
        click.echo(f"\x1b[2J\x1b[H{text}\nturn {self.turns}")
        time.sleep(1 / self._fps)


def _made(where: EnvironmentConfig) -> Environment:
    """What can be looked at, if it can: Gymnasium and PettingZoo have to be told before, and so may a function."""
    try:
        return make(where.model_copy(update={"settings": {**where.settings, "render_mode": "rgb_array"}}))
    except ConfigurationError:
        return make(where)  # it takes no such setting, or what else is wrong is told now


def play(folder: Path, episodes: int, seed: int, others: dict[str, str], which: str, place: str, camera: Any) -> Any:
    """Plays `episodes` in the environment `place` ("": the first) before the camera that `camera` makes for it."""
    run = load_run(folder)
    places = environments_of(run.environment, 1)
    name = place or next(iter(places))
    if name not in places:
        raise ConfigurationError("environment_option_unknown", file=folder, environment=name, choices=list(places))
    where = places[name].model_copy(update={"copies": 1, "processes": 0})
    environment = CheckedEnvironment(_made(where))
    try:
        frozen = frozen_policies(folder, run, environment.world, others, which)
        players = players_of(run.model_copy(update={"environment": where}), environment.world, frozen, seed)
        taken = camera(environment)
        try:
            play_episodes(environment, players, episodes, seed_of(seed, "evaluation", name), taken.look)
        except _Enough:
            pass  # what was seen so far is shown
        return taken
    finally:
        environment.close()


@click.command(name="watch", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN", type=click.Path(file_okay=False, path_type=Path, resolve_path=True))
@click.option("-o", "--out", type=_FILE, help="A film: .gif or .mp4.")
@click.option("--heat-map", "heat", type=_FILE, help="A picture of visited cells.")
@click.option("--episodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--turns", type=click.IntRange(min=1), default=1_000, show_default=True, help="At most so many.")
@click.option("--fps", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Turns a second.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the episodes.")
@others_option
@which_option
@click.option("--environment", "place", default="", metavar="NAME", help="Of several; default: the first.")
def main(
    run: Path,
    out: Path | None,
    heat: Path | None,
    episodes: int,
    turns: int,
    fps: float,
    seed: int,
    others: dict[str, str],
    which: str,
    place: str,
) -> None:
    """Shows the policies of RUN at play: in the terminal, as a film, as a map of visited cells.

    \b
    rookery watch runs/first
    rookery watch runs/first -o film.gif --episodes 3
    rookery watch runs/first --heat-map visited.png --episodes 20
    """
    torch_setup.configure_torch()
    add_cwd_to_path()
    with one_sentence("another file"):
        if out is None and heat is None and not sys.stdout.isatty():
            raise ConfigurationError("no_terminal_to_show")
        if out is not None:
            check_film(out)
        taken = play(
            run,
            episodes,
            seed,
            others,
            which,
            place,
            lambda world: FrameRecorder(world, out is not None, out is None and heat is None, fps, turns),
        )
        if out is not None:
            write_film(out, taken.frames, fps)
            click.echo(f"wrote {out}: {len(taken.frames)} turns")
        if heat is not None:
            write_map(heat, taken.visits)
            click.echo(f"wrote {heat}")


def command() -> None:
    """The command line, in a process of its own: it may end as it likes."""
    apart(lambda: main(prog_name="rookery watch"))


def check_film(path: Path) -> None:
    """ConfigurationError for a name that says no kind of film."""
    if path.suffix not in (".gif", ".mp4"):
        raise ConfigurationError("film_format_unknown", file=path)


def write_film(path: Path, frames: Sequence[NDArray[np.uint8]], fps: float) -> None:
    """A GIF or MP4, as the ending of `path` says; ConfigurationError where that cannot be."""
    try:
        import imageio.v2 as imageio
    except ImportError:
        raise ConfigurationError("film_package_missing", package="imageio") from None
    if path.suffix == ".gif":
        imageio.mimsave(path, list(frames), duration=1000 / fps, loop=0)
    else:
        imageio.mimsave(path, [_even(frame) for frame in frames], fps=fps, macro_block_size=2)


def write_map(path: Path, visits: NDArray[np.int64] | None) -> None:
    """A picture of counts [height, width], on a logarithmic scale; ConfigurationError where there are none."""
    if visits is None:
        raise ConfigurationError("world_is_no_grid")
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("map_package_missing", package="matplotlib") from None
    figure = Figure(layout="constrained")
    axis = figure.subplots()
    shown = axis.imshow(np.ma.masked_equal(visits, 0), norm=LogNorm(vmin=1, vmax=max(2, int(visits.max()))))
    axis.set_facecolor("black")
    figure.colorbar(shown, label="visits")
    try:
        figure.savefig(path, dpi=150)
    except ValueError as fault:
        raise ConfigurationError("picture_not_written", file=path, reason=" ".join(str(fault).split())) from None


def half_block_text(picture: NDArray[np.uint8]) -> str:
    """Two points in each character, the upper half block coloured in front and behind; as large as the terminal."""
    columns, lines = shutil.get_terminal_size()
    step = max(1, -(-picture.shape[1] // columns), -(-picture.shape[0] // (2 * max(1, lines - 2))))
    picture = picture[::step, ::step]
    if len(picture) % 2:
        picture = np.concatenate([picture, np.zeros_like(picture[:1])])
    rows = []
    for above, below in zip(picture[::2].tolist(), picture[1::2].tolist(), strict=True):
        cells = (
            f"\x1b[38;2;{r};{g};{b}m\x1b[48;2;{x};{y};{z}m▀" for (r, g, b), (x, y, z) in zip(above, below, strict=True)
        )
        rows.append("".join(cells) + "\x1b[0m")
    return "\n".join(rows)


def _even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Width and height even, as the codec wants them."""
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)))


if __name__ == "__main__":
    freeze_startup_objects()
    command()
