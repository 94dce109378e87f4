"""Recurrent policies remember in training what they remembered in acting: unchanged weights give every row the
probability and the value that it had, whatever ends, comes late or is cut short between (K6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.config.network import CellCore
from protocol.config.run import PPO, Network
from protocol.spaces import World
from protocol.weights.manifest import Version
from tests.workers import scripted
from workers.algorithms.common import time_major
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.time_major import Minibatch, TimeMajorBatch, to_time_major
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stream import evaluate
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.learning.buffers import batch_assembler
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.nstep_gather import stack_index
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.diagnostics.finite import not_finite
from workers.policies.build import build
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.recurrent import Kind
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.scratch import ScratchBuffers
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.inference import act_turn
from workers.rollout.stream_state import RecurrentState

LENGTH, STREAMS = 7, 6


class Play:
    """Two seats of one policy, recurrent or with stacked `frames`, which act together at random: streams come and go,
    episodes end.

    `pace`: whether streams are absent at times; `flush_after` in turns; `steps`: the world's longest episode.
    """

    def __init__(
        self,
        kind: Kind | None,
        turns: int,
        *,
        pace: bool,
        flush_after: float | None = None,
        steps: int = LENGTH,
        frames: int = 1,
    ):
        world = World(id="w", agents=(scripted.AGENT, scripted.AGENT.model_copy(update={"name": "two"})))
        world = world.model_copy(update={"episode_steps": None if steps == LENGTH else steps})
        network = Network(hidden=(8,), core=None if kind is None else CellCore(name=kind, size=5))
        algorithm = PPO(epochs=1, minibatches=1, frames=frames)
        self.config = scripted.config(algorithm, LENGTH).model_copy(update={"network": network})
        layout = scripted.layout_of(self.config, world)
        interface = scripted.Performer(world).interface
        performer = ActingPolicy(interface, self.config, 3)
        self.policy = build(interface, self.config, 3)
        self.rng, self.pace, self.time = np.random.default_rng(11), pace, 0.0
        self.sender = scripted.Sender(layout, STREAMS, 400)
        self.seats = {
            (agent, 0): AgentCollector(
                "a",
                performer,
                self.sender,
                range(agent * STREAMS, (agent + 1) * STREAMS),
                np.random.default_rng(agent),
                flush_after,
                lambda: self.time,
            )
            for agent in range(2)
        }
        for parameter in (*self.policy.parameters(), *performer._modules[0].parameters()):
            parameter.data.mul_(3)  # so that what is remembered matters
        self.open = np.zeros((2, STREAMS), np.bool_)
        for _ in range(turns):
            self.turn()
        source = scripted.Source()
        finished = [records for records in self.sender.finished if len(records)]
        for records in finished:
            source.arrive(self.sender.ring, records)
        count = sum(map(len, finished))
        stage = BatchAssembler(BufferContext("one", layout, source, scripted.counters()), interface, count)
        assert stage.fill(Version(1, 1))
        self.segments: SegmentBatch = stage.take_batch()

    def turn(self) -> None:
        self.time += 1
        present, outcomes = [], []
        for agent in range(2):
            here = self.rng.random(STREAMS) < (0.6 if self.pace else 2)
            away = self.open[agent] & ~here & (self.rng.random(STREAMS) < 0.4)
            if away.any():
                told = self.told(agent, np.flatnonzero(away))
                outcomes.append(AgentOutcome(agent, np.flatnonzero(away), **told))
            if here.any():
                streams = np.flatnonzero(here)
                told = self.told(agent, streams)
                seen = self.rng.standard_normal((len(streams), 2)).astype(np.float32)
                present.append(AgentTimeStep(agent, seen, copies=None if here.all() else streams, **told))
                self.open[agent, streams] = True
        for outcome in outcomes:
            self.seats[outcome.agent, 0].add_outcome(outcome, scripted.never)
        for seat in self.seats.values():
            seat.flush(scripted.never)
        act_turn(self.seats, Turn(tuple(present)), scripted.never)

    def told(self, agent: int, streams: NDArray[np.int64]) -> dict[str, Any]:
        """News of streams; nothing for those that have no open row."""
        opened = self.open[agent, streams]
        end = self.rng.integers(0, 12, len(streams)) * opened
        cut = np.flatnonzero(end >= 10)
        self.open[agent, streams] = opened & (end < 9)
        return {
            "reward": (self.rng.random(len(streams)) * opened).astype(np.float32),
            "terminated": end == 9,
            "truncated": end >= 10,
            "final_index": cut,
            "final_observation": self.rng.standard_normal((len(cut), 2)).astype(np.float32),
        }


def all_of(segments: SegmentBatch) -> Minibatch:
    """As one minibatch."""
    return to_time_major(segments).minibatch(torch.arange(len(segments.valid)), ScratchBuffers())


def log_ratios(policy: Any, segments: SegmentBatch) -> tuple[Tensor, Tensor]:
    """New over old log-probability, and new minus old value, of all real rows."""
    assert isinstance(policy, ActorCritic)
    batch = all_of(segments)
    rows = batch.reward.numel()
    with torch.no_grad():
        outputs, values = policy(policy.inputs(batch.observation), batch.recall)
        new, _ = policy.heads.log_prob_and_entropy(outputs[:, :rows], None, batch.action.flatten(), None, None)
        value = policy.denormalize(values[:rows])
    assert batch.value is not None
    real = batch.mask.flatten().bool()
    return (new - batch.log_probability.flatten())[real], (value - batch.value.flatten())[real]


PACES: dict[str, dict[str, Any]] = {
    "all together": {"pace": False},
    "at their own pace": {"pace": True},
    "cut short": {"pace": True, "flush_after": 4.0},
    "cut short for want of entries": {"pace": True, "steps": 4},
}


@pytest.mark.parametrize(("kind", "pace"), [*(("lstm", pace) for pace in PACES), ("gru", "cut short")])
def test_unchanged_weights_give_every_row_the_probability_it_had_K6(kind: Kind, pace: str) -> None:
    play = Play(kind, 60, **PACES[pace])
    ended = (play.segments.terminated | play.segments.truncated)[:, : LENGTH - 1]
    assert ended.any(), "an end inside a segment"
    assert (play.segments.valid < LENGTH).any() or pace == "all together"
    assert play.segments.state is not None
    assert (play.segments.state == 0).all(1).any(), "a segment that begins with an episode"
    assert (play.segments.state != 0).all(1).any(), "one that begins within"
    difference, value = log_ratios(play.policy, play.segments)
    assert len(difference) > 200
    assert difference.exp().sub(1).abs().max() < 1e-5
    assert value.abs().max() < 1e-5


@pytest.mark.parametrize(("kind", "pace"), [*((None, pace) for pace in PACES), ("lstm", "cut short")])
def test_stacks_are_made_again_as_they_were_when_acting(kind: Kind | None, pace: str) -> None:
    """Of rows that are stored once: beyond the beginning of a segment, not beyond that of an episode."""
    frames = 4
    play = Play(kind, 60, frames=frames, **PACES[pace])
    assert play.segments.observation.shape[1] == LENGTH + 1
    difference, value = log_ratios(play.policy, play.segments)
    assert len(difference) > 200
    assert difference.exp().sub(1).abs().max() < 1e-5
    assert value.abs().max() < 1e-5
    batch, shape = all_of(play.segments), (LENGTH + 1, -1, frames, 2)
    rows = batch.observation[: len(batch.observation) - len(batch.final_place)].view(shape)
    before, last = rows.flatten(0, 1)[batch.final_place], batch.observation[rows.shape[0] * rows.shape[1] :]
    assert len(last) > 10
    assert torch.equal(last[:, :-1], before[:, 1:])
    segment, entry = (play.segments.final_row >= 0).nonzero(as_tuple=True)
    assert torch.equal(last[:, -1], play.segments.final_observation[segment, entry])


@pytest.mark.parametrize("broken", ["history", "ends"])
def test_without_the_rows_before_or_the_ends_they_are_not(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def index(newest: Any, first: Any, columns: Any, frames: int) -> Any:
        if broken == "ends":
            columns = {name: np.zeros_like(column) for name, column in columns.items()}
        else:
            first = newest // (LENGTH + frames) * (LENGTH + frames) + frames - 1
        return stack_index(newest, first, columns, frames)

    monkeypatch.setattr(batch_assembler, "stack_index", index)
    play = Play(None, 60, frames=4, pace=False)
    assert log_ratios(play.policy, play.segments)[0].exp().sub(1).abs().max() > 1e-2


def test_statistics_are_of_the_stacks_that_were_seen_and_poison_reaches_nothing() -> None:
    play = Play(None, 60, frames=3, pace=True, flush_after=4.0)
    assert play.segments.observation.isnan().any()
    batch = to_time_major(play.segments)
    seen = batch.seen()
    assert seen.shape == (batch.rows, 3, 2)
    whole = all_of(play.segments)
    rows = whole.observation[: whole.mask.numel()].view(*whole.mask.shape, 3, 2)
    assert torch.equal(seen, rows.transpose(0, 1)[whole.mask.T.bool()])
    assert play.segments.history is not None
    assert play.segments.history[:, :2].isnan().any()
    assert not_finite(play.segments) == []
    poison, none = torch.full_like(play.segments.history, torch.nan), torch.zeros_like(play.segments.valid)
    nothing = all_of(replace(play.segments, history=poison, observation=poison[:, 2:], valid=none)).observation
    assert torch.isfinite(nothing).all(), "what a rank without segments computes is nobody's"
    metrics = PPOUpdate(play.policy, play.config).update(play.segments)  # type: ignore[arg-type] # an actor-critic
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)


@pytest.fixture
def remembers_everything(request: pytest.FixtureRequest) -> Iterator[None]:
    """Breaks the reset where the parameter says."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "rollout":
            patch.setattr(RecurrentState, "reset", lambda self, streams: None)
        else:
            patch.setattr(
                time_major, "RecurrentContext", lambda s, ended, *f: RecurrentContext(s, torch.zeros_like(ended), *f)
            )
        yield


