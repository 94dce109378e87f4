"""Several policies as one computation: what each would have become alone, and no number of one in another."""

from __future__ import annotations

import pytest
import torch

from protocol.config.run import PPO, PolicyConfig
from workers.algorithms.common.batches import Outcome, SegmentBatch, update_each
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.policies.distributions import Heads
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.recurrent import Kind, RecurrentCore
from workers.policies.tensors.flat_weights import flatten_

K, T, B, I, U = 3, 6, 4, 5, 4  # noqa: E741 - the legend's


def updates(heads: Heads = Heads((3,)), core: Kind | None = None, **algorithm: object) -> list[PPOUpdate]:  # noqa: B008
    """K policies, each with weights, a learning rate and clipping of its own; `share_layers` among what is the
    algorithm's is their network's."""
    found, share = [], bool(algorithm.pop("share_layers", False))
    for number in range(K):
        torch.manual_seed(number)
        remembers = None if core is None else RecurrentCore(I, U, core)
        policy = ActorCritic(
            (I,), heads, (8, 8), "tanh", core=remembers, share_layers=share, normalize_observation=True
        )
        flatten_(policy)
        settings = {"epochs": 1, "minibatches": 2, "normalize_observation": True, **algorithm}
        config = PolicyConfig(
            algorithm=PPO.model_validate(settings), learning_rate=1e-3 * (number + 1), max_grad_norm=0.3 + number
        )
        found.append(PPOUpdate(policy, config, seed=number))
    return found


def segments(noise: torch.Generator, amounts: int = 0, state: int = 0) -> SegmentBatch:
    """Whole segments, with ends of both kinds in them."""
    truncated = torch.rand(B, T, generator=noise) < 0.1
    final_row = torch.full((B, T), -1)
    for segment, row in truncated.nonzero().tolist():
        final_row[segment, row] = row
    action = torch.randint(0, 3, (B, T), generator=noise)
    return SegmentBatch(
        observation=torch.randn(B, T + 1, I, generator=noise),
        action=action[..., None] if amounts else action,
        reward=torch.randn(B, T, generator=noise),
        terminated=(torch.rand(B, T, generator=noise) < 0.1) & ~truncated,
        truncated=truncated,
        log_probability=-1.1 + 0.1 * torch.randn(B, T, generator=noise) - amounts,
        valid=torch.full((B,), T),
        final_observation=torch.randn(B, T, I, generator=noise),
        final_row=final_row,
        amount=torch.randn(B, T, amounts, generator=noise) if amounts else None,
        value=torch.randn(B, T, generator=noise),
        state=torch.rand(B, state, generator=noise) if state else None,
    )


def difference(one: list[PPOUpdate], other: list[PPOUpdate]) -> float:
    """The largest between two weights, or moments."""
    found = [0.0]
    for a, b in zip(one, other, strict=True):
        assert a.train_steps == b.train_steps
        states = [{**x.policy.state_dict(), "first": x.optimizer.first, "second": x.optimizer.second} for x in (a, b)]
        found += [float((x - y).abs().max()) for x, y in zip(states[0].values(), states[1].values(), strict=True)]
    return max(found)


def alike(expected: list[Outcome], found: list[Outcome]) -> None:
    """The same metrics."""
    for one, other in zip(expected, found, strict=True):
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        assert all(other[name] == pytest.approx(value, rel=1e-3, abs=1e-4) for name, value in one.items())


@pytest.mark.parametrize("rounds", [4, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize(
    ("heads", "core", "algorithm"),
    [
        (Heads((3,)), None, {"epochs": 2, "value_clip": 0.2, "entropy_coefficient": 0.3, "anneal_entropy": True}),
        (Heads((3,), 2), None, {"normalize_return": False}),
        (Heads((3,), 2, (0,)), None, {}),
        (Heads((3,)), None, {"share_layers": True}),
        (Heads((3,)), "lstm", {}),
        (Heads((3,)), "gru", {}),
    ],
    ids=["choice", "amounts", "amounts that see the choice", "shared layers", "lstm", "gru"],
)
def test_a_stack_is_what_its_policies_would_be_alone(
    rounds: int, heads: Heads, core: Kind | None, algorithm: dict[str, object]
) -> None:
    alone, together = updates(heads, core, **algorithm), updates(heads, core, **algorithm)
    stack, noise = GroupUpdate(together), torch.Generator().manual_seed(0)
    state = {None: 0, "gru": U, "lstm": 2 * U}[core]
    for number in range(rounds):
        given = [segments(noise, heads.continuous, state) for _ in range(K)]
        progress = [number / rounds * (member + 1) / K for member in range(K)]
        expected, found = update_each(alone, given, progress), stack.update(given, progress)
    assert difference(alone, together) < 1e-5
    alike(expected, found)


def test_members_of_a_stack_may_be_at_different_steps() -> None:
    alone, together = updates(), updates()
    noise = torch.Generator().manual_seed(0)
    first = segments(noise)
    update_each([alone[0], together[0]], [first, first], [0.0, 0.0])
    given = [segments(noise) for _ in range(K)]
    update_each(alone, given, [0.0] * K)
    GroupUpdate(together).update(given, [0.0] * K)
    assert [update.train_steps for update in together] == [4, 2, 2]
    assert difference(alone, together) < 1e-6


@pytest.mark.parametrize(("core", "steps"), [(None, 4), ("lstm", 2)])
def test_parts_of_a_batch_have_64_rows_or_of_those_who_remember_four_segments(
    core: Kind | None, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in a stack."""
    monkeypatch.setitem(globals(), "B", 8)
    monkeypatch.setitem(globals(), "T", 32)
    alone, together = updates(core=core, minibatches=None), updates(core=core, minibatches=None)
    noise = torch.Generator().manual_seed(0)
    given = [segments(noise, state=2 * U if core else 0) for _ in range(K)]
    update_each(alone, given, [0.0] * K)
    GroupUpdate(together).update(given, [0.0] * K)
    assert [update.train_steps for update in (*alone, *together)] == [steps] * 2 * K
