"""Independent PPO of several agents in one file and one process, to be compared with, as ppo_single_file.py is.

python -m tests.returns.ppo_agents_single_file gymnasium_multi:lbforaging:Foraging-8x8-2p-2f-coop-v3 --steps 2000000

In flow: an environment of Gymnasium whose spaces are tuples, of vectors and choices. Each agent learns by itself, with
the hyperparameters that our `ppo` has by default but for a gamma of 0.99; a truncated episode counts as terminated. Out
flow: JSON with the steps of all agents, the mean return of all together in their last 5 % (`last`) and of 100 episodes
without exploring (`greedy`).

Legend: `T` steps of a rollout, `E` environments, `A` actions, `N` rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from importlib import import_module
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from tests.returns.ppo_single_file import EPISODE_SEED, EPISODES, LAST, LEARNING_RATE, E, T, advantages, layer, update


class Agent(nn.Module):
    """A perceptron for the policy and one for the value."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.policy, self.value = (
            nn.Sequential(layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh(), last)
            for last in (layer(nn.Linear(64, actions), 0.01), layer(nn.Linear(64, 1), 1.0))
        )

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [N, inputs] -> logits [N, A] and values [N]."""
        return self.policy(observation), self.value(observation)[:, 0]


class Rollout:
    """What one agent saw and did in all environments."""

    def __init__(self, agent: Agent, inputs: int) -> None:
        self.agent, self.optimizer = agent, torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
        self.observation, self.action = torch.zeros(T, E, inputs), torch.zeros(T, E, dtype=torch.int64)
        (self.log_probability, self.reward), self.value = torch.zeros(2, T, E), torch.zeros(T + 1, E)

    def act(self, t: int, seen: Tensor) -> Tensor:
        """Actions [E] of step `t`, of what is `seen` [E, inputs]."""
        with torch.no_grad():
            logits, self.value[t] = self.agent(seen)
        policy = Categorical(logits=logits)
        self.observation[t], self.action[t] = seen, policy.sample()
        self.log_probability[t] = policy.log_prob(self.action[t])
        return self.action[t]

    def learn(self, seen: Tensor, done: Tensor, part: float) -> None:
        """From these steps, with `done` [T, E], behind which [E, inputs] are `seen`; `part` of the run is over."""
        self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - part)
        self.value[T] = self.agent(seen)[1].detach()
        gain = advantages(self.reward, self.value, done)
        rows = {"observation": self.observation, "action": self.action, "log_probability": self.log_probability}
        rows |= {"advantage": gain, "target": gain + self.value[:T]}
        update(cast(Any, self.agent), self.optimizer, {name: column.flatten(0, 1) for name, column in rows.items()})


def rows(seen: list[Any]) -> list[Tensor]:
    """What each agent sees, [E, inputs], of what all saw in each environment."""
    return [torch.from_numpy(np.stack(each).astype(np.float32)) for each in zip(*seen, strict=True)]


def train(make: Any, steps: int, seed: int) -> tuple[list[Agent], float]:
    """Who has learned, and the mean return of the last episodes."""
    envs = [make() for _ in range(E)]
    spaces = zip(envs[0].observation_space.spaces, envs[0].action_space.spaces, strict=True)
    each = [Rollout(Agent(seen.shape[0], done.n), seen.shape[0]) for seen, done in spaces]
    seen = [env.reset(seed=seed * E + i)[0] for i, env in enumerate(envs)]
    rounds, done, earned, last = steps // (T * E * len(each)), torch.zeros(T, E), np.zeros(E), []
    for k in range(rounds):
        for t in range(T):
            actions = torch.stack([one.act(t, sees) for one, sees in zip(each, rows(seen), strict=True)], 1).tolist()
            for i, env in enumerate(envs):
                seen[i], gained, terminated, truncated, _ = env.step(tuple(actions[i]))
                for one, reward in zip(each, gained, strict=True):
                    one.reward[t, i] = float(reward)
                done[t, i] = float(np.any(terminated) or np.any(truncated))
                earned[i] += float(np.sum(gained))
                if done[t, i]:
                    last += [earned[i]] if k >= int((1 - LAST) * rounds) else []
                    seen[i], earned[i] = env.reset()[0], 0.0
        for one, sees in zip(each, rows(seen), strict=True):
            one.learn(sees, done, k / rounds)
    return [one.agent for one in each], float(np.mean(last))


def play(agents: list[Agent], env: Any, seed: int) -> float:
    """The return of one episode without exploring."""
    seen, earned, over = env.reset(seed=seed)[0], 0.0, False
    while not over:
        with torch.no_grad():
            sees = zip(agents, rows([seen]), strict=True)
            action = tuple(int(agent(row)[0].argmax(1)) for agent, row in sees)
        seen, gained, terminated, truncated, _ = env.step(action)
        earned, over = earned + float(np.sum(gained)), bool(np.any(terminated) or np.any(truncated))
    return earned


def main() -> None:
    """Trains, plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("id", help="gymnasium_multi:MODULE:ID")
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    _, module, id = given.id.split(":")
    import_module(module)
    make = partial(gymnasium.make, id, disable_env_checker=True)
    agents, last = train(make, given.steps, given.seed)
    greedy = float(np.mean([play(agents, make(), EPISODE_SEED + i) for i in range(EPISODES)]))
    made = given.steps // (T * E * len(agents)) * T * E * len(agents)
    json.dump({"steps": made, "last": last, "greedy": greedy}, sys.stdout)


if __name__ == "__main__":
    main()
