"""A dataset becomes segments of the learner's own form, row by row what was recorded, or is refused (J5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import PPO, Run, parse_run
from protocol.errors import ConfigurationError
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Discrete, World
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.datasets.test_reader import Bench, whole
from workers.learning.buffers.build import build_buffer
from workers.learning.buffers.replay_buffer import ReplayBuffer
from workers.learning.datasets.source import DatasetSource, load_dataset
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.planning.policy_plan import PolicyPlan, plan_policies

BC = {"name": "bc", "batch_size": 8}
IQN = {"name": "iqn", "batch_size": 8, "n_step": 2, "priority_alpha": 0.6}
Act = Callable[[], None]


def plan_of(path: Path, algorithm: dict[str, Any] = BC, world: World = scripted.WORLD, **keys: Any) -> PolicyPlan:
    return plan_policies(run_of(path, algorithm, **keys), world)["one"]


def run_of(path: Path, algorithm: dict[str, Any] = BC, length: int = 4, **keys: Any) -> Run:
    policy = {
        "algorithm": algorithm,
        "model_config": {"hidden": [8]},
        "segment_length": length,
        "publish_interval": 1,
        "dataset": {"path": str(path), **keys.pop("dataset", {})},
    }
    return Run.model_validate({"actors": 0, "policy": policy, "steps": 100, **keys})


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Four segments of four rows of each of three copies; copy 1 terminates after row 4, copy 2 is cut after row 9."""
    bench = Bench(tmp_path)
    sender = scripted.Sender(bench.plan.layout, 3, 5)
    chair = scripted.seat(sender, scripted.Performer(), 3)
    for t in range(17):
        ends = {"terminated": [1] if t == 5 else [], "truncated": [2] if t == 10 else []}
        chair.act(scripted.present(t, 3, **ends), scripted.never)
    for records in sender.finished:
        bench.source.arrive(sender.ring, records)
    bench.recorder.arrivals("one")
    bench.recorder.close()
    return bench.folder


def loaded(plan: PolicyPlan) -> tuple[DatasetSource, Counters]:
    counters = scripted.counters()
    return load_dataset(plan, counters), counters


def test_segments_of_the_same_length_are_the_rows_that_were_recorded_J5(recorded: Path) -> None:
    source, counters = loaded(plan_of(recorded))
    (arrival,) = source.arrivals("one")
    assert (arrival.actor, arrival.incarnation, len(arrival.records)) == ("actor-0", 1, 12)
    assert (counters["read.one"], counters["rows_read.one"], source.rows) == (12, 48, 48)
    for record in arrival.records:
        copy, first = int(record["stream"]), 4 * int(record["stream_sequence"])
        columns = {name: column[int(record["slot"])] for name, column in source.ring.columns.items()}
        assert columns["observation"].tolist() == [[copy, first + t] for t in range(5)]
        assert columns["reward"][:4].tolist() == [10 * copy + first + t for t in range(4)]
        assert columns["action"][:4].tolist() == [(first + t) % 5 for t in range(4)]
        assert columns["terminated"][:4].tolist() == [(copy, first + t) == (1, 4) for t in range(4)]
        assert columns["truncated"][:4].tolist() == [(copy, first + t) == (2, 9) for t in range(4)]
        assert columns["version"][:4].tolist() == [0] * 4
        cut = [first + t for t in range(4) if (copy, first + t) == (2, 9)]
        assert columns["final_row"].tolist() == [at - first for at in cut] + [-1] * (4 - len(cut))
        assert columns["final_observation"][: len(cut)].tolist() == [[copy, at + 0.5] for at in cut]
    assert (arrival.records["before"] == 0).all()


@pytest.mark.parametrize("length", [1, 3, 8])
def test_another_length_cuts_the_same_rows_J5(recorded: Path, length: int) -> None:
    """Segments of four rows become pieces of one, or of three and one, or stay as they are in longer slots."""
    source, _ = loaded(plan_of(recorded, length=length))
    found = []
    for arrival in source.arrivals("one"):
        for record in arrival.records:
            slot, valid = int(record["slot"]), int(record["valid"])
            columns = {name: column[slot] for name, column in source.ring.columns.items()}
            assert valid in {1: {1}, 3: {3, 1}, 8: {4}}[length]
            assert (columns["observation"][valid] == columns["observation"][valid - 1] + [0, 1]).all()
            if length > 1:  # where all segments are whole, the row behind them is whatever was written there
                assert np.isnan(columns["reward"][valid:]).all()
            for t in range(valid):
                copy, at = columns["observation"][t].astype(int).tolist()
                assert columns["reward"][t] == 10 * copy + at
                found.append((copy, at))
            for entry, row in enumerate(columns["final_row"].tolist()):
                if row >= 0:
                    assert columns["truncated"][row]
                    assert columns["final_observation"][entry].tolist() == [2, 9.5]
    assert sorted(found) == [(copy, at) for copy in range(3) for at in range(16)]


