"""Runs that start from the weights of another run: the same bits first, also after a death, and in lock-step."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from protocol.config.run import PPO, Run, parse_run
from protocol.errors import SharedMemoryError
from protocol.memory.shared_file import PREFIX
from protocol.weights.manifest import Version
from protocol.weights.shared_snapshot import SharedSnapshot
from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.flows.test_lockstep import bits, in_step
from tests.flows.test_lockstep import here as in_lockstep
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build, published_weights
from workers.policies.checkpoint import best
from workers.policies.tensors.flat_weights import FlatWeights
from workers.runtime.process import keep_config
from workers.sequential import Sequential


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two policies; its best checkpoints are not always its newest."""
    folder = tmp_path_factory.mktemp("earlier")
    made = runs.train(runs.config(steps=3_000), folder, "--no-progress", "--sequential")
    assert made.returncode == 0, made.stderr
    return folder / "run"


def weights_in(run: Path, policy: str, step: int | None = None) -> dict[str, torch.Tensor]:
    """Of a checkpoint, by default the newest one."""
    folder = run / "checkpoints" / policy
    newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    return load_file((newest if step is None else folder / str(step)) / "weights.safetensors")


def alone(data: dict[str, Any], folder: Path) -> None:
    """A whole run in this process."""
    folder.mkdir()
    (folder / "run").mkdir()
    keep_config(parse_run(data), folder / "run")
    sequential = Sequential(parse_run(data), folder / "run")
    sequential.finish(sequential.run())
    del sequential
    gc.collect()  # its pages of counters


def flat(run: Run, policy: str, weights: dict[str, torch.Tensor]) -> tuple[FlatWeights, NDArray[np.uint8]]:
    """What a policy of `run` with these weights publishes."""
    plan = plan_policies(run, describe(run.environment))[policy]
    made = build(plan.interface, plan.config, 0)
    made.load_state_dict(weights)
    whole = published_weights(made)
    return whole, whole.bytes_view().copy()


def mailbox(folder: Path, memory: Path, weights: FlatWeights, incarnation: int) -> tuple[Version, NDArray[np.uint8]]:
    """The first that this incarnation of the learner of agent_0 published."""
    out = np.zeros(weights.nbytes, np.uint8)

    def published() -> Version | None:
        identity = folder / "run" / "run_id"
        path = memory / f"{PREFIX}{identity.read_text().strip() if identity.exists() else ''}-agent_0.weights"
        try:
            box = SharedSnapshot.attach(path, weights.hash, weights.nbytes)
        except (SharedMemoryError, FileNotFoundError):  # it is being made
            return None
        try:
            version = box.read(out)
        finally:
            box.close()
        return version if version is not None and version.incarnation == incarnation else None

    runs.until(lambda: published() is not None, what=f"incarnation {incarnation} has published")
    found = published()
    assert found is not None
    return found, out


@pytest.mark.chaos
def test_what_is_published_first_is_the_best_checkpoint_bit_for_bit_also_after_a_death(
    tmp_path: Path, memory_dir: Path, earlier: Path
) -> None:
    """Before there is any update, and after a kill that leaves neither weights in memory nor a checkpoint: by then the
    other run is gone. Nobody is told its path."""
    source = shutil.copytree(earlier, tmp_path / "source")
    found = best(source / "checkpoints" / "agent_1")
    whole, expected = flat(parse_run(runs.config()), "agent_0", weights_in(source, "agent_1", found))
    policy = {"start": "source@best/agent_1", "segment_length": 512}
    data = runs.paced(tmp_path, 10**6, pause=0.02, policies={"agent_0": policy})
    with runs.training(data, tmp_path) as worker:
        version, first = mailbox(tmp_path, memory_dir, whole, 1)
        assert version.version == 1
        assert first.tobytes() == expected.tobytes()
        shutil.rmtree(source)
        for left in memory_dir.glob("*-agent_0.weights"):
            left.unlink()
        runs.kill(runs.workers_of(tmp_path)["learner-agent_0"])
        _, again = mailbox(tmp_path, memory_dir, whole, 2)
        assert again.tobytes() == expected.tobytes()
        assert not (tmp_path / "run" / "checkpoints" / "agent_0").exists()
        runs.kill(worker.popen.pid, 2)
        worker.wait()
    told = runs.summary_of(tmp_path)["starts"]
    assert told.keys() == {"agent_0"}
    assert told["agent_0"]["file"].endswith(f"source/checkpoints/agent_1/{found}/weights.safetensors")
    log = (tmp_path / "run" / "logs" / "learner-agent_0.log").read_text()
    assert log.count("event=start policy=agent_0") == 2
    assert "weight=layer_0_weight is=taken" in log
    assert not [line for line in log.splitlines() if "source@best" in line and "event=start policy" not in line]


PARTLY: dict[str, dict[str, dict[str, Any]]] = {
    "agent_0": {
        "start": {"skip": "value", "freeze": {"only": "hidden", "steps": 600}, "kl": {"coefficient": 0.5, "steps": 900}}
    },
    "agent_1": {"start": {"only": ["hidden", "heads"], "freeze": ["heads"]}},
}


def nearness(told: dict[str, float]) -> float:
    """How much of the divergence from its start is in the loss of an update."""
    plain = told["policy_loss"] + PPO().value_coefficient * told["value_loss"]
    return (told["loss"] - plain + told["entropy_coefficient"] * told["entropy"]) / told["start_kl"]


