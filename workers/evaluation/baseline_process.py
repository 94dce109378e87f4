"""The baselines of a run, what random and scripted players earn in its environment: played beside training by a process
of their own, which may end or hang as it likes.

In flows: a run's configuration, the time. Out flow: what `summary.json` says of baselines, more of it the later it is
asked. They take at most a tenth of the run's time by the clock, on which waiting for a processor that the run has does
not count.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig, Run
from workers.environments.base import Environment, Player, random_player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import BUILT_IN, make
from workers.environments.simulators import EXTERNAL
from workers.evaluation.episodes import EpisodePlay, evaluation_config
from workers.evaluation.forked import Ended, Forked, Tell
from workers.rollout.players.scripted_player import Script
from workers.runtime.last_words import tell_failure
from workers.runtime.logs import configure_logging

log = logging.getLogger(__name__)

_SHARE, _LEAST = 0.1, 1.0
"""Of the run's time, and seconds that are there in any case."""
_PATIENCE = 10.0
"""Seconds after the run's end, however long it was: by then there was time."""
_NICE = 10
_TELL_SECONDS = 0.5
_COPIES = 64
_SCHEDULED = Path("/proc/self/schedstat")
"""Where Linux tells how long this thread has waited for a processor, in nanoseconds, as the second number."""


class BaselineProcess:
    """Of `run`, which began at `began` (time.monotonic) and lies in `folder`; to be made before threads are begun.
    `lock`: the descriptor that holds the folder, which ends with the run, and not with this process after it."""

    def __init__(self, run: Run, folder: Path, began: float, lock: int | None = None) -> None:
        self._run, self._began = run, began
        self.found: dict[str, dict[str, float]] = {}
        """What each agent's baselines earned, of the episodes played so far."""
        self._spent, self._over, self._says = 0.0, False, ""
        self._until: float | None = None
        self._stopped = False
        self._forked: Forked | None = None
        if run.environment.id == EXTERNAL:
            self._over, self._says = True, "external simulators are played by nobody else"
        elif not run.baseline_episodes:
            self._over, self._says = True, "none are asked for, by baseline_episodes"
        else:
            without = () if lock is None else (lock,)
            self._forked = Forked(lambda tell: _play(run, folder, began, tell), without)

    def look(self, seconds: float = 0.0) -> bool:
        """Takes in what was played since; whether that is anything. Waits for it at most so long."""
        if self._forked is None or self._over:
            return False
        lines = self._forked.lines(seconds)
        if lines:
            told = json.loads(lines[-1])
            self.found, self._spent = told["found"], told["spent"]
            self._over, self._says = told["over"], told["says"]
        if not self._over and self._forked.over:
            self._over, self._says = True, f"the process that played them is gone: {self._forked.fate}"
            log.warning('event=no_baselines reason="%s"', self._says)
            return True
        return bool(lines)

    @property
    def budget(self) -> float:
        """Seconds that they may take, of a run that has lasted until now or has ended."""
        return _allowed((time.monotonic() if self._until is None else self._until) - self._began)

    def run_ended(self, complete: bool = True) -> None:
        """From now on what is left of the budget is time in which the run waits for them, if it is `complete`."""
        self._until, self._stopped = time.monotonic(), not complete

    @property
    def left(self) -> float:
        """Seconds in which the run, which has ended, may go on waiting; 0 when all are played, or are not to be."""
        if self._over or self._stopped or self._until is None:
            return 0.0
        return max(0.0, self._until + min(self.budget - self._spent, _PATIENCE) - time.monotonic())

    def summary(self, policy_of: Mapping[str, str]) -> dict[str, Any]:
        """`baselines`: policy -> those of the first agent that it plays by `policy_of`; `baselines_missing`: why some,
        or some of their episodes, are not there; what they took and what they might take."""
        by_policy: dict[str, dict[str, float]] = {}
        for agent, policy in policy_of.items():
            by_policy.setdefault(policy, self.found.get(agent, {}))
        if self._over:
            missing = self._says
        elif self._stopped or self.left:
            missing = "the run was stopped before all was played"
        else:
            missing = f"the {self.budget:.3g} s that their process had were over before all was played"
        return {
            "baselines": by_policy,
            "baselines_missing": missing,
            "baselines_seconds": {"spent": self._spent, "budget": self.budget},
        }

    def close(self) -> None:
        """Ends the process."""
        if self._forked is not None:
            self._forked.close()


