"""PPO in one file and one process, to be compared with: `make returns` runs it for as many steps as ours.

python -m tests.returns.ppo_single_file MinAtar/Breakout-v1 --steps 1000000 --seed 0

It is written in the manner of CleanRL's ppo.py (github.com/vwxyzjn/cleanrl), without our code, with the network and
hyperparameters that our `ppo` has by default; returns are not normalised, a truncated episode counts as terminated. It
takes images of bits, channels last, and one choice. Out flow: JSON with the steps, the mean return in their last 5 %
(`last`) and of 100 episodes without exploring (`greedy`).

Legend: `T` steps of a rollout, `E` environments, `A` actions, `N` rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from importlib import import_module
from math import sqrt
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

T, E, EPOCHS, MINIBATCHES = 64, 64, 4, 16
LEARNING_RATE, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM = 5e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 1.0
LAST, EPISODES, EPISODE_SEED = 0.05, 100, 20_000


def layer(module: nn.Module, gain: float = sqrt(2)) -> nn.Module:
    """With orthogonal weights and no bias."""
    nn.init.orthogonal_(module.weight, gain)  # type: ignore[arg-type] # a tensor
    nn.init.zeros_(module.bias)  # type: ignore[arg-type] # a tensor
    return module


class Agent(nn.Module):
    """Convolutions, then a perceptron for the policy and one for the value."""

    def __init__(self, shape: tuple[int, int, int], actions: int) -> None:
        super().__init__()
        height, width, channels = shape
        self.encoder = nn.Sequential(
            *(layer(nn.Conv2d(channels, 16, 3, padding=1)), nn.ReLU(), layer(nn.Conv2d(16, 32, 3)), nn.ReLU()),
            *(nn.Flatten(), layer(nn.Linear(32 * (height - 2) * (width - 2), 128)), nn.ReLU()),
        )
        self.policy, self.value = (
            nn.Sequential(layer(nn.Linear(128, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh(), last)
            for last in (layer(nn.Linear(64, actions), 0.01), layer(nn.Linear(64, 1), 1.0))
        )

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [N, height, width, channels] -> logits [N, A] and values [N]."""
        features = self.encoder(observation.permute(0, 3, 1, 2).float())
        return self.policy(features), self.value(features)[:, 0]


def advantages(reward: Tensor, value: Tensor, done: Tensor) -> Tensor:
    """GAE of [T, E], with values [T + 1, E] and whether an episode ended with each step."""
    found, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        going_on = GAMMA * (1 - done[t])
        last = found[t] = reward[t] + going_on * value[t + 1] - value[t] + going_on * LAMBDA * last
    return found


def update(agent: Agent, optimizer: torch.optim.Optimizer, rows: dict[str, Tensor]) -> None:
    """Epochs of minibatches of a rollout's rows [T * E, ...]."""
    for _ in range(EPOCHS):
        for at in torch.randperm(T * E).chunk(MINIBATCHES):
            logits, value = agent(rows["observation"][at])
            policy, gain = Categorical(logits=logits), rows["advantage"][at]
            ratio = (policy.log_prob(rows["action"][at]) - rows["log_probability"][at]).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            error = 0.5 * (value - rows["target"][at]).square().mean()
            loss = VALUE * error - surrogate - ENTROPY * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
            optimizer.step()


def train(make: Any, steps: int, seed: int) -> tuple[Agent, float]:
    """What has learned, and the mean return of the last episodes."""
    envs = [make() for _ in range(E)]
    agent = Agent(envs[0].observation_space.shape, envs[0].action_space.n)
    optimizer, rounds = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5), steps // (T * E)
    seen = np.stack([env.reset(seed=seed * E + i)[0] for i, env in enumerate(envs)])
    observation = torch.zeros(T, *seen.shape, dtype=torch.bool)
    action, earned, last = torch.zeros(T, E, dtype=torch.int64), np.zeros(E), []
    (log_probability, reward, done), value = torch.zeros(3, T, E), torch.zeros(T + 1, E)
    for k in range(rounds):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - k / rounds)
        for t in range(T):
            observation[t] = torch.from_numpy(seen)
            with torch.no_grad():
                logits, value[t] = agent(observation[t])
            action[t] = (policy := Categorical(logits=logits)).sample()
            log_probability[t] = policy.log_prob(action[t])
            for i, env in enumerate(envs):
                seen[i], gained, terminated, truncated, _ = env.step(int(action[t, i]))
                reward[t, i], done[t, i] = float(gained), float(terminated or truncated)
                earned[i] += gained
                if done[t, i]:
                    last += [earned[i]] if k >= int((1 - LAST) * rounds) else []
                    seen[i], earned[i] = env.reset()[0], 0.0
        value[T] = agent(torch.from_numpy(seen))[1].detach()
        advantage = advantages(reward, value, done)
        rows = {"observation": observation, "action": action, "log_probability": log_probability}
        rows |= {"advantage": advantage, "target": advantage + value[:T]}
        update(agent, optimizer, {name: column.flatten(0, 1) for name, column in rows.items()})
    return agent, float(np.mean(last))


def play(agent: Agent, env: Any, seed: int) -> float:
    """The return of one episode without exploring."""
    seen, earned, over = env.reset(seed=seed)[0], 0.0, False
    while not over:
        with torch.no_grad():
            action = agent(torch.from_numpy(seen[None]))[0].argmax(1)
        seen, gained, terminated, truncated, _ = env.step(int(action))
        earned, over = earned + float(gained), terminated or truncated
    return earned


def main() -> None:
    """Trains, plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("id", help="of Gymnasium")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # two on busy cores wait for one another
    torch.manual_seed(given.seed)
    if given.id.startswith("MinAtar/"):
        import_module("minatar.gym").register_envs()
    make = partial(gymnasium.make, given.id, disable_env_checker=True)
    agent, last = train(make, given.steps, given.seed)
    greedy = float(np.mean([play(agent, make(), EPISODE_SEED + i) for i in range(EPISODES)]))
    json.dump({"steps": given.steps // (T * E) * T * E, "last": last, "greedy": greedy}, sys.stdout)


if __name__ == "__main__":
    main()
