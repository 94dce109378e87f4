"""Pictures of environments: as films and maps in files, and in the terminal. No torch.

In flow: what an environment renders. Out flows: a GIF or MP4, a map of visited cells, text.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import EnvironmentConfig
from protocol.errors import ConfigurationError
from workers.environments.base import Environment
from workers.environments.registry import make


def made_to_be_seen(where: EnvironmentConfig) -> Environment:
    """What can be looked at, if it can: Gymnasium and PettingZoo have to be told before, and so may a function."""
    try:
        return make(where.model_copy(update={"settings": {**where.settings, "render_mode": "rgb_array"}}))
    except ConfigurationError:
        return make(where)  # it takes no such setting, or what else is wrong is told now


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
