"""What a batch looks like in numbers, as far as its rows are real."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch

from protocol.config.run import IQN, PPO, Run
from protocol.spaces import Agent, Box, DictPopulation, Discrete, MultiDiscrete, World
from protocol.weights.manifest import Version
from tests.workers.learning.test_policy_learner import REPLAY, STREAM, Bench, run_of
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch
from workers.learning.diagnostics import batch_statistics
from workers.learning.diagnostics.batch_statistics import sample, statistics
from workers.policies.interface import Interface


def interface(**spaces: object) -> Interface:
    """Of an agent that sees two numbers."""
    given = {"observation": Box(shape=(2,)), "action": Discrete(n=3), **spaces}
    world = World(id="w", population=DictPopulation(agents=(Agent(name="one", **given),)))  # type: ignore[arg-type]
    return Interface.at(world, world.places[0])


def segments() -> SegmentBatch:
    """Two of three rows; the second has one real row. What is not real is absurd."""
    absurd = 1e9
    observation = torch.tensor(
        [[[0, 7], [1, 7], [2, 7], [absurd] * 2], [[0, 7], [absurd] * 2, [absurd] * 2, [absurd] * 2]]
    )
    rows = torch.tensor([[1.0, 2.0, 3.0], [2.0, absurd, absurd]])
    no = torch.zeros(2, 3, dtype=torch.bool)
    return SegmentBatch(
        observation=observation,
        action=torch.tensor([[0, 2, 2], [2, 1, 1]]),
        reward=rows,
        terminated=torch.tensor([[True, False, False], [False, True, True]]),
        truncated=no,
        log_probability=-rows,
        valid=torch.tensor([3, 1]),
        final_observation=torch.zeros(2, 1, 2),
        final_row=torch.full((2, 1), -1),
        value=rows,
    )


def test_only_real_rows_of_segments_are_measured_H2() -> None:
    here = interface()
    found = statistics(sample(segments(), here), here)
    assert (found["observation_min"], found["observation_max"]) == (0, 7)
    assert found["observation_mean"] == pytest.approx((0 + 1 + 2 + 0 + 4 * 7) / 8)
    assert found["observation_distinct"] == 3
    assert found["observation_constant"] == 0.5
    assert [found[f"reward_{kind}"] for kind in ("min", "max", "mean", "distinct")] == [1, 3, 2, 3]
    assert found["reward_std"] == pytest.approx(0.5**0.5)
    assert [found[f"action_share_{choice}"] for choice in range(3)] == [0.25, 0, 0.75]
    assert found["action_distinct"] == 2
    assert found["terminated_share"] == 0.25
    assert found["real_share"] == pytest.approx(4 / 6)
    assert found["log_probability_min"] == -3


def test_of_wide_observations_fewer_rows_are_looked_at_and_the_share_of_real_ones_is_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_statistics, "_MOST_NUMBERS", 4)
    seen = sample(segments(), interface())
    assert seen.observation.tolist() == [[0, 7], [2, 7]]
    assert seen.real == pytest.approx(4 / 6)


def test_transitions_with_several_heads_are_measured_H2() -> None:
    here = interface(action=MultiDiscrete(nvec=(2, 3)))
    batch = TransitionBatch(
        torch.rand(4, 1, 2),
        torch.tensor([[0, 2], [1, 2], [1, 2], [1, 2]]),
        torch.tensor([0.0, 0.0, 0.0, 4.0]),
        torch.full((4,), 0.9),
        torch.rand(4, 1, 2),
    )
    found = statistics(sample(batch, here), here)
    assert (found["action_0_share_0"], found["action_1_share_2"], found["action_1_distinct"]) == (0.25, 1.0, 1.0)
    assert found["reward_mean"] == 1
    assert found["discount_mean"] == pytest.approx(0.9)


def test_amounts_are_measured_and_numbers_that_are_not_finite_left_out_H2() -> None:
    here = interface(action=Box(shape=(1,), low=-1, high=1))
    batch = TransitionBatch(
        torch.rand(2, 1, 2),
        torch.empty(2, 0, dtype=torch.int64),
        torch.tensor([0.0, float("nan")]),
        torch.ones(2),
        torch.rand(2, 1, 2),
        torch.tensor([[-1.0], [1.0]]),
    )
    found = statistics(sample(batch, here), here)
    assert (found["amount_min"], found["amount_max"], found["amount_std"]) == (-1, 1, 1)
    assert not any(name.startswith("reward_m") for name in found)


def test_a_large_batch_is_measured_in_part() -> None:
    here = interface()
    n = 100_000
    batch = TransitionBatch(
        torch.rand(n, 1, 2),
        torch.zeros(n, dtype=torch.int64),
        torch.arange(n).float(),
        torch.ones(n),
        torch.rand(n, 1, 2),
    )
    seen = sample(batch, here)
    assert 2_500 < seen.rows <= 4_096
    assert statistics(seen, here)["reward_max"] > 0.99 * n


@pytest.mark.parametrize("algorithm", [STREAM, REPLAY], ids=["stream", "replay"])
def test_every_log_interval_a_learner_logs_what_it_saw_and_did_H2_H4(
    algorithm: PPO | IQN, caplog: pytest.LogCaptureFixture
) -> None:
    """On its own train steps, whatever the run's counters are."""
    caplog.set_level(logging.INFO)
    run: Run = run_of(algorithm).model_copy(update={"log_interval": 4})
    bench = Bench(run)
    bench.member.resume(None, Version(0, 0))
    bench.feed(8)
    for _ in range(16):
        bench.member.step()
    lines = [record.getMessage() for record in caplog.records]
    updates = [line for line in lines if line.startswith("event=update ")]
    batches = [line for line in lines if line.startswith("event=batch ")]
    assert len(updates) == len(batches) == bench.member.update.train_steps // 4 > 0
    for name in ("loss", "grad_norm", "weight_delta", "version"):
        assert f" {name}=" in updates[0]
    for name in (
        "observation_min",
        "observation_std",
        "reward_distinct",
        "action_share_0",
        "held_segments",
        "lag_mean",
    ):
        assert f" {name}=" in batches[0]
        assert name in bench.member.measured


@pytest.mark.parametrize("algorithm", [STREAM, REPLAY], ids=["stream", "replay"])
def test_the_vocabulary_is_documented_H2(algorithm: PPO | IQN) -> None:
    """Each name that a learner measures stands on the page of measures, a family by its pattern."""
    table = (Path(__file__).parents[4] / "launch" / "docs" / "reference" / "measures.md").read_text()
    described = {name for cell in re.findall(r"^\| (`.+?`) \|", table, re.M) for name in re.findall(r"`(.+?)`", cell)}
    bench = Bench(run_of(algorithm))
    bench.member.resume(None, Version(0, 0))
    bench.feed(8)
    for _ in range(8):
        bench.member.step()
    families = {
        re.sub(r"_(min|max|mean|std)$", "_*", re.sub(r"share_\d+", "share_N", n)) for n in bench.member.measured
    }
    families -= {re.sub(r"_(min|max|mean|std)$", "_*", name) for name in described if name in bench.member.measured}
    assert families - described == set()
