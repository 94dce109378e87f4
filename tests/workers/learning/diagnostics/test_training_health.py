"""Each way in which learning fails is found in the first batches, named by the lowest layer that fails, and told once.

The four root causes of the zero gradients of old are here: a buffer that is not shared, observations of shape (1, F),
data that are all zeros, arrays instead of tensors.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import IQN, PPO, PolicyConfig
from protocol.config.trainable import Freeze, Start
from protocol.errors import TrainingFault
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Dict, DictPopulation, Discrete, World
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import COPIES, REPLAY, STREAM, Bench, run_of
from workers.algorithms.common.batches import Learnable, ObservationBatch, SegmentBatch
from workers.algorithms.common.held_parts import HeldParts
from workers.learning.diagnostics.training_health import TrainingHealth
from workers.learning.diagnostics.value_bounds import ValueBounds
from workers.metrics.diagnostics import FINDINGS, LAYERS, findings_of
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build
from workers.policies.encoders.policy_encoder import PolicyEncoder

SEGMENTS = 12
"""Of each copy: 12 batches of 4 segments of 4 rows."""
COLOURS, GREY = Box(shape=(210, 160, 3), dtype="uint8"), Box(shape=(84, 84), dtype="uint8")
DISCIPLINES = pytest.mark.parametrize("algorithm", [STREAM, REPLAY], ids=["stream", "replay"])


def found(bench: Bench) -> list[tuple[str, str]]:
    """(layer, finding) of what holds."""
    page = {("learner-one", 1): bench.counters.snapshot()}
    return [(one["layer"], one["finding"]) for one in findings_of(["one"], page)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines about health."""
    return [record.getMessage() for record in caplog.records if "event=health " in record.getMessage()]


class Case:
    """A member whose actor wrote 12 segments a copy, of which `columns` are then overwritten."""

    def __init__(self, algorithm: PPO | IQN = STREAM, segments: int = SEGMENTS, **columns: float) -> None:
        self.bench = Bench(run_of(algorithm))
        self.member = self.bench.member
        self.member.resume(None, Version(0, 0))
        self.sender = scripted.acted(self.bench.plan.config, segments, COPIES)
        if algorithm is STREAM:
            columns = {"log_probability": -1.6, "value": 0.0, **columns}  # as of a policy without experience
        for name, value in columns.items():
            self.sender.ring.columns[name].fill(value)

    def learn(self, ring: Ring | None = None, updates: int = 10**6) -> Case:
        """Announces all of it, and learns."""
        for records in self.sender.finished:
            self.bench.source.arrive(ring or self.sender.ring, records)
        while updates and self.member.step():
            updates -= 1
        return self

    @property
    def found(self) -> list[tuple[str, str]]:
        """(layer, finding) of what holds."""
        return found(self.bench)