@pytest.mark.usefixtures("as_a_worker")
def test_in_lockstep_what_is_taken_frozen_kept_near_and_let_go_is_the_same_as_in_one_process(
    tmp_path: Path, memory_dir: Path, earlier: Path
) -> None:
    policies: dict[str, Any] = {
        name: {"start": {"path": str(earlier), **keys["start"]}} for name, keys in PARTLY.items()
    }
    data = in_step(steps=2_400, policies=policies)
    reference = in_lockstep({**data, "actors": 4}, tmp_path / "sequential")
    told = [json.loads(line)["losses"] for line in reference["agent_0.jsonl"].splitlines()]
    assert 0 <= told[0][0]["start_kl"] < 1e-5, "it is itself at first"
    near = [nearness(losses[-1]) for losses in told]
    assert near == pytest.approx([max(0.0, 0.5 * (1 - 128 * (made + 1) / 900)) for made in range(len(near))], abs=0.02)
    assert bits({**data, "actors": 2}, tmp_path / "two") == reference
    heads = {"policy_weight", "policy_bias", "value_weight", "value_bias", "returns.mean", "returns.count"}
    for policy, stays in (("agent_0", set()), ("agent_1", heads | {"returns.variance"})):
        before, after = weights_in(earlier, policy), weights_in(tmp_path / "two" / "run", policy)
        assert {name for name in after if torch.equal(before[name], after[name])} == stays
    short = in_lockstep({**data, "steps": 640, "actors": 4}, tmp_path / "short")  # before the first one thaws
    assert short
    before, after = weights_in(earlier, "agent_0"), weights_in(tmp_path / "short" / "run", "agent_0")
    same = {name for name in after if torch.equal(before[name], after[name])}
    assert same == {"layer_0_weight", "layer_0_bias"}
    log = (tmp_path / "two" / "run" / "logs" / "learner-agent_1.log").read_text()
    assert "event=start policy=agent_1" in log
    summary = json.loads((tmp_path / "two" / "run" / "summary.json").read_text())["starts"]
    assert summary["agent_0"]["skipped"] == ["value_weight", "value_bias"]
    assert (summary["agent_0"]["frozen_steps"], summary["agent_1"]["frozen_steps"]) == (600, None)
    assert runs.files(memory_dir) == []


def test_a_run_that_goes_on_begins_where_it_was_without_the_other_run(
    tmp_path: Path, memory_dir: Path, earlier: Path
) -> None:
    source = shutil.copytree(earlier, tmp_path / "source")
    start = {"path": "source", "freeze": "hidden"}
    data = runs.config({**runs.PPO, "anneal_learning_rate": False}, 1_500, policy={"start": start})
    assert runs.train(data, tmp_path).returncode == 0
    before = weights_in(tmp_path / "run", "agent_0")
    shutil.rmtree(source)
    longer = runs.rookery("train", str(tmp_path / "run"), "--steps", "3000", cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    after = weights_in(tmp_path / "run", "agent_0")
    assert torch.equal(before["layer_0_weight"], after["layer_0_weight"])
    assert not torch.equal(before["policy_weight"], after["policy_weight"])
    log = (tmp_path / "run" / "logs" / "learner-agent_0.log").read_text()
    assert log.count("event=start policy=agent_0") == log.count("event=resumed policy=agent_0 from=checkpoint") == 1
    assert runs.files(memory_dir) == []


@pytest.mark.parametrize("way", ["--no-progress", pytest.param("--sequential", marks=pytest.mark.slow)])
def test_what_cannot_be_started_from_is_refused_before_anything_begins(tmp_path: Path, earlier: Path, way: str) -> None:
    result = runs.train(runs.config(policies={"agent_1": {"start": f"{earlier}/blue"}}), tmp_path, way)
    assert result.returncode == 2
    assert kinds_in(result.stderr) == ["start_policy_unknown"]
    assert {"policies.agent_1.start.path", "'blue'", "agent_0", "agent_1"} <= words_in(result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("as_a_worker")
def test_what_was_cloned_learns_on_by_ppo(tmp_path: Path) -> None:
    """What was recorded is cloned, and PPO begins with the clone: its actions at first, and a value to be learned."""
    run = runs.config(steps=2_000, policy={"record": True})
    alone(run, tmp_path / "recorded")
    dataset = {"dataset": {"path": str(tmp_path / "recorded" / "run" / "datasets")}}
    alone(runs.config({"name": "bc", "batch_size": 16}, 2_000, actors=0, policy=dataset), tmp_path / "clone")
    start = {"path": str(tmp_path / "clone" / "run"), "freeze": {"only": "policy", "steps": 200}}
    alone(runs.config(steps=2_000, policy={"start": start}), tmp_path / "on")
    summary = json.loads((tmp_path / "on" / "run" / "summary.json").read_text())
    clone, on = (weights_in(tmp_path / name / "run", "agent_0") for name in ("clone", "on"))
    assert summary["starts"]["agent_0"]["new"] == {}
    assert clone.keys() == on.keys() == summary["starts"]["agent_0"]["taken"].keys()
    assert all(not torch.equal(clone[name], on[name]) for name in clone)