@pytest.mark.usefixtures("remembers_everything")
@pytest.mark.parametrize("remembers_everything", ["rollout", "training"], indirect=True)
def test_without_the_reset_they_do_not_K6() -> None:
    play = Play("lstm", 60, pace=False)
    assert log_ratios(play.policy, play.segments)[0].exp().sub(1).abs().max() > 1e-2


def test_with_zero_start_only_what_begins_with_an_episode_has_the_probability_it_had() -> None:
    """As implementations have it that keep no state; kept states are the default."""
    play = Play("lstm", 60, pace=False)
    assert isinstance(play.policy, ActorCritic)
    assert play.segments.state is not None
    batch = to_time_major(play.segments)
    fresh = (play.segments.state == 0).all(1)
    assert not PPO().zero_start
    for which, exact in ((fresh, True), (~fresh, False)):
        part = batch.minibatch(which.nonzero()[:, 0], ScratchBuffers())
        ratio = evaluate(play.policy, part, zero_start=True).ratio[part.mask.bool()]
        assert bool((ratio.sub(1).abs() < 1e-5).all()) == exact


def test_the_order_and_division_of_minibatches_do_not_matter_K6() -> None:
    """Each segment is remembered by itself."""
    play = Play("lstm", 60, pace=True)
    assert isinstance(play.policy, ActorCritic)
    batch: TimeMajorBatch = to_time_major(play.segments)
    index = torch.tensor([5, 2, 9])
    part = batch.minibatch(index, ScratchBuffers())
    whole = batch.minibatch(torch.arange(len(play.segments.valid)), ScratchBuffers())
    with torch.no_grad():
        _, some = play.policy(play.policy.inputs(part.observation), part.recall)
        some = some.clone()
        _, every = play.policy(play.policy.inputs(whole.observation), whole.recall)
    rows = (LENGTH + 1) * 3
    expected = every[: (LENGTH + 1) * whole.reward.shape[1]].view(LENGTH + 1, -1)[:, index]
    torch.testing.assert_close(some[:rows].view(LENGTH + 1, 3), expected, atol=1e-6, rtol=0)


def test_an_update_moves_the_core_and_ignores_what_is_unreal() -> None:
    """Poison behind short segments, and the state of a segment without rows, reach nothing."""
    play = Play("gru", 60, pace=True, flush_after=4.0)
    assert isinstance(play.policy, ActorCritic)
    assert play.policy.core is not None
    assert play.segments.observation.isnan().any()
    before = [parameter.clone() for parameter in play.policy.core.parameters()]
    metrics = PPOUpdate(play.policy, play.config).update(play.segments)
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
    for old, new in zip(before, play.policy.core.parameters(), strict=True):
        assert (old != new).any()
