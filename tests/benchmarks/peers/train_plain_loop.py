"""W4 as a plain loop, the way one writes it in an afternoon: one process, one thread, no pipeline.

Two policies of `torch.nn` with the networks, batches and settings of the preset `treasure-hunt`, torch's Adam and
automatic gradients; our own world, which steps all copies in one call. Nothing is published, checked or saved.

Legend: `E` copies, `T` rows of a segment, `O` numbers of an observation.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.benchmarks.peers.stepping import COPIES, SEGMENT, Tally
from workers.environments.base import AgentTimeStep
from workers.environments.worlds.treasure_hunt import TreasureHunt

GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 0.97, 0.95, 0.2, 0.01, 0.5, 1.0


def _tower(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Agent:
    """A policy, what it has seen, and its updates."""

    def __init__(self, inputs: int, actions: int) -> None:
        self._actor, self._critic = _tower(inputs, actions), _tower(inputs, 1)
        self._parameters = [*self._actor.parameters(), *self._critic.parameters()]
        self._optimizer = torch.optim.Adam(self._parameters, lr=1e-3)
        self._seen = torch.zeros(SEGMENT, COPIES, inputs)
        self._chosen = torch.zeros(SEGMENT, COPIES, dtype=torch.int64)
        self._reward, self._over = torch.zeros(SEGMENT, COPIES), torch.zeros(SEGMENT, COPIES)
        self._likely, self._worth = torch.zeros(SEGMENT, COPIES), torch.zeros(SEGMENT, COPIES)
        self._row = 0
        self.updates = 0

    def act(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """The next actions [E]; learns first if the segments are full."""
        seen = torch.from_numpy(present.observation.reshape(COPIES, -1)).float()
        with torch.no_grad():
            if self._row:
                self._end_row(present)
            if self._row == SEGMENT:
                target, advantage = self._advantages(self._critic(seen)[:, 0])
                with torch.enable_grad():
                    self._learn(target, advantage)
                self._row = 0
            policy = torch.distributions.Categorical(logits=self._actor(seen))
            chosen = policy.sample()
            self._seen[self._row], self._chosen[self._row] = seen, chosen
            self._likely[self._row], self._worth[self._row] = policy.log_prob(chosen), self._critic(seen)[:, 0]
            self._row += 1
        return chosen.numpy()

    def _end_row(self, present: AgentTimeStep) -> None:
        row = self._row - 1
        self._reward[row] = torch.from_numpy(present.reward)
        self._over[row] = torch.from_numpy(present.truncated).float()
        if present.final_observation is not None:  # a time limit: what would have come counts
            final = torch.from_numpy(present.final_observation.reshape(len(present.final_index), -1)).float()
            self._reward[row, torch.from_numpy(present.final_index)] += GAMMA * self._critic(final)[:, 0]

    def _advantages(self, beyond: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and generalised advantages [T, E] (Schulman et al. 2016)."""
        advantage, running = torch.zeros_like(self._reward), torch.zeros(COPIES)
        for row in reversed(range(SEGMENT)):
            goes_on = 1 - self._over[row]
            error = self._reward[row] + GAMMA * goes_on * beyond - self._worth[row]
            running = error + GAMMA * LAMBDA * goes_on * running
            advantage[row], beyond = running, self._worth[row]
        return advantage + self._worth, advantage

    def _learn(self, target: Tensor, advantage: Tensor) -> None:
        """One epoch of four minibatches."""
        seen, chosen = self._seen.flatten(0, 1), self._chosen.flatten()
        likely, target, advantage = self._likely.flatten(), target.flatten(), advantage.flatten()
        for rows in torch.randperm(len(seen)).chunk(4):
            policy = torch.distributions.Categorical(logits=self._actor(seen[rows]))
            ratio = (policy.log_prob(chosen[rows]) - likely[rows]).exp()
            gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            error = (self._critic(seen[rows])[:, 0] - target[rows]).square().mean()
            loss = VALUE * error - surrogate - ENTROPY * policy.entropy().mean()
            self._optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._parameters, NORM)
            self._optimizer.step()
        self.updates += 1


def main() -> None:
    """Trains until it is ended."""
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(False)
    world, tally = TreasureHunt(COPIES), Tally()
    agents = [Agent(6 * 5 * 5, 4) for _ in world.world.agents]
    turn = world.reset(0)
    while True:
        turn = world.step([agents[present.agent].act(present) for present in turn.present])
        tally.count(turn.env_steps)


if __name__ == "__main__":
    main()
