"""Two threads that compute half of a gradient each make the update of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.config.run import PPO, Network, PolicyConfig
from protocol.errors import TrainingFault
from tests.faults import raises
from tests.workers.algorithms import test_central_critic as central
from tests.workers.algorithms import test_ppo as plain
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.second_thread import SecondThread
from workers.algorithms.ppo import PPOUpdate
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic


@contextmanager
def made(config: PolicyConfig, interface: Interface, threads: int = 2) -> Iterator[PPOUpdate]:
    """An update on so many threads; a new one is always the same."""
    policy = build(interface, config, 1)
    assert isinstance(policy, ActorCritic | CentralActorCritic)
    update = PPOUpdate(policy, config)
    second = SecondThread(update)
    update.halved = second.gradient if threads == 2 else None
    yield update
    second.close()


def both(config: PolicyConfig, interface: Interface, batches: list[SegmentBatch]) -> list[dict[str, Any]]:
    """What one and two threads make of `batches`, each: metrics of the last, and all weights, statistics included."""
    found = []
    for threads in (1, 2):
        with made(config, interface, threads) as update:
            metrics = [update.update(batch, 0.3) for batch in batches][-1]
            found.append({**metrics, **update.policy.state_dict()})
    return found


def same(found: list[dict[str, Any]]) -> None:
    one, two = found
    assert [*one] == [*two]
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("network", "algorithm"),
    [
        ({}, {"minibatches": 3, "normalize_observation": True, "normalize_return": True}),  # parts of 3, 3 and 2
        ({}, {"minibatches": 8}),  # of one segment: rows apart from them
        ({}, {"minibatches": 8, "gae_lambda": 1.0, "epochs": 1}),
        ({}, {"minibatches": 2, "priority_alpha": 0.7, "value_clip": 0.1}),
        ({}, {"minibatches": 8, "priority_alpha": 0.7}),
        ({"share_layers": True, "encoder": "mlp"}, {"minibatches": 2}),
    ],
)
def test_an_update_is_that_of_one_thread(network: dict[str, Any], algorithm: dict[str, Any]) -> None:
    config = PolicyConfig(
        algorithm=PPO(**algorithm), model_config=Network.model_validate({"hidden": (16, 16), **network})
    )
    batches = [plain.experience(plain.updater().policy, seed) for seed in range(2)]
    batches[1].valid[2:5] = 3  # short ones
    same(both(config, Interface.of(plain.AGENT), batches))


def test_an_update_with_a_central_critic_is_that_of_one_thread() -> None:
    policy, config = central.setting(minibatches=2, normalize_observation=True)
    same(both(config, Interface.of(central.AGENT), [central.segments(policy)]))


def test_a_part_of_one_segment_leaves_the_other_thread_nothing() -> None:
    """Segments that are remembered across stay whole, and a minibatch may be a single one."""
    config = PolicyConfig(
        algorithm=PPO(minibatches=8),
        model_config=Network.model_validate({"hidden": (16,), "core": {"name": "gru", "size": 8}}),
    )
    batch = plain.experience(plain.updater().policy)
    same(both(config, Interface.of(plain.AGENT), [replace(batch, state=torch.zeros(plain.B, 8))]))


def test_a_gradient_that_is_not_finite_changes_nothing_and_the_next_update_is_made() -> None:
    policy, config = plain.setting(minibatches=2)
    batch = plain.experience(policy)
    with made(config, Interface.of(plain.AGENT)) as update:
        before = update.optimizer.parameters.clone()
        with raises(TrainingFault, "update_not_finite"):
            update.update(replace(batch, reward=torch.full_like(batch.reward, torch.inf)))
        assert torch.equal(update.optimizer.parameters, before)
        assert update.update(batch)["rows"] == batch.rows


@pytest.mark.parametrize("fails", [0, 1])
def test_a_fault_of_either_thread_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    policy, config = plain.setting(minibatches=2)
    batch, loss = plain.experience(policy), PPOUpdate.loss

    def broken(self: PPOUpdate, *given: Any) -> Loss:
        if self.ranks.rank == fails:
            raise ZeroDivisionError
        return loss(self, *given)

    with made(config, Interface.of(plain.AGENT)) as update:
        monkeypatch.setattr(PPOUpdate, "loss", broken)
        with pytest.raises(ZeroDivisionError):
            update.update(batch)
        monkeypatch.undo()
        assert update.update(batch)["rows"] == batch.rows


def test_the_second_thread_computes_as_the_first_does() -> None:
    """Denormal numbers would make it many times slower, and so would threads of its own."""
    torch.set_flush_denormal(True)
    second = SecondThread(plain.updater())

    def product() -> Tensor:
        return torch.full((1,), 1e-38) * 1e-3

    assert second.pool.submit(product).result().item() == 0.0
    assert second.pool.submit(torch.get_num_threads).result() == 1
    second.close()


def test_who_may_not_lower_its_priority_computes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.setpriority", refused)
    policy, config = plain.setting(minibatches=2)
    with made(config, Interface.of(plain.AGENT)) as update:
        assert update.update(plain.experience(policy))["rows"]


def test_a_thread_that_is_gone_is_no_reason_to_wait_for_it() -> None:
    update = plain.updater(minibatches=2)
    second = SecondThread(update)
    update.halved = second.gradient
    second.close()
    with pytest.raises(RuntimeError):
        update.update(plain.experience(update.policy))
