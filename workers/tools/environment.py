"""`rookery env`: what an environment is, how fast it steps, what is suspicious in it, and how to begin with it.

python -m workers.tools.environment config.yaml

In flow: the environment of a configuration, which a random player plays, alone and in many copies. Out flows: what was
seen, as one screen or JSON; a film of an episode.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
import yaml
from numpy.typing import NDArray

from protocol.config.environment import EnvironmentConfig
from protocol.config.yaml_file import read_run
from protocol.errors import one_sentence
from protocol.spaces import Box, Leaf, Place, World
from workers import freeze_startup_objects
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn, random_player
from workers.environments.checks.bounds_check import BoundsCheck, Excess
from workers.environments.registry import make
from workers.metrics.hooks.episodes import WatchedEnvironment
from workers.metrics.hooks.hook import EpisodeEvent
from workers.policies.observation_encoding import is_image
from workers.runtime.entry_points import add_cwd_to_path
from workers.tools.film import check_film, half_block_text, made_to_be_seen, write_film

_MOST_FRAMES = 1_000
_LONGEST = 40
"""Characters of a bound that is said."""
_SLOW, _MUCH = 1e-3, 0.25
"""Seconds in which an episode begins, and the share of the time that all of them take, from which on that is slow."""
_DEAR, _VERY_DEAR = 2e-4, 1e-3
"""Seconds of a step of one copy from which on processes pay, and experience is better used again and again."""
_TOGETHER, _MANY = 4.0, 256
"""How much faster all copies step than one where they are stepped together, and how many there may be then."""


class Walk:
    """What a random player sees in `environment`; of its time only the steps count."""

    def __init__(self, environment: Environment, seed: int = 0) -> None:
        self.world, self._seed = environment.world, seed
        self.episodes: list[EpisodeEvent] = []
        """Of all agents, as they end."""
        self._environment = WatchedEnvironment(environment, [self.episodes.append])
        self._environment.policy_of = {agent: place.name for agent, place in enumerate(self.world.places)}
        self.turns, self.env_steps, self.seconds = 0, 0, 0.0
        self.beginnings: list[float] = []
        """Seconds that turns in which an episode ended took beyond what others take."""
        self.before_ends = False
        """Whether a reward came before the end of an episode."""
        self.seen: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        """By part: the least and the greatest of each number."""
        self.excesses: list[Excess] = []
        self.frames: list[NDArray[np.uint8]] = []
        """Of the first episode, if they were asked for."""
        self._bounds = BoundsCheck(self.world)

    def go(self, seconds: float, film: bool = False, least: int = 1) -> Walk:
        """For so many seconds, or the `least` turns; with a `film` until an episode has ended, or for `_MOST_FRAMES`
        turns."""
        generator = np.random.default_rng(self._seed)
        players = [random_player(place, generator) for place in self.world.places]
        usual, until = deque([0.0], 100), 0.0
        turn = self._environment.reset(self._seed)
        while not self.env_steps or self.turns < least or time.perf_counter() < until or film:
            film = film and not self.episodes and len(self.frames) < _MOST_FRAMES
            if film and (frame := self._environment.render_rgb()) is not None:
                self.frames.append(frame.copy())
            actions = [players[one.agent](one) for one in turn.present]
            began, ended = time.perf_counter(), len(self.episodes)
            turn = self._environment.step(actions)
            took = time.perf_counter() - began
            self.turns += 1
            if self.turns > 1:
                self.env_steps, self.seconds = self.env_steps + turn.env_steps, self.seconds + took
            else:  # in which a world of JAX is compiled
                until = time.perf_counter() + seconds
            self._look(turn)
            if len(self.episodes) == ended:
                usual.append(took)
            else:
                self.beginnings.append(took - float(np.median(usual)))
        return self

    def earned(self, agent: str) -> list[float]:
        """What `agent` earned in each of its episodes."""
        return [one.episode_return for one in self.episodes if one.agent == agent]

    def _look(self, turn: Turn) -> None:
        self.excesses += self._bounds.look(turn)
        for one in turn.present:
            place = self.world.places[one.agent]
            for name, part in place.parts("observation", one.observation).items():
                least, most = part.min(0), part.max(0)
                known = self.seen.setdefault(f"{place.name}: {name}", (least, most))
                self.seen[f"{place.name}: {name}"] = np.minimum(known[0], least), np.maximum(known[1], most)
        news: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *turn.present)
        for told in news:
            self.before_ends |= bool(told.reward[~(told.terminated | told.truncated)].any())

    def suspicious(self) -> Iterator[str]:
        """What is no fault and yet seldom meant."""
        for name, (least, most) in self.seen.items():
            if least.size and bool((least == most).all()):
                yield f"{name} never changes"
        for one in self.excesses:
            where = f"{one.name}{f' ({one.field})' if one.field else ''}"
            yield f"{where} observes {one.value:g}, outside {one.low:g} to {one.high:g}"
        if not self.episodes:
            yield f"no episode ended in {self.turns:,} turns; say how long they last at most, or end them"
        for place in self.world.places:
            earned = self.earned(place.name)
            if len(earned) > 1 and min(earned) == max(earned):
                yield f"{place.name} earns {earned[0]:g} in every episode of a random player"
        if not self.before_ends and any(one.episode_return for one in self.episodes):
            yield "rewards come with the end of an episode alone"
        beginning = float(np.median(self.beginnings)) if self.beginnings else 0.0
        if beginning > _SLOW and (share := beginning * len(self.beginnings) / self.seconds) > _MUCH:
            yield f"an episode begins in {1e3 * beginning:.1f} ms, which is {share:.0%} of the time"


def examined(config: EnvironmentConfig, walk: Walk, seconds: float) -> dict[str, Any]:
    """What the environment of `config` is, as plain data: one copy is known by `walk`, many are played for `seconds`,
    and so is a world that does nothing."""
    world, steps, step = walk.world, [one.length for one in walk.episodes], walk.seconds / max(1, walk.env_steps)
    many, empty = (_rate(one, seconds) for one in (config, _empty(config, world)))
    return {
        "id": config.id,
        "agents": [_agent(place, walk.earned(place.name)) for place in world.places],
        "episodes": max(len(walk.earned(place.name)) for place in world.places),
        "episode_steps": [min(steps), round(fmean(steps), 1), max(steps)] if steps else None,
        "most_episode_steps": world.episode_steps,
        "copies": config.copies,
        "steps_per_second": {
            "one": round(1 / step) if step else 0,
            "copies": many,
            "empty": empty,
        },
        "suspicious": [*walk.suspicious()],
        "begin_with": _beginning(config, world, step, many),
    }


def _agent(place: Place, earned: list[float]) -> dict[str, Any]:
    sees, does = ([_part(leaf) for leaf in place.leaves if leaf.role == role] for role in ("observation", "action"))
    common = [_part(leaf) for leaf in place.leaves if leaf.common and leaf.role != "action_mask"]
    told = {"name": place.name, "at_most": place.many, "sees": [*common, *sees], "does": does}
    return {**told, "mask": place.masked is not None, "random_return": round(fmean(earned), 3) if earned else None}


def _part(leaf: Leaf) -> dict[str, Any]:
    space = leaf.space.model_dump(mode="json")
    return {"part": leaf.name, "space": type(leaf.space).__name__, **space}


def _rate(config: EnvironmentConfig, seconds: float) -> int:
    """Steps of all copies in a second."""
    environment = make(config)
    try:
        walk = Walk(environment).go(seconds)
        return round(walk.env_steps / walk.seconds)
    finally:
        environment.close()


def _empty(config: EnvironmentConfig, world: World) -> EnvironmentConfig:
    """A world that does nothing, of as many agents, who see about as much."""
    numbers = max(sum(int(np.prod(leaf.space.shape)) for leaf in place.observed.leaves) for place in world.places)
    settings = {"agents": len(world.places), "observation": min(max(4, numbers), 100_000), "actions": 2}
    return EnvironmentConfig(id="synthetic", copies=config.copies, settings=settings)


def _beginning(config: EnvironmentConfig, world: World, step: float, many: int) -> dict[str, Any]:
    """The configuration of a first run, where a copy takes `step` seconds and all make `many` steps in one."""
    together = step > _DEAR and many * step > _TOGETHER
    environment: dict[str, Any] = {"id": config.id, **({"settings": config.settings} if config.settings else {})}
    chosen = [leaf.space for place in world.places for leaf in place.acted.leaves]
    algorithm = "ppo"
    if together:
        environment["copies"] = _MANY
    elif step > _DEAR:
        environment["processes"] = min(config.copies, os.cpu_count() or 1)
    if step > _VERY_DEAR and not together and len(chosen) == 1:
        algorithm = "sac" if isinstance(chosen[0], Box) else "dqn"
    flat = any(is_image(leaf.space) and len(leaf.space.shape) == 2 for place in world.places for leaf in place.leaves)
    frames = {"frames": 4} if flat and algorithm != "sac" else {}  # read by convolutions, as channels of one image
    return {"environment": environment, "policy": {"algorithm": {"name": algorithm, **frames}}}


def _text(told: dict[str, Any]) -> Iterator[str]:
    """For people."""
    yield told["id"]
    for agent in told["agents"]:
        many = f", at most {agent['at_most']} at once" if agent["at_most"] > 1 else ""
        earned = "" if agent["random_return"] is None else f"; a random player earns {agent['random_return']:g}"
        yield f"  {agent['name']}{many}{earned}"
        for verb in ("sees", "does"):
            yield from (f"    {verb}  {_said(part)}" for part in agent[verb])
        if agent["mask"]:
            yield "    and is told which actions are legal"
    most = told["most_episode_steps"]
    bound = f", at most {most:,}" if most else ""
    if told["episode_steps"]:
        least, mean, longest = told["episode_steps"]
        yield f"  {told['episodes']:,} episodes of {least:,} to {longest:,} steps, {mean:,} in the mean{bound}"
    rates = told["steps_per_second"]
    yield (
        f"  {rates['one']:,} steps/s of one copy, {rates['copies']:,} of {told['copies']} copies; a world that does "
        f"nothing makes {rates['empty']:,}"
    )
    yield from (f"  suspicious: {one}" for one in told["suspicious"])
    yield "to begin with, in a file of your own:"
    yield from (f"  {line}" for line in yaml.safe_dump(told["begin_with"], sort_keys=False).splitlines())


def _said(part: Mapping[str, Any]) -> str:
    """A space in a few words; long bounds are left out."""
    facts = {
        name: value for name, value in part.items() if name not in ("part", "space", "kind") and value not in (None, 0)
    }
    return " ".join([part["part"], part["space"], *(f"{k}={v}" for k, v in facts.items() if len(str(v)) <= 40)])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seconds", type=click.FloatRange(min=0.01), default=2.0, help="That each of three walks takes.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A film of an episode: .gif or .mp4.")
@click.option("--picture", is_flag=True, help="Show it, in colours.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def main(config: Path, seconds: float, out: Path | None, picture: bool, as_json: bool) -> None:
    """Says what the environment in CONFIG is."""
    with one_sentence():
        add_cwd_to_path()
        if out is not None:
            check_film(out)
        where = read_run(config).environment
        one = made_to_be_seen(where.model_copy(update={"copies": 1, "processes": 0}))
        try:
            walk = Walk(one).go(seconds, film=out is not None)
            told = examined(where, walk, seconds)
            click.echo(json.dumps(told, indent=2) if as_json else "\n".join(_text(told)))
            if out is not None:
                write_film(out, walk.frames, 20.0)
            if picture and (frame := one.render_rgb(0, 1)) is not None:
                click.echo(half_block_text(frame))
        finally:
            one.close()


if __name__ == "__main__":
    freeze_startup_objects()
    main()