def test_stacked_frames_have_what_came_before_in_the_same_segment_J5(recorded: Path) -> None:
    source, _ = loaded(plan_of(recorded, {**IQN, "frames": 3}, length=3))
    for arrival in source.arrivals("one"):
        for record in arrival.records:
            columns, before = source.ring.columns["observation"][int(record["slot"])], int(record["before"])
            assert before == (2 if record["valid"] == 1 else 0)
            assert (np.diff(columns[2 - before : 3 + int(record["valid"]), 1]) == 1).all()


def test_of_the_newest_rows_no_older_segment_is_read_J5(recorded: Path) -> None:
    for rows, segments in ((1, 1), (4, 1), (5, 2), (48, 12), (1_000, 12)):
        source, _ = loaded(plan_of(recorded, {"name": "bc", "batch_size": 1}, dataset={"newest": rows}))
        assert source.ring.slots == segments
        assert int(source.arrivals("one")[0].records["stream_sequence"].max()) == 3


@pytest.mark.parametrize("algorithm", [BC, IQN], ids=lambda one: one["name"])
def test_a_member_trains_without_pace_until_its_part_is_done_J5(recorded: Path, algorithm: dict[str, Any]) -> None:
    run = run_of(recorded, algorithm)
    plan, counters, versions = plan_policies(run, scripted.WORLD)["one"], scripted.counters(), []
    source, cpu = load_dataset(plan, counters), torch.device("cpu")
    context = LearnerContext(run, 1, cpu, counters, lambda *told: versions.append(told[2]))
    member = PolicyLearner(plan, 1.0, source, context)
    member.resume(None, Version(0, 0))
    steps = 0
    while member.step():
        steps += 1
    assert member.done
    assert steps == 13  # 104 rows, the first number of batches of 8 that makes 100
    member.finish()
    assert [counters[f"{name}.one"] for name in ("rows_trained", "rows_learned", "rows_received")] == [104, 104, 48]
    assert counters["received.one"] == counters["read.one"] == counters["trained.one"] + counters["held.one"]
    assert len(versions) == 14  # the first one and one a step
    assert counters["lag_rows.one"] == 0  # versions of another run are no lag


def learner(
    recorded: Path, folder: Path | None, incarnation: int, algorithm: dict[str, Any] = BC
) -> tuple[PolicyLearner, Counters]:
    """One that goes on from what is in `folder`."""
    run, counters, cpu = run_of(recorded, algorithm), scripted.counters(), torch.device("cpu")
    plan = plan_policies(run, scripted.WORLD)["one"]
    source = load_dataset(plan, counters)
    context = LearnerContext(run, incarnation, cpu, counters, lambda *_: None, folder)
    made = PolicyLearner(plan, 1.0, source, context)
    made.resume(None, Version(0, 0))
    return made, counters


def test_who_resumes_goes_on_where_the_checkpoint_was_J5(recorded: Path, tmp_path: Path) -> None:
    first, _ = learner(recorded, tmp_path, 1)
    for _ in range(5):
        first.step()
    first.save_if_due()
    first.close()
    first.step()  # lost with it
    second, counters = learner(recorded, tmp_path, 2)
    assert (counters["rows_learned.one"], second.progress) == (40, 0.4)
    while second.step():
        pass
    assert (counters["rows_trained.one"], counters["rows_learned.one"]) == (64, 104)


