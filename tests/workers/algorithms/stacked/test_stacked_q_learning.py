"""Several policies of DQN or IQN as one computation: what each would have become alone, each at its own schedules."""

from __future__ import annotations

import pytest
import torch

from protocol.config.run import DQN, IQN, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from tests.workers.algorithms.stacked.test_stacked_ppo import alike
from workers.algorithms.build import build_update
from workers.algorithms.common.batches import TransitionBatch, update_each
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.policies.build import build
from workers.policies.interface import Interface

K, B, F, A = 3, 8, 2, 4
AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=A))
Updates = list[DQNUpdate | IQNUpdate]


def updates(kind: type[DQN | IQN] = IQN, activation: str = "tanh", **algorithm: object) -> Updates:
    """K policies, each with weights, a learning rate, clipping and schedules of its own."""
    found: Updates = []
    for number in range(K):
        own = {"target_update_freq": 2 + number, "tau": 0.01 * (number + 1), "exploration_fraction": 0.2 + 0.3 * number}
        own |= {"epsilon_decay": 0.1, "epsilon_decay_freq": 2} if number == 1 else {}
        settings = {"frames": F, **own, **algorithm}
        config = PolicyConfig.model_validate(
            {
                "algorithm": {"name": kind.model_fields["name"].default, **settings},
                "model_config": {"hidden": (8, 8), "activation": activation},
                "learning_rate": 1e-3 * (number + 1),
                "max_grad_norm": 0.3 + number,
            }
        )
        update = build_update(build(Interface.of(AGENT), config, number), config, seed=number)
        assert isinstance(update, DQNUpdate | IQNUpdate)
        found.append(update)
    return found


def transitions(noise: torch.Generator, legal: bool = False, weight: bool = False) -> TransitionBatch:
    """Of random worlds."""
    may = torch.rand(B, A, generator=noise) < 0.5
    may[:, 0] = True
    return TransitionBatch(
        torch.randn(B, F, 3, generator=noise),
        torch.randint(0, A, (B,), generator=noise),
        torch.randn(B, generator=noise),
        torch.where(torch.rand(B, generator=noise) < 0.3, 0.0, 0.97),
        torch.randn(B, F, 3, generator=noise),
        next_legal=may if legal else None,
        weight=torch.rand(B, generator=noise) if weight else None,
    )


def difference(one: Updates, other: Updates) -> float:
    """The largest between two weights, moments or errors."""
    found = [0.0]
    for a, b in zip(one, other, strict=True):
        assert a.train_steps == b.train_steps
        assert a.priorities is not None
        assert b.priorities is not None
        assert a.priorities.shape == b.priorities.shape
        states = [
            {**x.policy.state_dict(), "first": x.optimizer.first, "second": x.optimizer.second, "errors": x.priorities}
            for x in (a, b)
        ]
        found += [
            float((x - y).abs().max()) for x, y in zip(states[0].values(), states[1].values(), strict=True) if x.numel()
        ]
    return max(found)


@pytest.mark.parametrize("rounds", [10, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        (IQN, {}),
        (IQN, {"dueling": True, "noisy": True, "double": False, "anneal_learning_rate": True}),
        (IQN, {"target_update": "hard", "activation": "relu", "priority_alpha": 0.5}),
        (DQN, {}),
        (DQN, {"dueling": True, "noisy": True}),
        (DQN, {"double": False, "activation": "relu", "priority_alpha": 0.5}),
    ],
    ids=["iqn", "iqn noisy", "iqn hard", "dqn", "dqn noisy", "dqn relu"],
)
def test_e1_a_stack_is_what_its_policies_would_be_alone(
    rounds: int, kind: type[DQN | IQN], algorithm: dict[str, object]
) -> None:
    alone, together = (updates(kind, **algorithm) for _ in range(2))  # type: ignore[arg-type] # mixed settings
    stack, noise = GroupUpdate(together), torch.Generator().manual_seed(0)
    for number in range(rounds):
        given = [transitions(noise, number % 2 == 0, "priority_alpha" in algorithm) for _ in range(K)]
        progress = [number / rounds * (member + 1) / K for member in range(K)]
        expected, found = update_each(alone, given, progress), stack.update(given, progress)
    assert difference(alone, together) < 1e-5
    alike(expected, found)


@pytest.mark.parametrize("kind", [IQN, DQN])
def test_members_of_a_stack_may_be_at_different_steps_and_away_for_a_while(kind: type[DQN | IQN]) -> None:
    alone, together = updates(kind), updates(kind)
    noise = torch.Generator().manual_seed(0)
    update_each([alone[0], together[0]], [transitions(noise)] * 2, [0.0, 0.0])
    for members in ([0, 1, 2], [1, 2], [0, 1, 2]):
        given = [transitions(noise) for _ in members]
        update_each([alone[i] for i in members], given, [0.0] * len(members))
        GroupUpdate([together[i] for i in members]).update(given, [0.0] * len(members))
    assert [update.train_steps for update in together] == [3, 3, 3]
    assert difference(alone, together) < 1e-6
