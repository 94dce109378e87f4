"""What the policies of a finished run earn with exploration off: 100 episodes with seeds of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config import Run
from workers.environments.base import Player, Present
from workers.environments.baselines import play
from workers.environments.registry import make
from workers.learning.checkpoint import load_newest
from workers.plan import PolicyPlan, plan_policies
from workers.policies.actor_critic import ActorCritic
from workers.policies.build import build
from workers.policies.central import CentralActorCritic
from workers.policies.flat import flatten_

EPISODES, SEED = 100, 20_000


def greedy_returns(run: Run, folder: Path) -> dict[str, float]:
    """agent -> mean return of the newest checkpoints in `folder`, each agent present in every turn."""
    where = run.environment.model_copy(update={"copies": EPISODES, "processes": 0})
    environment = make(where, "evaluate")
    try:
        plans = plan_policies(run.model_copy(update={"environment": where}), environment.world)
        players = {
            environment.world.agents[agent].name: player(plan, folder / "checkpoints" / plan.name)
            for plan in plans.values()
            for agent in plan.agents
        }
        return {name: mean for name, (mean, _) in play(environment, players, EPISODES, SEED).items()}
    finally:
        environment.close()


def player(plan: PolicyPlan, folder: Path) -> Player:
    """Does the likeliest thing, and forgets where an episode ended."""
    policy = build(plan.interface, plan.config, 0)
    found = load_newest(folder, flatten_(policy).hash)
    assert found is not None
    assert isinstance(policy, ActorCritic | CentralActorCritic)
    policy.load_state_dict(found.weights)
    states = np.zeros((EPISODES, plan.config.network.state), np.float32)
    place, noise = plan.interface.place, np.random.default_rng(0)

    def choose(present: Present) -> NDArray:
        assert present.copies is None
        states[present.terminated | present.truncated] = 0
        seen = plan.interface.shown.join(place.parts("observation", present.observation).__getitem__, (EPISODES,))
        acted = policy.act(torch.from_numpy(seen), noise, greedy=True, state=states if states.size else None)
        if states.size:
            states[:] = acted["state"]
        _, actions = plan.interface.actions.rows(acted["action"], acted.get("amount"))
        return actions

    return choose
