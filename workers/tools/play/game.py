"""The game in which one agent is a person's: the world of a run or an id, who plays the others, turn by turn.

In flow: a run's folder, or the id of a world. Out flow: moments for the seat's page, until enough episodes have ended.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from protocol.config.environment import EnvironmentConfig
from protocol.config.run import parse_run
from protocol.config.yaml_file import parse_yaml
from protocol.errors import ConfigurationError
from protocol.spaces import Place
from workers.environments.base import Environment, Player, Turn, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.evaluation.episodes import act, environments_of, evaluation_config
from workers.evaluation.evaluation import players_of
from workers.runtime.seeds import seed_of
from workers.tools.evaluate import frozen_policies, load_run
from workers.tools.film import made_to_be_seen
from workers.tools.play.seat import GameOver, Seat, check_playable
from workers.tools.play.view import seen_by, whole


class Asked(NamedTuple):
    """What the command line says of the game."""

    source: str
    """A run's folder, or the id of a world."""
    settings: tuple[str, ...]
    """key=value, of the world of an id."""
    place: str
    """The name of one of several environments; empty: all of them, an episode each as the run says."""
    others: dict[str, str]
    which: str
    seed: int


def opened(asked: Asked) -> tuple[Environment, dict[str, Player]]:
    """The world, and who plays its agents: a run's policies, or a script of the world's, or chance."""
    folder = Path(asked.source).resolve()
    if (folder / "config.yaml").is_file():
        if asked.settings:
            raise ConfigurationError("settings_of_a_run", value=asked.settings[0], file=folder)
        run = load_run(folder)
    else:
        run = parse_run({"environment": {"id": asked.source, **_settings(asked.settings)}})
    places = environments_of(run.environment, 1)
    if asked.place and asked.place not in places:
        raise ConfigurationError(
            "environment_option_unknown", file=asked.source, environment=asked.place, choices=list(places)
        )
    where = places[asked.place] if asked.place else evaluation_config(run.environment.evaluation(), 1)
    where = where.model_copy(update={"copies": 1, "processes": 0})
    environment = CheckedEnvironment(made_to_be_seen(where))
    world = environment.world
    if (folder / "config.yaml").is_file():
        frozen = frozen_policies(folder, run, world, asked.others, asked.which)
        alone = run.model_copy(update={"environment": where, "schedule": "asynchronous"})
        return environment, players_of(alone, world, frozen, asked.seed)
    generator, scripted = np.random.default_rng(asked.seed), environment.scripted()
    return environment, {place.name: scripted or random_player(place, generator) for place in world.places}


def _settings(given: tuple[str, ...]) -> dict[str, Any]:
    """The keys of the section `environment` that are given as `environment.a.b=value`."""
    found: dict[str, Any] = {}
    for one in given:
        key, sign, text = one.partition("=")
        first, *parents, last = key.split(".") if key.count(".") else ("", "")
        known = EnvironmentConfig.model_fields.keys() - {"id"}
        if not sign or first != "environment" or (parents or [last])[0] not in known:
            raise ConfigurationError("world_setting_malformed", value=one)
        inner = found
        try:
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = parse_yaml(text)
        except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError):  # or below what is no section
            raise ConfigurationError("world_setting_malformed", value=one) from None
    return found


def place_of(environment: Environment, name: str | None) -> tuple[int, Place]:
    """(number, place) of the agent called so, or of the first; ConfigurationError where no person can play it."""
    places = environment.world.places
    names = [place.name for place in places]
    if name is not None and name not in names:
        raise ConfigurationError("agent_option_unknown", environment=environment.world.id, agent=name, choices=names)
    number = 0 if name is None else names.index(name)
    check_playable(places[number])
    return number, places[number]


class Game:
    """A person in `seat`, the `players` in all others, so many seconds a `turn` at least. `all_is_seen`: the page shows
    the world as it is drawn, too; ConfigurationError if it is not."""

    def __init__(
        self, environment: Environment, players: dict[str, Player], seat: Seat, turn: float, all_is_seen: bool
    ) -> None:
        self._environment, self._seat, self._seconds = environment, seat, turn
        self._all_is_seen = all_is_seen
        self._names = [agent.name for agent in environment.world.agents]
        self._players: dict[str, Player] = {**players, seat.place.name: seat}
        if all_is_seen:
            environment.reset(0)
            if not whole(environment):
                raise ConfigurationError("world_without_picture_to_play")

    def play(self, episodes: int | None, seed: int) -> None:
        """Until so many episodes of the person have ended (None: no end), or the game is ended."""
        seat = self._seat
        try:
            seat.await_player()
            turn = self._environment.reset(seed_of(seed, "play"))
            while episodes is None or len(seat.returns) < episodes:
                began = time.monotonic()
                self._show(turn)
                actions = act(turn, self._names, self._players)
                if seat.ending.wait(max(0.0, began + self._seconds - time.monotonic())):
                    return
                turn = self._environment.step(actions)
                seat.hear(turn)
        except GameOver:
            return

    def _show(self, turn: Turn) -> None:
        """What is new; where the seat's agent does not act, it sees what it saw last."""
        view: dict[str, Any] = {"turn": None, "seen": self._seat.moment[1].get("seen", [])}
        for present in turn.present:
            if present.agent == self._seat.agent and len(present.observation):
                view["seen"] = seen_by(self._seat.place, present, turn.common)
        self._seat.show(view | (whole(self._environment) if self._all_is_seen else {}))