@pytest.mark.parametrize("algorithm", [BC, IQN], ids=["bc", "iqn by priority"])
def test_a_resumed_learner_draws_the_rows_that_it_would_have_drawn_J5_G1(
    recorded: Path, tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    """Bit for bit, also the priorities of rows that were not drawn since."""

    def state(member: PolicyLearner) -> dict[str, list[Any]]:
        assert member._replay is not None
        kept = {name: array.tolist() for name, array in member._replay.state(0).items()}
        weights = {**member.policy.state_dict(), **member.update.state()}
        return kept | {name: tensor.tolist() for name, tensor in weights.items()}

    (whole, _), (first, _) = learner(recorded, None, 1, algorithm), learner(recorded, tmp_path, 1, algorithm)
    for member in (whole, first):
        assert all(member.step() for _ in range(4))
    first.save()
    first.close()
    again, _ = learner(recorded, tmp_path, 2, algorithm)
    assert state(again) == state(whole)
    for member in (whole, again):
        assert all(member.step() for _ in range(4))
    assert state(again) == state(whole)


def test_priorities_of_another_dataset_are_refused_J5(recorded: Path) -> None:
    plan, run = plan_of(recorded, IQN), run_of(recorded, IQN)
    source, counters = loaded(plan)
    replay = build_buffer(plan, run, source, counters, 1, torch.device("cpu"))
    assert isinstance(replay, ReplayBuffer)
    replay.fill()
    state = replay.state(0)
    for priority in (state["priority"][1:], -state["priority"], state["priority"].astype(np.float32)):
        again = build_buffer(plan, run, loaded(plan)[0], counters, 2, torch.device("cpu"))
        assert isinstance(again, ReplayBuffer)
        with raises(ConfigurationError, "replay_unusable") as told:
            again.load_state({**state, "priority": priority})
        assert "priority" in str(told.value)


def refused(plan: Callable[[], PolicyPlan], kind: str, said: str = "", **facts: Any) -> None:
    with raises(ConfigurationError, kind, **facts) as told:
        load_dataset(plan(), scripted.counters())
    assert re.search(said, whole(told.value))
    assert "\n" not in str(told.value)


def test_a_dataset_of_another_environment_is_refused_J5(recorded: Path) -> None:
    wider = World(id="w", agents=(Agent(name="one", observation=Box(shape=(3,)), action=Discrete(n=5)),))
    fewer = World(id="f", agents=(Agent(name="one", observation=Box(shape=(2,)), action=Discrete(n=4)),))
    masked = World(id="m", agents=(scripted.AGENT.model_copy(update={"action_mask": True}),))
    for world, field, said in (
        (wider, "observation", r"shape=\(2,\).*shape=\(3,\)"),
        (fewer, "action", "n=5.*n=4"),
        (masked, "action_mask", "False.*True"),
    ):
        refused(
            lambda world=world: plan_of(recorded, world=world),  # type: ignore[misc]
            "dataset_agent_mismatch",
            said,
            dataset=str(recorded),
            field=field,
            agent="one",
        )


def test_an_empty_dataset_an_unknown_path_and_too_few_rows_are_refused_J5(recorded: Path, tmp_path: Path) -> None:
    small: dict[str, Any] = {"count": 48, "batch_size": 49, "policy": "one"}
    refused(lambda: plan_of(recorded, {**BC, "batch_size": 49}), "dataset_smaller_than_batch", **small)
    nowhere = tmp_path / "nowhere"
    refused(lambda: plan_of(nowhere), "policy_not_recorded", file=nowhere, policy="one", key="policy.dataset.path")
    for path in recorded.glob("*.safetensors"):
        path.unlink()
    refused(lambda: plan_of(recorded), "dataset_empty", dataset=str(recorded), policy="one")


def test_rows_that_no_actor_can_have_sent_are_refused_J5(tmp_path: Path) -> None:
    for name, value, kind, inner in (
        ("action", 5, "dataset_environment_mismatch", r"action.* 0\.\.4.*\[segment_action_outside_space\]"),
        ("reward", np.nan, "dataset_environment_mismatch", r"'reward'.*\[segment_field_not_finite\]"),
        ("truncated", True, "dataset_last_observation_missing", ""),
    ):
        bench = Bench(tmp_path / name)
        bench.feed(2)
        bench.recorder.arrivals("one")
        bench.recorder._arrays[name][0, 1] = value
        bench.recorder.close()
        refused(lambda folder=bench.folder: plan_of(folder), kind, inner)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "kind", "key"),
    [
        ({"actors": 1}, "dataset_with_actors", "actors"),
        ({"policy": {"algorithm": {"name": "dqn"}}}, "no_source_of_experience", "policy.dataset"),
        ({"policy": {"algorithm": BC}}, "dataset_missing", "policy.dataset"),
        ({"policy": {"dataset": {"path": "x"}}}, "dataset_not_on_policy", "policy.dataset"),
        ({"policy": {"algorithm": BC, "dataset": {}}}, "dataset_source_not_one", "policy.dataset"),
        (
            {"policy": {"algorithm": BC, "dataset": {"path": "x", "minari": "y"}}},
            "dataset_source_not_one",
            "policy.dataset",
        ),
        (
            {"policy": {"algorithm": BC, "dataset": {"path": "x"}, "record": True}},
            "record_with_dataset",
            "policy.record",
        ),
        (
            {"policy": {"algorithm": BC, "dataset": {"path": "x"}, "network": {"core": "lstm"}}},
            "algorithm_not_recurrent",
            "policy.network.core",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_at_the_start_J5(change: dict[str, Any], kind: str, key: str) -> None:
    data = {"actors": 0, "policy": {"algorithm": BC, "dataset": {"path": "x"}}, **change}
    with raises(ConfigurationError, kind, key=key) as told:
        plan_policies(parse_run(data), scripted.WORLD)
    assert "\n" not in str(told.value)


def test_what_agents_observe_in_common_is_not_recorded_J5() -> None:
    policy = {"algorithm": PPO(epochs=1, minibatches=1).model_dump(), "record": True}
    run = Run.model_validate({"environment": {"copies": 2}, "policy": policy})
    with raises(ConfigurationError, "dataset_with_common_observations", policy="one", key="policy.dataset"):
        plan_policies(run, scripted.SHARING)
