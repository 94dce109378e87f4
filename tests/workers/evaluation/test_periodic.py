"""Evaluations of a run that goes on: when, with which weights, and what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import EvaluationConfig, parse_run
from protocol.errors import ConfigurationError
from protocol.messages.core import Join, Refusal
from protocol.weights.manifest import NOTHING, Version
from tests.faults import kinds_in, raises
from tests.flows.runs import config
from workers.coordination.member_store import WorkerRecord
from workers.coordination.membership import Membership
from workers.environments.registry import describe
from workers.evaluation.periodic import PeriodicEvaluation
from workers.evaluation.policy_sync import EvaluationSchedule
from workers.evaluation.scores import FILE
from workers.planning.policy_plan import plan_policies


class Learners:
    """Publish what they are told to; `weights` are new with each version."""

    def __init__(self) -> None:
        self.version, self.asked = NOTHING, 0

    def adopt(self, policy: str, out: NDArray[np.uint8], have: Version) -> Version | None:
        self.asked += 1
        if self.version <= have:
            return None
        numbers = np.random.default_rng(self.version.version).random(out.nbytes // 4)
        out[:] = numbers.astype(np.float32).view(np.uint8)
        return self.version


def watch(folder: Path, learners: Learners, on_turn: Any = lambda: None, **keys: Any) -> PeriodicEvaluation:
    data = config(evaluation={"every_steps": 100, "episodes": 2, **keys})
    run = parse_run(data)
    assert run.evaluation is not None
    return PeriodicEvaluation(
        run, run.evaluation, plan_policies(run, describe(run.environment)), folder, learners.adopt, on_turn
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_weights_of_an_evaluation_change_only_at_sync_J3_J1(tmp_path: Path) -> None:
    """J1, J3: the learner publishes in the middle of episodes, and nothing of it is seen before the next sync; one
    without news copies nothing."""
    learners = Learners()
    seen: list[bytes] = []

    def turn() -> None:
        learners.version = Version(1, learners.version.version + 1)  # a new publication in every turn
        seen.append(weights(evaluation))

    evaluation = watch(tmp_path, learners, turn)
    assert evaluation.run_if_due(1_000) == {}, "nothing is published yet"
    learners.version = Version(1, 1)
    first = evaluation.run_if_due(1_000)
    assert set(first) == {"agent_0.evaluation/return", "agent_1.evaluation/return"}
    assert len(seen) > 20
    assert set(seen) == {weights(evaluation)}
    assert evaluation.run_if_due(1_050) == first, "nothing is due"
    assert set(seen) == {weights(evaluation)}
    evaluation.run_if_due(1_100)
    assert len(set(seen)) == 2
    assert [line["version"] for line in lines(tmp_path)][::2] == [1, learners.version.version - len(seen) // 2]
    evaluation.close()


def weights(evaluation: PeriodicEvaluation) -> bytes:
    live = evaluation.live["agent_0"].performer
    return live._flat[live._live].bytes_view().tobytes()


def test_the_last_weights_are_evaluated_once(tmp_path: Path) -> None:
    learners = Learners()
    evaluation = watch(tmp_path, learners)
    learners.version = Version(1, 7)
    evaluation.run_if_due(100)
    evaluation.run_if_due(120, last=True)
    assert [line["agent_steps"] for line in lines(tmp_path)] == [100, 100], "they were evaluated already"
    learners.version = Version(1, 8)
    evaluation.run_if_due(120, last=True)
    assert [(line["agent_steps"], line["version"]) for line in lines(tmp_path)][2:] == [(120, 8), (120, 8)]
    assert {line["source"] for line in lines(tmp_path)} == {"run"}
    evaluation.close()


def test_evaluations_are_due_by_steps_or_seconds_and_none_is_made_up_for_L6() -> None:
    now = 0.0
    due = EvaluationSchedule(EvaluationConfig(every_steps=100, every_seconds=10), lambda: now)
    assert [due.now(made) for made in (0, 99, 100, 101, 350, 399, 400)] == [
        False,
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    now = 10
    assert due.now(410)
    assert not due.now(499)


def test_a_schedule_without_a_time_is_refused_with_the_remedy() -> None:
    with raises(ConfigurationError, "evaluation_without_interval", key="evaluation"):
        parse_run({"evaluation": {"episodes": 3}})


@pytest.mark.parametrize("wanted", [True, False])
def test_one_evaluation_takes_part_where_the_run_wants_it(tmp_path: Path, wanted: bool) -> None:
    run = parse_run({**config(), **({"evaluation": {"every_seconds": 1}} if wanted else {})})
    members = Membership(run, ["a"], tmp_path / "state.json")
    join = Join(role="evaluator", token="t", release="1", host="elsewhere", pid=1)
    answer = members.join(join, lambda _: {})
    if not wanted:
        assert isinstance(answer, Refusal)
        assert kinds_in(answer.reason) == ["no_evaluation_wanted"]
        return
    assert isinstance(answer, WorkerRecord)
    assert answer.name == "evaluator-0"
    second = members.join(join.model_copy(update={"token": "u"}), lambda _: {})
    assert isinstance(second, Refusal)
    assert kinds_in(second.reason) == ["identity_in_use"]
    assert "'evaluator-0'" in second.reason
    answer.metrics = {"a.evaluation/return": 3.0}
    assert members.measured() == {"a.evaluation/return": 3.0}