@DISCIPLINES
def test_sound_data_give_no_finding_H1(algorithm: PPO | IQN, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(algorithm).learn(updates=40)
    assert case.found == []
    assert case.bench.counters["batches_checked.one"] >= 10
    assert said(caplog) == []


def test_data_that_are_all_zeros_fail_in_the_data_H1(caplog: pytest.LogCaptureFixture) -> None:
    """Root cause: the world, or what is between it and the ring, gives zeros."""
    case = Case(observation=0.0, reward=0.0).learn()
    assert case.found[0] == ("data", "observation_zero")
    assert {layer for layer, _ in case.found} == {"data"}
    (line,) = [line for line in said(caplog) if "observation_zero" in line]
    assert line.startswith("event=health layer=data policy=one finding=observation_zero level=fault ")
    assert line.endswith(f"remedy={FINDINGS['observation_zero'].remedy}")


@pytest.mark.parametrize(
    ("algorithm", "fill"),
    [(STREAM, 0), (REPLAY, 0), (STREAM, None)],
    ids=["zeros-stream", "zeros-replay", "poison"],
)
def test_a_buffer_that_is_not_shared_fails_in_the_sharing_H1(algorithm: PPO | IQN, fill: int | None) -> None:
    """Root cause: the learner reads memory of its own, in which nobody ever wrote, and finds only zeros there."""
    case = Case(algorithm)
    own = Ring.create(None, case.bench.plan.layout, case.sender.ring.slots)
    own.table[:] = case.sender.ring.table
    own.columns["final_row"].fill(-1)
    if fill is not None:
        for name, column in own.columns.items():
            column.fill(-1 if name == "final_row" else fill)
        case.learn(own, updates=40)
    else:
        own.columns["action"].fill(0)
        case.bench.source.arrive(own, case.sender.finished[0])
        case.member._health.arrived(case.bench.source.queue)
    assert case.found == [("sharing", "memory_disagrees")]


def test_a_buffer_whose_slots_are_never_whole_fails_in_the_sharing_H1() -> None:
    """The same, where the slots' sequence words are looked at first: nothing that is announced is ever there."""
    case = Case(segments=20)
    case.learn(Ring.create(None, case.bench.plan.layout, case.sender.ring.slots))
    assert case.member.update.train_steps == 0
    assert case.found == [("sharing", "nothing_whole")]


def test_a_stage_that_gives_the_same_batch_again_fails_in_the_sharing_H1() -> None:
    case = Case(segments=1).learn()
    batch = _taken(case)
    case.member._buffer.next_batch = lambda *_: batch  # type: ignore[method-assign]
    for _ in range(9):
        case.member.step()
    assert case.found == [("sharing", "batch_repeated")]


@DISCIPLINES
def test_observations_of_shape_1_F_fail_in_the_shape_and_are_not_trained_on_H1(algorithm: PPO | IQN) -> None:
    """Root cause: rows (1, F) where the layout says (F,)."""
    case = Case(algorithm)
    _bent(case, lambda batch: replace(batch, observation=batch.observation.unsqueeze(-2)))
    with raises(TrainingFault, "shape_differs_from_layout", field="observation"):
        case.learn()
    assert case.found == [("shape", "wrong_shape")]
    assert case.member.update.train_steps == 0


def test_arrays_instead_of_tensors_fail_in_the_computation_H1() -> None:
    """Root cause: the conversion was commented out."""
    case = Case()
    _bent(case, lambda batch: replace(batch, reward=batch.reward.numpy()))
    with raises(TrainingFault, "batch_not_tensors", field="reward", value="numpy.ndarray"):
        case.learn()
    assert case.found == [("computation", "not_tensors")]
    assert case.member.update.train_steps == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(("algorithm", "value"), [(STREAM, np.nan), (REPLAY, np.inf)], ids=["stream", "replay"])
def test_numbers_that_are_not_finite_fail_in_the_data_H1(algorithm: PPO | IQN, value: float) -> None:
    case = Case(algorithm, reward=value)
    with raises(TrainingFault, "update_not_finite"):
        case.learn()
    assert case.found == [("data", "not_finite")]


def test_finite_data_with_a_loss_that_is_not_fail_in_the_computation_H1() -> None:
    case = Case()
    with torch.no_grad():
        for parameter in case.member.policy.parameters():
            parameter.fill_(1e30)
    with raises(TrainingFault, "update_not_finite"):
        case.learn()
    assert ("computation", "loss_not_finite") in case.found
    assert not any(layer == "data" for layer, _ in case.found)


def test_a_gradient_of_zero_fails_in_the_gradient_and_not_in_the_update_H1() -> None:
    case = Case()
    _said_by_update(case, grad_norm=0.0, weight_delta=0.0)
    assert case.learn().found == [("gradient", "gradient_zero")]


def test_weights_that_do_not_move_fail_in_the_update_H1() -> None:
    case = Case()
    case.member.update.optimizer.step = lambda learning_rate: None  # type: ignore[method-assign]
    assert case.learn().found == [("update", "weights_unmoved")]


def test_weights_that_are_all_frozen_may_stand_still() -> None:
    case, start = Case(), Start(path="x", freeze=Freeze(only=("hidden", "heads")))
    case.member._held = HeldParts(case.member.policy, case.member.update.optimizer, PolicyConfig(start=start))
    assert case.learn().found == []


def test_weights_that_rest_because_the_rate_has_fallen_to_nothing_are_well() -> None:
    case = Case()
    _said_by_update(case, weight_delta=0.0, learning_rate=0.0)
    assert case.learn().found == []


def test_one_action_all_the_time_fails_in_the_data_H1() -> None:
    assert Case(action=3).learn().found == [("data", "action_constant")]


def test_one_action_of_a_policy_that_was_trained_before_is_well() -> None:
    case = Case(action=3)
    case.member._health.new = False
    assert case.learn().found == []


def test_what_may_be_meant_is_a_note(caplog: pytest.LogCaptureFixture) -> None:
    """A game without anything to see, or rewards that are rare."""
    case = Case(observation=1.0, reward=0.0, segments=150)
    _look_at_all(case)
    case.learn()
    assert case.found == [("data", "observation_constant"), ("data", "reward_zero")]
    assert [record.levelname for record in caplog.records if "event=health " in record.getMessage()] == ["WARNING"] * 2


def _ended(case: Case, end: str) -> Case:
    """Where each segment's last row ends an episode."""
    columns, last = case.sender.ring.columns, case.bench.plan.layout.length - 1
    columns[end][:, last] = True
    columns["final_row"][:, 0] = last
    columns["final_observation"].fill(0)
    return case


@pytest.mark.parametrize(
    ("end", "gamma", "noted"), [("truncated", 0.99, True), ("truncated", 0.8, False), ("terminated", 0.99, False)]
)
def test_episodes_that_a_limit_cuts_off_before_gamma_stops_counting_are_a_note(
    end: str, gamma: float, noted: bool
) -> None:
    """After 4 steps, of which gamma 0.99 counts 100 and 0.8 five."""
    algorithm = PPO(gamma=gamma, **STREAM.model_dump(exclude_unset=True, exclude={"name"}))
    case = _ended(Case(algorithm, segments=40, log_probability=-1.6, value=0.0), end)
    _look_at_all(case)
    assert case.learn().found == ([("data", "limit_before_horizon")] if noted else [])


def test_episodes_of_which_all_end_when_a_learner_begins_are_not_short_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Copies in step, of 400 steps, whose next end is near."""
    case = Case(STREAM, segments=40, log_probability=-1.6, value=0.0)
    columns, last = case.sender.ring.columns, case.bench.plan.layout.length - 1
    columns["truncated"][:COPIES, last] = True
    columns["final_row"][:COPIES, 0] = last
    columns["final_observation"].fill(0)
    _look_at_all(case)
    case.learn()
    assert said(caplog) == []


def test_a_world_that_declares_one_observation_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(name="one", observation=Box(shape=(2,), low=0, high=0), action=Discrete(n=5))
    monkeypatch.setattr(scripted, "WORLD", World(id="blind", population=DictPopulation(agents=(agent,))))
    assert Case(observation=0.0).learn().found == []


def test_actions_that_varied_once_and_rewards_that_were_seen_once_are_well() -> None:
    """The policy became sure, and the reward is rare."""
    case = Case(segments=150)
    _look_at_all(case)
    case.sender.ring.columns["action"][COPIES:] = 3
    case.sender.ring.columns["reward"][COPIES:] = 0.0
    assert case.learn().found == []


@pytest.mark.parametrize(
    ("space", "encoder", "picture"),
    [
        (COLOURS, None, False),  # a cnn by default
        (COLOURS, "mlp", True),
        (COLOURS, {"name": "mlp", "hidden": [4]}, True),
        (COLOURS, "impala", False),
        (GREY, None, True),
        (GREY, "cnn", False),
        (Box(shape=(3, 64, 64)), None, True),
        (Dict(spaces={"at": Discrete(n=3), "eye": Box(shape=(32, 24))}), None, True),
        (Dict(spaces={"at": Discrete(n=3), "eye": GREY}), {"at": "tokens"}, True),
        (Dict(spaces={"at": Discrete(n=3), "eye": GREY}), "cnn", False),
        (Dict(spaces={"at": Discrete(n=3), "eye": COLOURS}), {"eye": "mlp"}, True),
        (Dict(spaces={"at": Discrete(n=3), "eye": COLOURS}), "tokens", False),
        (Box(shape=(500, 3), dtype="uint8"), None, False),
        (Box(shape=(7, 7, 3), dtype="uint8"), "mlp", False),
        (Box(shape=(4096,)), None, False),
    ],
)
def test_an_image_that_no_encoder_reads_is_told_before_the_first_step(space: Any, encoder: Any, picture: bool) -> None:
    world = World(
        id="w", population=DictPopulation(agents=(Agent(name="one", observation=space, action=Discrete(n=2)),))
    )
    run = run_of(STREAM, model_config={"encoder": encoder})
    plan = plan_policies(run, world)["one"]
    counters = Counters(None, *scripted.LearnerReport.names(["one"]))
    read_by = PolicyEncoder.of(build(plan.interface, plan.config, 0))
    TrainingHealth("one", plan.interface, plan.layout, 1e-3, counters, ValueBounds(0.99), read_by)
    page = {("learner-one", 1): counters.snapshot()}
    told = [(one["layer"], one["finding"]) for one in findings_of(["one"], page)]
    assert told == ([("data", "picture_as_vector")] if picture else [])


@pytest.mark.parametrize(
    ("encoder", "greatest", "faint"),
    [(None, 10, True), ({"name": "cnn", "scale": 10.0}, 10, False), (None, 200, False), ("impala", 10, True)],
)
def test_an_image_of_bytes_that_are_small_beside_what_they_are_divided_by_is_told(
    encoder: Any, greatest: int, faint: bool
) -> None:
    image = Box(shape=(7, 7, 3), dtype="uint8")
    for space in (image, Dict(spaces={"at": Discrete(n=3), "eye": image})):
        world = World(
            id="w", population=DictPopulation(agents=(Agent(name="one", observation=space, action=Discrete(n=2)),))
        )
        plan = plan_policies(run_of(STREAM, model_config={"encoder": encoder}), world)["one"]
        counters = Counters(None, *scripted.LearnerReport.names(["one"]))
        read_by = PolicyEncoder.of(build(plan.interface, plan.config, 0))
        health = TrainingHealth("one", plan.interface, plan.layout, 1e-3, counters, ValueBounds(0.99), read_by)
        encoding, random = plan.interface.observation_encoding, np.random.default_rng(0)
        for _ in range(4):
            eye = random.integers(0, greatest + 1, (64, 2, 7, 7, 3), "uint8")
            columns = {"observation": eye, "observation.eye": eye, "observation.at": random.integers(0, 3, (64, 2))}
            rows = torch.from_numpy(encoding.encode(columns.__getitem__, (64, 2)))
            none = torch.full((64, 1), -1)
            health.analyse(ObservationBatch(rows, torch.ones(64, dtype=torch.int64), rows[:, :1], none), {})
        assert (counters["health.image_faint.one"] > 0) is faint, space


def test_what_is_over_holds_no_more_H1(caplog: pytest.LogCaptureFixture) -> None:
    """Observations that were zeros at first."""
    caplog.set_level(logging.INFO)
    case = Case(segments=24)
    case.sender.ring.columns["observation"][: 16 * COPIES] = 0.0
    case.learn(updates=14)
    assert case.found[0] == ("data", "observation_zero")
    _look_at_all(case)
    while case.member.step():
        pass
    assert case.found == []
    assert any("event=health_recovered" in record.getMessage() for record in caplog.records)


def test_a_fault_is_told_once_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(observation=0.0)
    _look_at_all(case)
    case.learn()
    assert case.bench.counters["health.observation_zero.one"] > 3
    assert len([line for line in said(caplog) if "observation_zero" in line]) == 1


def test_most_batches_are_not_looked_at_H2() -> None:
    case = Case(segments=40).learn()
    assert case.member.update.train_steps == 80
    assert case.bench.counters["batches_checked.one"] == 10


def test_findings_stand_in_the_order_of_layers_with_a_remedy_each() -> None:
    layers = [LAYERS.index(one.layer) for one in FINDINGS.values()]
    assert layers == sorted(layers)
    assert set(LAYERS) == {one.layer for one in FINDINGS.values()}
    assert all(one.remedy and one.says for one in FINDINGS.values())


def _taken(case: Case) -> SegmentBatch:
    for records in case.sender.finished:
        case.bench.source.arrive(case.sender.ring, records)
    case.member._buffer.fill(case.member.version)
    batch = case.member._buffer.next_batch(case.member.version)
    assert isinstance(batch, SegmentBatch)
    whole: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    copied: dict[str, Any] = {name: None if one is None else one.clone() for name, one in whole.items()}
    return SegmentBatch(**copied)


def _bent(case: Case, bend: Any) -> None:
    """Batches come as `bend` makes them."""
    next_batch = case.member._buffer.next_batch

    def bent(*given: Any) -> Learnable | None:
        batch = next_batch(*given)
        return None if batch is None else bend(batch)

    case.member._buffer.next_batch = bent  # type: ignore[method-assign, assignment]


def _said_by_update(case: Case, **metrics: float) -> None:
    """The update says this of itself."""
    update = case.member.update.update
    case.member.update.update = lambda *given: {**update(*given), **metrics}  # type: ignore[method-assign]


def _look_at_all(case: Case) -> None:
    """Every batch is logged, and none is trained on: it is the data that are judged."""
    telling, update = case.member._telling, case.member.update
    telling._run = telling._run.model_copy(update={"log_interval": 1})

    def counted(*_: object) -> dict[str, float]:
        update.optimizer.steps += 1
        return {"loss": 0.0, "grad_norm": 1.0, "weight_delta": 1.0, "learning_rate": 1.0, "rows": 16.0}

    update.update = counted  # type: ignore[method-assign, assignment]
