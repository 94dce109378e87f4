"""`rookery play`: a person plays one agent of a world, in a browser, against or with trained policies.

python -m workers.tools.play runs/first --agent agent_1

In flow: a run's folder, or the id of a world. Out flows: a page on loopback, until Ctrl-C or enough episodes; what was
earned; the person's episodes as a dataset.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import click

from protocol.errors import ConfigurationError, one_sentence
from protocol.refusal_log import RefusalLog
from protocol.spaces import Place, World
from workers import freeze_startup_objects
from workers.evaluation.forked import apart
from workers.learning.datasets.minari_datasets import MinariWriter
from workers.runtime import torch_setup
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.http_server import HttpServer
from workers.tools.evaluate import others_option, which_option
from workers.tools.play.game import Asked, Game, opened, place_of
from workers.tools.play.page import PlayPage
from workers.tools.play.recording import EpisodeRecording
from workers.tools.play.seat import Seat

_IN_ORDER = 10.0
"""Seconds in which the game ends after Ctrl-C, before its process is killed."""


@click.command(name="play", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="RUN or ID")
@click.option("--agent", metavar="NAME", help="Whom the person plays; default: the first.")
@click.option("--pace", type=click.FloatRange(0.1, 100), default=5.0, show_default=True, help="Turns a second at most.")
@click.option("--deadline", type=click.FloatRange(0.01, 3600), help="Seconds to act in; default: those of a turn.")
@click.option("--wait", is_flag=True, help="No deadline while the page is open, as for board games.")
@click.option("--episodes", type=click.IntRange(min=1), help="End after so many.")
@click.option("--record", metavar="ID", help="Record them as a new dataset of Minari: [space/]name-v0.")
@click.option("--whole-picture", is_flag=True, help="Show the world as drawn: maybe more than is observed.")
@click.option("--key", "keys", multiple=True, metavar="KEY=CHOICE", help="As ArrowUp=2, for a single choice.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Of an ID: environment.settings.NAME=VALUE.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the episodes.")
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="Where; any that is free unless it is given.")
@others_option
@which_option
@click.option("--environment", "place", default="", metavar="NAME", help="Of several; default: all.")
def main(source: str, **given: Any) -> None:
    """Lets a person play an agent, in a browser, with or against trained policies.

    The others are played by the policies of RUN; in the world ID by its script if it has one, or else by chance.

    \b
    rookery play runs/first
    rookery play treasure_hunt --set environment.settings.width=9 --episodes 3
    rookery play gymnasium:CartPole-v1 --whole-picture --pace 10 --record me/cartpole-v0
    """
    if given["wait"] and given["deadline"] is not None:
        raise click.UsageError("--wait and --deadline say opposite things; give one of them.")
    torch_setup.configure_torch()
    add_cwd_to_path()
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    with one_sentence("another file"):
        _play(source, given, ending)


def _play(source: str, given: Mapping[str, Any], ending: threading.Event) -> None:
    fields = {name: given[name] for name in ("settings", "place", "others", "which", "seed")}
    environment, players = opened(Asked(source=source, **fields))
    try:
        number, place = place_of(environment, given["agent"])
        seconds = 1 / given["pace"]
        seat = Seat(number, place, None if given["wait"] else given["deadline"] or seconds, ending)
        told = f"Episodes of a person who played {place.name} of {environment.world.id}."
        recording = (
            EpisodeRecording(MinariWriter(given["record"], place.agent, told), place) if given["record"] else None
        )
        seat.recorder = recording
        game = Game(environment, players, seat, seconds, given["whole_picture"])
        with _served(seat, _about(environment.world, place, given), given["port"]) as page:
            try:
                game.play(given["episodes"], given["seed"])
            finally:
                page.over = {"returns": seat.returns, "counts": seat.counts}
    finally:
        environment.close()
    for line in _said(seat):
        click.echo(line)
    if recording is not None:
        click.echo(f"{given['record']}: {recording.episodes} episodes, {recording.rows} rows")
        if recording.left_out:
            click.echo(f"{recording.left_out} episodes with turns while the page was closed are left out")


@contextmanager
def _served(seat: Seat, about: Mapping[str, Any], port: int) -> Iterator[PlayPage]:
    """The page, whose address is printed, until the end; pages that are open are told of it."""
    page = PlayPage(seat, about)
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as fault:
        raise ConfigurationError("page_port_not_bindable", value=port, reason=fault.strerror) from None
    server = HttpServer(listening, page.routes(), RefusalLog())
    click.echo(f"http://127.0.0.1:{listening.getsockname()[1]}/#token={seat.token}   (Ctrl-C ends it)")
    try:
        yield page
    finally:
        seat.leave_pages()
        server.close()


def _about(world: World, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says and offers."""
    keys = dict(one.rpartition("=")[::2] for one in given["keys"])
    if any(not key or not re.fullmatch("-?[0-9]+", choice) for key, choice in keys.items()):
        raise click.BadParameter("a key is given as KEY=CHOICE, for example ArrowUp=2", param_hint="--key")
    return {
        "world": world.id,
        "agent": place.name,
        "whole": given["whole_picture"],
        "waits": given["wait"],
        "keys": {key: int(choice) for key, choice in keys.items()},
        "parts": [
            {"name": leaf.name, "shape": leaf.space.shape, **leaf.space.model_dump(mode="json")}
            for leaf in place.acted.leaves
        ],
    }


def _said(seat: Seat) -> Iterator[str]:
    """What was earned and counted."""
    counts, earned = seat.counts, seat.returns
    mean = f", {fmean(earned):.4g} in the mean" if earned else ""
    yield f"{seat.place.name}: {len(earned)} episodes{mean}: {', '.join(f'{one:.4g}' for one in earned[-10:]) or '–'}"
    late, away = counts["late"], counts["away"]
    yield f"{counts['turns']} turns, {late + away} by the fallback ({late} late, {away} with the page closed)"
    refused = {why: counts[why] for why in ("illegal", "stale", "too_many", "too_large") if counts[why]}
    if refused:
        yield f"refused messages: {', '.join(f'{count} {why}' for why, count in refused.items())}"
    if seat.unfinished:
        yield "an episode was not over: it is in none of these, and not recorded"


def command() -> None:
    """The command line, in a process of its own: it may end as it likes."""
    apart(lambda: main(prog_name="rookery play"), _IN_ORDER)


if __name__ == "__main__":
    freeze_startup_objects()
    command()
