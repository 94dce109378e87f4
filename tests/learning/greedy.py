"""Runs within this process, and what the policies of a finished run earn with exploration off: 100 episodes with seeds
of their own."""

from __future__ import annotations

import os
from pathlib import Path

from protocol.config import Run
from workers.acting.frozen_player import FrozenPlayer
from workers.environments.baselines import play
from workers.environments.registry import make
from workers.export import export
from workers.life import claim
from workers.plan import plan_policies
from workers.policies.frozen import Frozen
from workers.sequential import Sequential

EPISODES, SEED = 100, 20_000


def make_run(run: Run, folder: Path) -> None:
    """The whole of `run` in this process, as `--sequential` makes it."""
    lock = claim(run, folder)
    sequential = Sequential(run, folder)
    sequential.finish(sequential.run())
    os.close(lock)


def greedy_returns(run: Run, folder: Path) -> dict[str, float]:
    """agent -> mean return of the newest policies in `folder`, as they are exported, which do the likeliest thing."""
    where = run.environment.model_copy(update={"copies": EPISODES, "processes": 0, "async_factor": 1})
    environment = make(where, "evaluate")
    try:
        names = [agent.name for agent in environment.world.agents]
        frozen = {
            names[agent]: Frozen.load(export(folder, plan.name, "safetensors", None, "newest"))
            for plan in plan_policies(run.model_copy(update={"environment": where}), environment.world).values()
            for agent in plan.agents
        }
        players = {name: FrozenPlayer(policy, EPISODES) for name, policy in frozen.items()}
        return {name: mean for name, (mean, _) in play(environment, players, EPISODES, SEED).items()}
    finally:
        environment.close()