def _allowed(seconds: float) -> float:
    """Seconds of the budget of a run that has lasted so long."""
    return max(_LEAST, _SHARE * seconds)


def _play(run: Run, folder: Path, began: float, tell: Tell) -> int:
    """In the forked process: plays, and tells again and again what has been found."""
    os.nice(_NICE)
    configure_logging("baselines", run, folder)
    _redirect(folder / run.log_dir / "baselines.out")
    where = run.environment.model_copy(update={"processes": 0})  # this process may end as well as another
    measured = Baselines(where, run.baseline_episodes, run.seed, _COPIES if _is_ours(where) else 1)
    log.info("event=playing episodes=%d", run.baseline_episodes)
    told_at, begun = time.monotonic(), _unhindered()

    def say(over: bool = False, says: str = "") -> None:
        nonlocal told_at
        told_at = time.monotonic()
        told = {"found": measured.found, "spent": _unhindered() - begun, "over": over, "says": says}
        tell(json.dumps(told))

    def pace() -> None:
        nonlocal begun
        now = time.monotonic()
        if now - told_at >= _TELL_SECONDS:
            say()
        while (spent := _unhindered() - begun) > _allowed(time.monotonic() - began):
            if told_at < now:
                say()
            time.sleep(_TELL_SECONDS)
            begun = _unhindered() - spent

    try:
        measured.play(pace)
    except Ended:
        return 0
    except Exception as fault:
        if not isinstance(fault.__cause__, Ended):  # in the world's code
            said, _ = tell_failure("baselines", fault)
            say(True, said.strip().rpartition("\n")[2])
        return 0
    say(True)
    return 0


def _unhindered() -> float:
    """Seconds of the clock without those in which this thread waited for a processor."""
    waited = int(_SCHEDULED.read_text().split()[1]) if _SCHEDULED.exists() else 0
    return time.monotonic() - waited / 1e9


def _is_ours(where: EnvironmentConfig) -> bool:
    """Whether it steps many copies in about the time of one. Where it does not they play one after the other, so that
    whatever time there is ends with as many whole episodes as there can be."""
    return where.id in BUILT_IN and where.members is None


def _redirect(output: Path) -> None:
    """What the world prints, and what a crash of it leaves, is not taken for words of this process's parent."""
    output.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


Found = dict[str, dict[str, float]]
"""agent -> {"random", "random_stderr", "random_episodes"}; the same of `scripted`, if the world has such a player."""


class Baselines:
    """Of so many whole episodes, or some more, as far as they have been played, by at most so many `copies` at once;
    reproducible from `seed`."""

    def __init__(self, config: EnvironmentConfig, episodes: int, seed: int, copies: int) -> None:
        self._config = evaluation_config(config, min(copies, episodes))
        self._episodes, self._seed = episodes, seed
        self._games: dict[str, EpisodePlay] = {}

    @property
    def found(self) -> Found:
        """Of the episodes that every copy has finished."""
        result: Found = {}
        for kind, game in self._games.items():
            for agent, earned in game.returns.items():
                if earned.size:
                    mean, error = mean_and_error(earned.ravel())
                    told = {kind: mean, f"{kind}_stderr": error, f"{kind}_episodes": earned.size}
                    result[agent] = {**result.get(agent, {}), **told}
        return result

    def play(self, on_turn: Callable[[], None] = lambda: None) -> None:
        """Plays all of them; `on_turn` is called once a turn and may raise."""
        environment = CheckedEnvironment(make(self._config))
        try:
            places = environment.world.places
            generators = np.random.default_rng(self._seed).spawn(len(places))
            chance = {place.name: random_player(place, g) for place, g in zip(places, generators, strict=True)}
            self._play("random", environment, chance, on_turn)
            environment.reset(self._seed)
            player = environment.scripted()
            if player is not None:
                scripts = {place.name: Script("world", "baselines", place, player) for place in places}
                self._play("scripted", environment, scripts, on_turn)
        finally:
            environment.close()

    def _play(
        self, kind: str, environment: Environment, players: Mapping[str, Player], on_turn: Callable[[], None]
    ) -> None:
        game = self._games[kind] = EpisodePlay(environment, players, self._episodes, self._seed)
        while not game.over:
            on_turn()
            game.step()


def mean_and_error(earned: NDArray[np.float64]) -> tuple[float, float]:
    """Of returns, the standard error 0 where there is a single one."""
    spread = float(np.std(earned, ddof=1)) / math.sqrt(len(earned)) if len(earned) > 1 else 0.0
    return float(np.mean(earned)), spread
