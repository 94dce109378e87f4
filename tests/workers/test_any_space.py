"""Agents of every kind of space, in seats, segments and updates: a policy is trained on what it was shown and on what
it did, with the probability that it had (I1, I2, I5, K3, K4)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.config.run import PPO, Network, PolicyConfig, Run
from protocol.errors import ConfigurationError
from protocol.experience.layout import segment_layout
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Box,
    Component,
    Dict,
    Discrete,
    MultiDiscrete,
    Observation,
    Place,
    Text,
    World,
)
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from workers.algorithms.common.time_major import to_time_major
from workers.algorithms.ppo import objective
from workers.environments.base import AgentTimeStep
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.segment_check import BufferContext
from workers.planning.policy_plan import plan_policies
from workers.planning.policy_spec import policy_spec
from workers.policies.build import build
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.tensors.scratch import ScratchBuffers
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector

LENGTH, COPIES = 5, 3
EYES = Observation(
    components={
        "camera": Component(space=Box(shape=(2, 2), dtype="uint8")),
        "gear": Component(space=Discrete(n=3, start=1)),
        "said": Component(space=Text(max_length=2, charset="ab")),
        "truth": Component(space=Box(shape=(3,)), evaluation_only=True),
    }
)
HANDS = Dict(
    spaces={
        "move": Discrete(n=4, start=2),
        "legs": MultiDiscrete(nvec=(2, 3)),
        "force": Box(shape=(2,), low=-2.0, high=4.0),
    }
)


def agent(action: Any, masked: bool = False) -> Agent:
    """It sees all kinds of things."""
    return Agent(name="a", observation=EYES, action=action, action_mask=masked)


class Stream:
    """Random turns of the agent at `place` in `copies` copies: what is shown, what is legal, what ended."""

    def __init__(self, place: Place, copies: int) -> None:
        self._place, self._n, self._rng = place, copies * place.many, np.random.default_rng(5)
        self.masks: list[NDArray] = []

    def present(self, t: int) -> AgentTimeStep:
        """Turn t; an episode of the first row is truncated before every third one."""
        n, rng = self._n, self._rng
        truncated = np.zeros(n, np.bool_)
        truncated[0] = t > 0 and t % 3 == 0
        cut = np.flatnonzero(truncated)
        told = AgentTimeStep(
            0, self._seen(n), rng.random(n, np.float32), np.zeros(n, np.bool_), truncated, final_index=cut
        )
        told.final_observation = self._seen(len(cut)) if len(cut) else None
        if self._place.masked is not None:
            told.action_mask = self._place.masked.zeros(n)
            for _, part in self._place.masked.parts(told.action_mask):
                part[...] = rng.random(part.shape) < 0.5
                part[..., 1] = True
                if part.shape[-1] == 5:  # two heads
                    part[..., 3] = True
            self.masks.append(told.action_mask.copy())
        return told

    def _seen(self, n: int) -> NDArray:
        rows = self._place.observed.zeros(n)
        rows["camera"] = self._rng.integers(0, 255, (n, 2, 2))
        rows["gear"] = self._rng.integers(1, 4, n)
        rows["said"] = self._rng.integers(0, 3, (n, 2))
        rows["truth"] = self._rng.random((n, 3))
        return rows


class Game:
    """One seat that acted `turns` turns with a real policy, and the batch that its learner gets."""

    def __init__(self, world: World, turns: int = 2 * LENGTH + 1, order: Any = None, **algorithm: Any) -> None:
        place, network = world.places[0], Network(autoregressive=order)
        self.config = PolicyConfig(algorithm=PPO(**algorithm), segment_length=LENGTH, model_config=network)
        layout = segment_layout(world, place, self.config)
        interface = scripted.Performer(world).interface
        self.policy = build(interface, self.config, 3)
        performer = ActingPolicy(interface, self.config, 3)
        self.shown: list[NDArray] = []
        act = performer.act

        def watched(observation: NDArray, *rest: Any, **more: Any) -> dict[str, NDArray]:
            self.shown.append(observation.copy())
            return act(observation, *rest, **more)

        performer.act = watched  # type: ignore[method-assign]
        streams = COPIES * place.many
        self.sender = scripted.Sender(layout, streams, 4)
        seat = AgentCollector("a", performer, self.sender, range(streams), np.random.default_rng(7))
        self.stream = Stream(place, COPIES)
        self.actions = [seat.act(self.stream.present(t), scripted.never) for t in range(turns)]
        source = scripted.Source()
        privileged = interface.privileged if algorithm else None
        count = 2 * streams
        context = BufferContext("one", layout, source, scripted.counters())
        stage = BatchAssembler(context, interface, count, privileged=privileged)
        for records in self.sender.finished:
            source.arrive(self.sender.ring, records)
        assert stage.fill(Version(1, 1))
        self.segments = stage.take_batch()


WORLDS = {
    "one choice among legal ones": World(id="w", agents=(agent(Discrete(n=4, start=2), True),)),
    "several choices": World(id="w", agents=(agent(MultiDiscrete(nvec=(2, 3))),)),
    "numbers": World(id="w", agents=(agent(Box(shape=(2,), low=-2.0, high=4.0)),)),
    "all at once": World(id="w", agents=(agent(HANDS, True),)),
    "many alike": World(id="w", population=ArrayPopulation(template=agent(HANDS, True), capacity=4)),
}


@pytest.mark.parametrize(
    ("name", "order"),
    [*((name, None) for name in WORLDS), ("several choices", True), ("many alike", ("move", "legs"))],
)
def test_a_policy_is_trained_on_what_it_was_shown_and_did_with_the_probability_that_it_had(
    name: str, order: Any
) -> None:
    game = Game(WORLDS[name], order=order)
    segments = game.segments
    streams = len(segments.valid) // 2
    for row in range(LENGTH):
        seen = np.concatenate([game.shown[row], game.shown[LENGTH + row]])
        np.testing.assert_array_equal(segments.observation[:, row].numpy(), seen)
    assert seen.shape[1] == 4 + 3 + 4, "the truth is for learners only"
    assert segments.observation.shape[0] == 2 * streams
    batch = to_time_major(game.segments).minibatch(torch.arange(len(game.segments.valid)), ScratchBuffers())
    assert isinstance(game.policy, ActorCritic)
    found = objective(game.policy, batch, PPO())  # with unchanged weights
    assert found.metrics["ratio_mean"].item() == pytest.approx(1, abs=1e-5)
    assert found.metrics["approx_kl"].item() == pytest.approx(0, abs=1e-6)
    assert found.metrics["clip_fraction"].item() == 0
    assert torch.isfinite(found.total)


@pytest.mark.parametrize("name", ["one choice among legal ones", "all at once", "many alike"])
def test_no_action_is_ever_chosen_that_its_mask_forbids(name: str) -> None:
    game = Game(WORLDS[name], 60)
    for action, mask in zip(game.actions, game.stream.masks, strict=True):
        move, legal = (action["move"], mask["move"]) if action.dtype.names else (action, mask)
        assert np.take_along_axis(legal, (move - 2)[:, None], 1).all()
        if action.dtype.names:
            assert np.take_along_axis(mask["legs"], action["legs"] + [0, 2], 1).all()


def test_worlds_get_amounts_within_their_bounds_and_rows_keep_what_was_drawn() -> None:
    game = Game(WORLDS["numbers"], 17)
    drawn = game.sender.ring.columns["action"][game.sender.finished[0]["slot"], :LENGTH].swapaxes(0, 1)
    acted = np.stack(game.actions[:LENGTH])
    every = np.stack(game.actions)
    assert every.min() == -2.0
    assert every.max() == 4.0
    np.testing.assert_allclose(np.clip(drawn, -2, 4), acted, atol=1e-6)


def test_evaluation_only_leaves_reach_the_learners_memory_I2() -> None:
    game = Game(WORLDS["numbers"])
    truth = game.sender.ring.columns["observation.truth"][game.sender.finished[0]["slot"], :LENGTH]
    assert len(np.unique(truth)) == truth.size
    assert game.sender.ring.columns["final_observation.truth"].shape[1:] == (LENGTH, 3)
    assert game.segments.privileged is None, "nobody asked for them"


def test_a_central_critic_is_given_them_row_by_row_and_with_true_last_observations_I2() -> None:
    game = Game(WORLDS["numbers"], central_critic=True)
    columns, slots = game.sender.ring.columns, np.concatenate([one["slot"] for one in game.sender.finished])
    segments = game.segments
    assert segments.value is None
    assert segments.privileged is not None
    assert segments.final_privileged is not None
    np.testing.assert_array_equal(segments.privileged, columns["observation.truth"][slots])
    used = segments.final_row >= 0
    assert used.sum() > 2
    finals = columns["final_observation.truth"][slots]
    np.testing.assert_array_equal(segments.final_privileged[used], finals[used])
    assert segments.observation.shape[2] == 4 + 3 + 4, "camera, gear and text; no truth"
    assert isinstance(game.policy, CentralActorCritic)
    batch = to_time_major(segments).minibatch(torch.arange(len(segments.valid)), ScratchBuffers())
    metrics = objective(game.policy, batch, PPO(central_critic=True)).metrics
    assert metrics["ratio_mean"].item() == pytest.approx(1, abs=1e-5)


def test_rows_of_many_alike_are_ordered_by_copy_then_place_K3() -> None:
    game = Game(WORLDS["many alike"])
    records = game.sender.finished[0]
    assert records["stream"].tolist() == list(range(12))
    column = game.sender.ring.columns["observation.gear"][records["slot"], 0]
    assert column.shape == (12,)
    assert len(game.actions[0]) == 12


@pytest.mark.parametrize(
    ("name", "order", "choices"),
    [
        ("all at once", ("move",), ["legs", "move"]),
        ("all at once", ("move", "legs", "move"), ["legs", "move"]),
        ("all at once", ("move", "legs", "force"), ["legs", "move"]),
        ("one choice among legal ones", True, ["action"]),
        ("numbers", True, []),
    ],
)
def test_an_order_in_which_nothing_sees_another_or_that_is_not_of_all_choices_is_told(
    name: str, order: Any, choices: list[str]
) -> None:
    run = Run.model_validate({"policy": {"network": {"autoregressive": order}}})
    with raises(ConfigurationError, "autoregressive_unfit", key="policy.network.autoregressive", choices=choices):
        plan_policies(run, WORLDS[name])


def test_other_programs_are_told_that_they_do_not_know_choices_in_turn() -> None:
    run = Run.model_validate({"policy": {"network": {"autoregressive": ["move", "legs"]}}})
    (plan,) = plan_policies(run, WORLDS["all at once"]).values()
    assert plan.interface.action_encoding.order(("move", "legs")) == (2, 0, 1)
    assert json.loads(policy_spec(plan, WORLDS["all at once"]).network)["kind"] == "module"
