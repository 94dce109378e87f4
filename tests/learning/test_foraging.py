"""Level-based foraging, learned in our own field and tried in lbforaging's, with exploration off."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from launch.config_loader import load
from tests.learning.greedy import make_run
from tests.learning.test_presets import SEEDS, train
from tests.playing import play
from tests.tools import skip_or_fail
from tests.trial import Trial
from workers.environments.adapters.gymnasium_multi_agent import TupleMultiAgent
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.rollout.players.frozen_player import FrozenPlayer
from workers.tools.evaluate import frozen_policies, load_run

ORIGINAL = "lbforaging:Foraging-{0}x{0}-2p-2f-coop-v3"
EPISODES, SEED = 100, 20_000
MOST = 0.5
"""Both foods, half of them to each agent."""


class Legal(TupleMultiAgent):
    """lbforaging's field, which tells besides what it makes nothing of, as `get_valid_actions` has it."""

    def reset(self, **seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return super().reset(**seed)[0], self._masks()

    def step(self, actions: Any) -> tuple[dict[str, Any], ...]:
        return *super().step(actions)[:4], self._masks()

    def _masks(self) -> dict[str, Any]:
        allowed = [
            {action.value for action in one} for one in zip(*self._env.unwrapped.get_valid_actions(), strict=True)
        ]
        told = ([int(action in one) for action in range(6)] for one in allowed)
        return {name: {"action_mask": mask} for name, mask in zip(self.possible_agents, told, strict=True)}


def foraged(folder: Path, size: int = 8) -> float:
    """What an agent earns on average in lbforaging, of the newest policies in `folder`, which do the likeliest."""
    if importlib.util.find_spec("lbforaging") is None:
        skip_or_fail("lbforaging is not installed")
    id = ORIGINAL.format(size)
    field = PettingZooEnvironment(id, lambda: Legal(id, gymnasium.make(id, disable_env_checker=True)), EPISODES)
    run, world = load_run(folder), field.world
    frozen = frozen_policies(folder, run, world, {}, "newest")
    players = {agent: FrozenPlayer(frozen[policy], EPISODES) for agent, policy in run.policy_of(world).items()}
    found = play(field, players, EPISODES, SEED)
    field.close()
    return statistics.mean(mean for mean, *_ in found.values())


@pytest.mark.slow
def test_foraging_is_soon_learned_in_a_small_field(tmp_path: Path, trial: Trial) -> None:
    """E10: random players earn 0.02 there."""
    keys = ["environment.settings.size=6", "policy.network.hidden=[64, 64]", "policy.learning_rate=0.003", *trial.keys]
    make_run(load("foraging", keys, steps=trial.steps(320_000), seed=trial.seed), tmp_path)
    trial.reaches(foraged(tmp_path, 6), 0.2)


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_foraging_reaches_95_of_100_in_lbforaging(tmp_path: Path) -> None:
    """Median of three seeds, separate workers, exploration off; Papoudakis et al. 2021 (arXiv:2006.07869)
    have it all."""
    found = []
    for seed in SEEDS:
        train("foraging", tmp_path / str(seed), seed)
        found.append(foraged(tmp_path / str(seed)))
    assert statistics.median(found) >= 0.95 * MOST
