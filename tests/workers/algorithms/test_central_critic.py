"""A central critic sees what only learners see; the actor beside it neither sees nor feels it, and travels alone (I2,
X10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.config.run import PPO, Network, PolicyConfig, parse_run
from protocol.errors import ConfigurationError, TrainingFault
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Component, Discrete, Observation, World
from tests.faults import raises
from tests.workers.algorithms.test_ppo import B, T, experience, poisoned, written_out
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.time_major import to_time_major
from workers.algorithms.ppo import PPOUpdate, objective
from workers.learning.diagnostics.finite import not_finite
from workers.learning.diagnostics.training_health import TrainingHealth
from workers.learning.diagnostics.value_bounds import ValueBounds
from workers.learning.report import LearnerReport
from workers.metrics.diagnostics import findings_of
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build, published_weights
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import CentralActorCritic
from workers.policies.tensors.scratch import ScratchBuffers
from workers.rollout.acting_policy import ActingPolicy

SEEN = Observation(
    components={
        "own": Component(space=Box(shape=(3,))),
        "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
    }
)
AGENT = Agent(name="a", observation=SEEN, action=Discrete(n=4))


def setting(network: dict[str, Any] | None = None, **algorithm: Any) -> tuple[CentralActorCritic, PolicyConfig]:
    config = PolicyConfig(
        algorithm=PPO(central_critic=True, **algorithm),
        model_config=Network.model_validate({"hidden": (16, 16), **(network or {})}),
        learning_rate=0.01,
    )
    policy = build(Interface.of(AGENT), config, 1)
    assert isinstance(policy, CentralActorCritic)
    return policy, config


def segments(policy: CentralActorCritic, seed: int = 0) -> SegmentBatch:
    """What it acted in, with what only learners see."""
    g = torch.Generator().manual_seed(100 + seed)
    return replace(
        experience(policy, seed),
        privileged=torch.randn(B, T + 1, 2, generator=g),
        final_privileged=torch.randn(B, T, 2, generator=g),
    )


def gradients(parts: Tensor, policy: CentralActorCritic, prefix: str) -> list[Tensor | None]:
    """Of the sum of `parts`, for the parameters called so."""
    chosen = [parameter for name, parameter in policy.named_parameters() if name.startswith(prefix)]
    assert chosen
    return list(torch.autograd.grad(parts.sum(), chosen, allow_unused=True, retain_graph=True))


def test_the_actor_knows_nothing_of_what_only_learners_see_and_the_critic_does_I2() -> None:
    policy, _ = setting(normalize_observation=True)
    x = policy.inputs(torch.randn(7, 3))
    outputs, values = policy(x, torch.zeros(7, 2))
    others, judged = policy(x, torch.full((7, 2), 3.0))
    assert torch.equal(outputs, others)
    assert (values != judged).all()
    assert gradients(outputs, policy, "critic.") == [None] * 6
    assert gradients(values, policy, "actor.") == [None] * 6
    for one, other in zip(
        gradients(values, policy, "critic.")[:2], gradients(judged, policy, "critic.")[:2], strict=True
    ):
        assert one is not None
        assert other is not None
        assert not torch.equal(one, other)
    policy(x, torch.full((7, 2), torch.nan))[0].sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in policy.actor.parameters())


def test_the_objective_is_that_of_ppo_with_the_critics_values_row_by_row() -> None:
    """True last observations are judged with what only learners saw beside them."""
    policy, config = setting(normalize_advantage=False, clip=0.1)
    assert isinstance(config.algorithm, PPO)
    given = segments(policy)
    given = replace(given, log_probability=given.log_probability + torch.randn(B, T) * 0.3)
    policy.update_returns(torch.randn(100) * 3 + 1)
    expected = written_out(policy, given, config.algorithm)
    loss = objective(policy, to_time_major(given).minibatch(torch.randperm(B), ScratchBuffers()), config.algorithm)
    found = {"loss": loss.total, **loss.metrics}
    for name, number in expected.items():
        assert found[name].item() == pytest.approx(number, abs=1e-5), name
    other = replace(given, final_privileged=torch.zeros(B, T, 2))
    assert written_out(policy, other, config.algorithm)["value_loss"] != pytest.approx(expected["value_loss"], abs=1e-5)


@pytest.mark.parametrize("network", [{}, {"core": {"name": "lstm", "size": 5}}])
def test_rows_of_unchanged_weights_have_ratio_one(network: dict[str, Any]) -> None:
    policy, config = setting(network, minibatches=2, normalize_observation=True, value_clip=0.2)
    update = PPOUpdate(policy, config)
    for seed in range(3):
        given = _remembering(policy, seed) if network else segments(policy, seed)
        batch = to_time_major(given).minibatch(torch.arange(B), ScratchBuffers())
        metrics = objective(policy, batch, update.algorithm).metrics
        assert metrics["ratio_mean"].item() == pytest.approx(1, abs=1e-5)
        assert metrics["approx_kl"].item() == pytest.approx(0, abs=1e-5)
        moved = update.update(given)
        assert moved["weight_delta"] > 0
    for moments in (policy.observations, policy.privileged):
        assert moments is not None
        assert moments.count == 3 * B * T


def _remembering(policy: CentralActorCritic, seed: int) -> SegmentBatch:
    """Segments that a recurrent actor acted in, in one episode from zeros on."""
    generator = torch.Generator().manual_seed(seed)
    observation, noise = torch.randn(B, T + 1, 3, generator=generator), np.random.default_rng(seed)
    state, actions, chances = np.zeros((B, 10), np.float32), [], []
    for t in range(T):
        acted = policy.act(observation[:, t], noise, state=state)
        state = acted["state"]
        actions.append(torch.from_numpy(acted["action"]))
        chances.append(torch.from_numpy(acted["log_probability"]))
    none = torch.zeros(B, T, dtype=torch.bool)
    return SegmentBatch(
        observation=observation,
        action=torch.stack(actions, 1),
        reward=torch.randn(B, T, generator=generator),
        terminated=none,
        truncated=none,
        log_probability=torch.stack(chances, 1),
        valid=torch.full((B,), T),
        final_observation=torch.zeros(B, 1, 3),
        final_row=torch.full((B, 1), -1),
        state=torch.zeros(B, 10),
        privileged=torch.randn(B, T + 1, 2, generator=generator),
        final_privileged=torch.zeros(B, 1, 2),
    )


def test_garbage_beyond_the_real_rows_reaches_nothing() -> None:
    valid = torch.tensor([T, 5, 0, 1, T - 1, T, 2, 9])
    losses = []
    for garbage in (torch.nan, 7.0):
        policy, config = setting(minibatches=1, normalize_observation=True)
        given = poisoned(segments(policy), valid)
        assert given.privileged is not None
        assert given.final_privileged is not None
        for b, rows in enumerate(valid.tolist()):
            given.privileged[b, rows + 1 if rows else 0 :] = garbage
            given.final_privileged[b, (given.final_row[b] >= rows) | (given.final_row[b] < 0)] = garbage
        losses.append(PPOUpdate(policy, config).update(given))
    assert np.isfinite(list(losses[0].values())).all()
    assert losses[0] == losses[1]


def test_a_number_that_is_not_finite_is_named_and_moves_nobody() -> None:
    policy, config = setting(minibatches=1)
    given = segments(policy)
    assert given.privileged is not None
    given.privileged[3, 5, 1] = torch.nan
    assert not_finite(given) == ["privileged"]
    before = {name: parameter.clone() for name, parameter in policy.named_parameters()}
    with raises(TrainingFault, "update_not_finite"):
        PPOUpdate(policy, config).update(given)
    assert all(torch.equal(before[name], parameter) for name, parameter in policy.named_parameters())


def test_values_are_kept_near_what_the_critic_said_before_the_update() -> None:
    """No value was written while acting: `value_clip` is about the critic as it was."""
    found = []
    for clip in (None, 1e-6):
        policy, config = setting(
            epochs=4, minibatches=1, value_clip=clip, value_coefficient=1.0, normalize_return=False
        )
        update, given = PPOUpdate(policy, config), segments(policy)
        first = update.update(given)["value_loss"]
        found.append(first)
    assert found[1] > found[0], "the larger of both errors counts"


def test_only_the_actor_travels_and_acts_I2() -> None:
    policy, config = setting({"core": {"name": "gru", "size": 5}}, normalize_observation=True)
    travelling = published_weights(policy)
    own = {f"actor.{name}" for name, _ in (*policy.actor.named_parameters(), *policy.actor.named_buffers())}
    assert {entry.name for entry in travelling.entries} == own
    assert "actor.observations.mean" in own
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert policy.observations is not None
    policy.observations.update(torch.randn(50, 3) * 4 + 1)
    performer = ActingPolicy(Interface.of(AGENT), config, 9)
    performer.spare[:] = travelling.bytes_view()
    performer.adopt(lambda *_: performer.version)
    seen, state = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32), np.zeros((6, 5), np.float32)
    there = performer.act(seen, np.random.default_rng(1), state=state)
    here = policy.act(torch.from_numpy(seen), np.random.default_rng(1), state=state)
    assert there.keys() == {"action", "log_probability", "state"}
    for name, column in here.items():
        np.testing.assert_array_equal(there[name], column)


def test_it_is_refused_where_there_is_nothing_more_to_see_with_the_remedy() -> None:
    run = parse_run({"policy": {"algorithm": {"central_critic": True}}, "environment": {"copies": 4}})
    blind = World(id="w", agents=(AGENT.model_copy(update={"observation": Box(shape=(3,))}),))
    with raises(ConfigurationError, "agent_not_learnable", policy="a", agent="a") as caught:
        plan_policies(run, blind)
    assert "central_state" in str(caught.value)
    (plan,) = plan_policies(run, World(id="w", agents=(AGENT,))).values()
    assert "value" not in {field.name for field in plan.layout.fields}
    assert {"observation.truth", "final_observation.truth"} <= {field.name for field in plan.layout.fields}


def test_what_only_the_critic_sees_is_measured_and_noted_where_it_never_varies_H1() -> None:
    policy, config = setting()
    data = {**config.model_dump(mode="json"), "segment_length": T}
    run = parse_run({"policy": data, "environment": {"copies": 4}})
    (plan,) = plan_policies(run, World(id="w", agents=(AGENT,))).values()
    for varies in (True, False):
        counters = Counters(None, *LearnerReport.names(["a"]))
        health = TrainingHealth("a", plan.interface, plan.layout, 0.01, counters, ValueBounds(0.99))
        for seed in range(3):
            given = segments(policy, seed)
            assert given.privileged is not None
            found = health.analyse(given if varies else replace(given, privileged=given.privileged * 0), {})
        assert found["privileged_constant"] == (not varies)
        assert (found["privileged_std"] > 0.5) == varies
        names = [one["finding"] for one in findings_of(["a"], {("learner-0", 1): counters.snapshot()})]
        assert ("privileged_constant" in names) == (not varies)
    health.check(given)
    assert given.privileged is not None
    bent = replace(given, privileged=given.privileged[:, :, :1])
    with raises(TrainingFault, "shape_differs_from_layout", field="privileged", value=[8, 17, 1]):
        health.check(bent)


def test_statistics_are_of_what_was_trained_on_each_real_row_once() -> None:
    """Of what the actor sees, of what only learners see, and of value targets as they were before the update."""
    for normalize in (True, False):
        policy, config = setting(minibatches=1, epochs=2, normalize_observation=True, normalize_return=normalize)
        assert isinstance(config.algorithm, PPO)
        given = replace(segments(policy), valid=torch.tensor([T, 5, 1, 0, T - 1, 7, 2, T]))
        batch = to_time_major(given).minibatch(torch.arange(B), ScratchBuffers())
        real = batch.mask.bool()
        targets = objective(policy, batch, config.algorithm).targets
        assert targets is not None
        target = targets[real].double()
        PPOUpdate(policy, config).update(given)
        assert given.privileged is not None
        assert policy.privileged is not None
        assert policy.observations is not None
        for moments, seen in ((policy.observations, given.observation), (policy.privileged, given.privileged)):
            rows = seen[:, :-1][real.T].double()
            assert moments.count.item() == len(rows)
            torch.testing.assert_close(moments.mean, rows.mean(0))
            torch.testing.assert_close(moments.variance, rows.var(0, correction=0))
        assert policy.returns.count.item() == (len(target) if normalize else 0)
        if normalize:
            torch.testing.assert_close(policy.returns.mean, target.mean(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(policy.returns.variance, target.var(correction=0), rtol=1e-4, atol=1e-5)
