"""A world of one's own with three agents, who have to remember: written, trained, stopped, gone on with, looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways.terminal import Terminal
from tests.workers.coordination.dashboard.browser import browser

pytestmark = pytest.mark.slow

WORLD = '''
import gymnasium
import numpy
import pettingzoo


class Signals(pettingzoo.ParallelEnv):
    """Each of three is shown a light at first, and earns 1 if it tells its colour at the end."""

    metadata = {"name": "signals"}
    possible_agents = ["red", "green", "blue"]

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def look(self):
        lit = self.at == 0
        return {agent: numpy.array([light * lit, self.at / 4], numpy.float32) for agent, light in self.lights.items()}

    def reset(self, seed=None, options=None):
        draws = numpy.random.default_rng(seed)
        self.agents, self.at = list(self.possible_agents), 0
        self.lights = {agent: 2 * int(draws.integers(2)) - 1 for agent in self.agents}
        return self.look(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.at += 1
        over, names = self.at == 4, self.agents
        rewards = {agent: float(over and 2 * actions[agent] - 1 == self.lights[agent]) for agent in names}
        self.agents = [] if over else names
        ends, cuts = dict.fromkeys(names, over), dict.fromkeys(names, False)
        return self.look(), rewards, ends, cuts, {agent: {} for agent in names}

    def render(self):
        colours = {-1: (40, 40, 200), 0: (0, 0, 0), 1: (200, 40, 40)}
        lights = [colours[light * (self.at == 0)] for light in self.lights.values()]
        return numpy.kron(numpy.array([lights], numpy.uint8), numpy.ones((16, 16, 1), numpy.uint8))


def make(render_mode=None):
    return Signals(render_mode)
'''
TRAIN = "rookery train --env signals:make --steps 200000 --run-dir runs/signals --set policy.network.core=gru"
"""One command: the world, and policies that remember."""


def test_three_agents_with_memory_learn_in_a_world_of_the_users_own(cloned: Path, shell: Terminal) -> None:
    (cloned / "signals.py").write_text(WORLD)
    shell.type(TRAIN)
    with browser(cloned.parent, 1_300) as window:
        window.open(shell.shows("the run's page:"))
        shell.shows("green")
        window.until("return Curves.points() > 6")
        assert window.do("return Curves.panels[0].caption.textContent") == "return"
        shell.press("C-c")
        window.until("return document.getElementById('stop').disabled")
        assert window.complaints() == []
    assert "to go on: rookery train" in shell.ended(1)
    shell.press("Up")
    shell.press("Enter")
    shell.shows("run folder:", 300)
    for line in shell.ended().splitlines():
        if line.startswith("│"):
            name, random, _, first, last, *_ = line.replace("│", " ").split()
            assert float(random) < 0.7, "who guesses is right every other time"
            assert float(first) < 0.7 < float(last), f"{name} remembers what it was shown"
    told = shell.run("rookery evaluate runs/signals --episodes 20")
    means = [float(line.split()[-4]) for line in told.replace("│", " ").splitlines() if "signals:make" in line]
    assert len(means) == 3
    assert min(means) > 0.9
    assert "turn 4" in shell.run("rookery watch runs/signals")
    assert "wrote curves.png" in shell.run("rookery plot runs/signals -o curves.png")
    assert (cloned / "curves.png").stat().st_size > 10_000
