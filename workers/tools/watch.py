"""`rookery watch`: the policies of a run at play, as a film, in the terminal, or as a map of the cells they visit.

python -m workers.tools.watch runs/first -o film.gif

In flow: a run's folder, finished or not. Out flow: pictures of whole episodes with exploration off, as files, or as
characters for a terminal.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, one_sentence
from workers import freeze_startup_objects
from workers.environments.base import Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.evaluation.episodes import environments_of, play_episodes
from workers.evaluation.evaluation import players_of
from workers.evaluation.forked import apart
from workers.runtime import torch_setup
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.seeds import seed_of
from workers.tools.evaluate import frozen_policies, load_run, others_option, which_option
from workers.tools.film import check_film, half_block_text, made_to_be_seen, write_film, write_map

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
        self.who = ""
        """Who plays, told below what is shown."""

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
        click.echo(f"\x1b[2J\x1b[H{text}\nturn {self.turns}{self.who}")
        time.sleep(1 / self._fps)


def play(folder: Path, episodes: int, seed: int, others: dict[str, str], which: str, place: str, camera: Any) -> Any:
    """Plays `episodes` in the environment `place` ("": the first) before the camera that `camera` makes for it."""
    run = load_run(folder)
    places = environments_of(run.environment, 1)
    name = place or next(iter(places))
    if name not in places:
        raise ConfigurationError("environment_option_unknown", file=folder, environment=name, choices=list(places))
    where = places[name].model_copy(update={"copies": 1, "processes": 0})
    environment = CheckedEnvironment(made_to_be_seen(where))
    try:
        frozen = frozen_policies(folder, run, environment.world, others, which)
        players = players_of(run.model_copy(update={"environment": where}), environment.world, frozen, seed)
        taken = camera(environment)
        steps = ((policy, one.manifest.provenance.train_steps) for policy, one in frozen.items())
        taken.who = "".join(f", {policy} after {made:,} train steps" for policy, made in steps if made is not None)
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
@click.option("--live", is_flag=True, help="Episode after episode of a run that goes on, until Ctrl-C.")
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
    live: bool,
) -> None:
    """Shows the policies of RUN at play: in the terminal, as a film, as a map of visited cells.

    \b
    rookery watch runs/first
    rookery watch runs/first -o film.gif --episodes 3
    rookery watch runs/first --heat-map visited.png --episodes 20
    rookery watch runs/first --live          each episode with the newest checkpoint
    """
    torch_setup.configure_torch()
    add_cwd_to_path()
    with one_sentence("another file"):
        if out is None and heat is None and not _in_terminal():
            raise ConfigurationError("no_terminal_to_show")
        if out is not None:
            check_film(out)
        if live and (out is not None or heat is not None):
            raise ConfigurationError("live_is_no_file")
        while True:
            taken = play(
                run,
                1 if live else episodes,
                seed,
                others,
                which,
                place,
                lambda world: FrameRecorder(world, out is not None, out is None and heat is None, fps, turns),
            )
            if not live:
                break
            seed += 1
        if out is not None:
            write_film(out, taken.frames, fps)
            click.echo(f"wrote {out}: {len(taken.frames)} turns")
        if heat is not None:
            write_map(heat, taken.visits)
            click.echo(f"wrote {heat}")


def _in_terminal() -> bool:
    return sys.stdout.isatty()


def command() -> None:
    """The command line, in a process of its own: it may end as it likes."""
    apart(lambda: main(prog_name="rookery watch"))


if __name__ == "__main__":
    freeze_startup_objects()
    command()
