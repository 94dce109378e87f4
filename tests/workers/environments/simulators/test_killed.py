"""Simulators killed at random instants: what they finished is there, in order, and no episode is of two of them."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runs import environment
from tests.waiting import until
from tests.workers.environments.simulators.nursery import end_of
from tests.workers.environments.simulators.serving import Row, Serving, serving

log = logging.getLogger(__name__)

MANY = 4


class Nursery:
    """Simulators by name; each has had many lives."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process, self._address = process, address
        self.pids: dict[str, int] = {}
        self.lives = 0

    def bear(self, name: str) -> None:
        """The next one of that name."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self.lives += 1
        stdin.write(f"{self._address} {name} {self.lives}\n")
        stdin.flush()
        self.pids[name] = int(stdout.readline())


def steps(served: Serving) -> list[int]:
    """Made so far, by copy."""
    return [len(served.rows(copy=copy)) for copy in range(MANY)]


def everybody_plays_on(served: Serving, more: int) -> float:
    """Waits until each copy has made so many more steps; steps a second of all."""
    before, begin = steps(served), time.monotonic()
    until(lambda: all(now - then >= more for now, then in zip(steps(served), before, strict=True)))
    return (sum(steps(served)) - sum(before)) / (time.monotonic() - begin)


def check(rows: list[Row], folder: Path) -> int:
    """What became of one stream; how many lives were in it."""
    mixed = [pair for pair in pairwise(rows) if not pair[0].end and pair[0].seen[0] != pair[1].seen[0]]
    assert not mixed, "an episode is of two simulators"
    lives = [(int(life), [*played]) for life, played in groupby(rows, lambda row: row.seen[0])]
    assert len({life for life, _ in lives}) == len(lives), "a simulator came back as if nothing had been"
    for life, played in lives:
        assert [int(row.seen[1]) for row in played] == [*range(len(played))], "a step is missing, or twice"
        arrived = int((folder / str(life)).read_text() or 0)
        assert len(played) >= arrived, "a finished step is lost"
        for step, row in enumerate(played[:-1]):
            assert (row.reward, row.end) == (step + 1, end_of(step))
        if life != lives[-1][0]:
            assert played[-1].end
            assert played[-1].reward in (0.0, len(played))
    return len(lives)


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_simulators_lose_no_finished_step_and_mix_no_episodes_I7_I12(kills: int, tmp_path: Path) -> None:
    """I7 I12: kill -9 at random instants, and at once another one of the same name; then all play on."""
    chance = random.Random(kills)
    command = [sys.executable, "-P", "-m", "tests.workers.environments.simulators.nursery", str(tmp_path)]
    asked: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment()}
    # the run ends before, and says farewell to those who live
    with subprocess.Popen(command, **asked) as process, serving(copies=MANY) as served:
        nursery = Nursery(process, served.address)
        for number in range(MANY):
            nursery.bear(f"sim-{number}")
        before = everybody_plays_on(served, 20 + 4 * kills)
        for _ in range(kills):
            time.sleep(chance.random() * 0.05)
            name = chance.choice([*nursery.pids])
            os.kill(nursery.pids[name], signal.SIGKILL)
            nursery.bear(name)
        everybody_plays_on(served, 1)
        after = everybody_plays_on(served, 20 + 4 * kills)
    log.info("killed=%d steps_per_second_before=%.0f afterwards=%.0f", kills, before, after)
    assert sum(check(served.rows(copy=copy), tmp_path) for copy in range(MANY)) <= nursery.lives
