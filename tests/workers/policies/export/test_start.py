"""What a policy starts from is taken by name and shape, from a file or a checkpoint, and everything else is told."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from protocol.config.run import PolicyConfig, Run
from protocol.config.trainable import DeclaredOutput, Start, StartKL
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.workers.policies.exports import CASES, NORMAL, PLAIN, alone
from tests.workers.policies.test_checkpoint import save as save_checkpoint
from workers.learning.starts import start_table
from workers.policies.build import Policy, build
from workers.policies.export import start as module
from workers.policies.export.start import put_in_place, take_start
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.declared_outputs import DeclaredOutputs
from workers.policies.networks.normalization import RunningMoments
from workers.runtime.process import keep_config


def made(case: str = "", seed: int = 0, hidden: int = 8, world: Any = None, **network: Any) -> Policy:
    """A policy of a case of tests/workers/policies/exports.py, or a small one of PPO with all normalizers."""
    world, algorithm, given = CASES[case] if case else (world or alone(PLAIN), NORMAL, {"hidden": [hidden], **network})
    config = PolicyConfig.model_validate({"algorithm": algorithm.model_dump(), "network": given})
    world = world.deployed() if not case else world
    policy = build(Interface.at(world, world.places[0], config), config, seed)
    generator = torch.Generator().manual_seed(seed)
    for one in policy.modules():
        if isinstance(one, RunningMoments):
            one.mean.copy_(torch.randn(one.mean.shape, generator=generator))
            one.count.fill_(seed + 1)
    return policy


def state(policy: Policy) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def written(path: Path, tensors: dict[str, Tensor]) -> str:
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)
    return str(path)


def started(policy: Policy, path: str, **keys: Any) -> dict[str, Any]:
    """Puts in place what it takes; the table."""
    data = take_start("one", policy, Start(path=path, **keys))
    put_in_place(policy, data)
    return start_table(BytesIO(data))


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_policy_takes_all_its_weights_bit_for_bit(case: str, tmp_path: Path) -> None:
    """What follows others is a copy of these, not of what followed them there; constants and exploration stay."""
    other, policy = made(case, 1), made(case, 2)
    theirs, before = state(other), state(policy)
    constants = {name for name, _ in policy.named_buffers(recurse=False)}
    for name in theirs:
        if name.startswith(("target.", "targets.")) or name in constants:
            theirs[name].add_(1)
    table = started(policy, written(tmp_path / "w.safetensors", theirs))
    assert (table["new"], table["skipped"], table["unused"]) == ({}, [], [])
    for name, tensor in policy.state_dict().items():
        source = name
        for target, online in (("target.", "online."), ("targets.", "critics.")):
            source = online + name.removeprefix(target) if name.startswith(target) else source
        expected = before[name] if name in constants else theirs[source]
        assert torch.equal(tensor, expected), name


def test_parts_are_taken_or_skipped_by_words_and_by_beginnings_of_names(tmp_path: Path) -> None:
    theirs = state(made(seed=1, core={"name": "lstm", "size": 4}))
    path = written(tmp_path / "w.safetensors", theirs)
    core = {name for name in theirs if name.startswith("core.")}
    returns = {"returns.mean", "returns.variance", "returns.count"}
    seen = {"observations.mean", "observations.variance", "observations.count"}
    heads = {"policy_weight", "policy_bias", "value_weight", "value_bias"}
    hidden = {"layer_0_weight", "layer_0_bias"}
    for keys, taken in (
        ({}, core | returns | seen | heads | hidden),
        ({"only": "core"}, core),
        ({"only": ["core", "hidden"]}, core | hidden),
        ({"skip": ["heads"]}, core | seen | hidden),
        ({"only": ["heads"], "skip": ["value"]}, returns | {"policy_weight", "policy_bias"}),
        ({"normalizer": False}, core | heads | hidden),
        ({"only": "normalizer"}, returns | seen),
        ({"only": "core.cell.weight_ih_l0"}, {"core.cell.weight_ih_l0"}),
    ):
        policy = made(seed=2, core={"name": "lstm", "size": 4})
        before = state(policy)
        table = started(policy, path, **keys)
        assert {*table["taken"]} == taken, keys
        assert {*table["skipped"]} == before.keys() - taken, keys
        for name, tensor in policy.state_dict().items():
            assert torch.equal(tensor, theirs[name] if name in taken else before[name]), (keys, name)


def test_what_has_another_shape_or_is_not_there_stays_new_and_what_is_not_here_is_told(tmp_path: Path) -> None:
    theirs = state(made(seed=1, hidden=8)) | {"more": torch.ones(3)}
    del theirs["policy_bias"]
    theirs["value_bias"] = theirs["value_bias"].to(torch.bfloat16)
    policy = made(seed=2, hidden=16)
    before = state(policy)
    table = started(policy, written(tmp_path / "w.safetensors", theirs))
    assert table["new"] == {
        "layer_0_weight": "[6, 16] there, [6, 32] here",
        "layer_0_bias": "[16] there, [32] here",
        "policy_weight": "[8, 4] there, [16, 4] here",
        "policy_bias": "not there",
        "value_weight": "[8, 1] there, [16, 1] here",
    }
    assert table["unused"] == ["more"]
    assert table["taken"].keys() == before.keys() - table["new"].keys()
    assert torch.equal(policy.state_dict()["policy_weight"], before["policy_weight"])
    assert torch.equal(policy.state_dict()["value_bias"], theirs["value_bias"].float())


def test_what_is_frozen_is_told_and_must_have_been_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "w.safetensors", state(made(seed=1, hidden=8)))
    table = started(made(seed=2), path, freeze={"only": "policy", "steps": 7})
    assert (table["frozen"], table["frozen_steps"]) == (["policy_weight", "policy_bias"], 7)
    with raises(ConfigurationError, "start_freezes_new", key="policy.start.freeze", field="layer_0_weight"):
        started(made(seed=2), path, freeze="hidden", skip="hidden")


def test_what_a_policy_is_kept_near_to_must_have_been_taken_but_for_its_values(tmp_path: Path) -> None:
    path = written(tmp_path / "w.safetensors", state(made(seed=1, hidden=8)))
    assert started(made(seed=2), path, kl=StartKL(coefficient=1), skip="value")["skipped"] == [
        "value_weight",
        "value_bias",
    ]
    saying = made(seed=2)
    assert isinstance(saying, ActorCritic)
    saying.declared = DeclaredOutputs([DeclaredOutput(name="aside")], saying.features, (), "tanh")
    new = started(saying, path, kl=StartKL(coefficient=1))["new"]
    assert {name for name in new if name.startswith("declared.")} == {"declared.head.weight", "declared.head.bias"}
    with raises(ConfigurationError, "start_kl_incomplete", key="policy.start.kl", field="policy_weight"):
        started(made(seed=2), path, kl=StartKL(coefficient=1), skip="policy")


def test_weights_that_know_observations_as_they_are_are_refused_where_these_are_normalized(tmp_path: Path) -> None:
    raw = {name: one for name, one in state(made(seed=1)).items() if not name.startswith("observations.")}
    path = written(tmp_path / "w.safetensors", raw)
    with raises(ConfigurationError, "start_without_normalizer", key="policy.start.path", file=path):
        started(made(seed=2), path)
    assert started(made(seed=2), path, normalizer=False)["new"] == {}


@pytest.mark.parametrize("key", ["only", "skip", "freeze"])
def test_a_part_that_the_policy_does_not_have_is_refused(key: str, tmp_path: Path) -> None:
    path = written(tmp_path / "w.safetensors", state(made(seed=1)))
    choices = ["heads", "hidden", "normalizer"]
    for part in ("core", "encoder", "layer_0_w", "polic"):
        with raises(ConfigurationError, "start_part_unknown", key=f"policy.start.{key}", value=part, choices=choices):
            started(made(seed=2), path, **{key: [part]})


def test_a_file_that_holds_nothing_of_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, theirs = tmp_path / "w.safetensors", state(made(seed=1))
    facts = {"key": "policy.start.path", "file": path}

    def refused(kind: str, **more: Any) -> None:
        with raises(ConfigurationError, kind, **facts, **more):
            started(made(seed=2), str(path))

    written(path, {"other": torch.ones(2)})
    refused("start_nothing_fits", policy="one", choices=["other"])
    written(path, theirs | {"value_bias": torch.full((1,), torch.nan)})
    refused("start_not_finite", field="value_bias")
    written(path, theirs | {"value_bias": torch.full((1,), 1e300, dtype=torch.float64)})  # none as float32
    refused("start_not_finite", field="value_bias")
    for name in ("variance", "count"):
        written(path, theirs | {f"returns.{name}": torch.tensor(-1.0, dtype=torch.float64)})
        refused("start_not_finite", field=f"returns.{name}")
    path.write_bytes(b"PK\x03\x04 this is a pickle")
    refused("start_not_safetensors")
    path.write_bytes(b"")
    refused("start_not_safetensors")
    written(path, theirs)
    size = path.stat().st_size
    monkeypatch.setattr(module, "LARGEST", size - 1)
    refused("start_too_large", value=size, limit=size - 1)
    monkeypatch.setattr(module, "LARGEST", size)
    started(made(seed=2), str(path))


def test_weights_of_eight_bits_are_taken(tmp_path: Path) -> None:
    theirs = state(made(seed=1)) | {"value_bias": torch.full((1,), 0.5).to(torch.float8_e4m3fn)}
    policy = made(seed=2)
    assert "value_bias" in started(policy, written(tmp_path / "w.safetensors", theirs))["taken"]
    assert policy.state_dict()["value_bias"].item() == 0.5


def test_a_start_that_leaves_everything_out_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "w.safetensors", state(made(seed=1)))
    for keys in ({"only": ["hidden"], "skip": ["hidden"]}, {"only": ["normalizer"], "normalizer": False}):
        with raises(ConfigurationError, "start_takes_nothing", key="policy.start.skip"):
            started(made(seed=2), path, **keys)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of `blue` and `red`, each of which holds its number; of red 20 is the best."""
    folder = tmp_path / "run"
    folder.mkdir()
    keep_config(Run(auxiliaries={}), folder)
    for policy, steps in (("red", {10: 1.0, 20: 9.0, 30: 5.0}), ("blue", {40: None})):
        for step, earned in steps.items():
            path = save_checkpoint(folder / "checkpoints" / policy, step, mean_return=earned, keep=9)
            written(path / "weights.safetensors", {"value_bias": torch.tensor([float(step)])})
    return folder


@pytest.mark.parametrize(
    ("path", "policy", "step"),
    [
        ("run", "red", 30),
        ("run", "blue", 40),
        ("run@best", "red", 20),
        ("run@10", "red", 10),
        ("run/red", "green", 30),
        ("with@sign", "red", 30),
        ("with@sign@best", "red", 20),
        ("run@best/red", "blue", 20),
        ("run@newest/blue", "red", 40),
        ("run/checkpoints/red/10/weights.safetensors", "blue", 10),
    ],
)
def test_a_run_is_named_with_its_checkpoint_and_policy(
    path: str, policy: str, step: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    Path("with@sign").symlink_to("run")
    data = take_start(policy, made(seed=2), Start(path=path))
    assert load(data)["value_bias"].item() == step
    assert Path(start_table(BytesIO(data))["file"]).parent.name == str(step)


def test_the_only_policy_of_a_run_serves_every_other(run: Path) -> None:
    (run / "checkpoints" / "blue").rename(run.parent / "blue")
    assert load(take_start("green", made(seed=2), Start(path=str(run))))["value_bias"].item() == 30


@pytest.mark.parametrize(
    ("path", "kind", "facts"),
    [
        ("nowhere", "start_not_found", {"value": "nowhere"}),
        ("nowhere@best/red", "start_not_found", {"value": "nowhere@best/red"}),
        (".", "start_not_found", {"value": "."}),
        ("run", "start_policy_unknown", {"policy": "green", "choices": ["blue", "red"]}),
        ("run@best/pink", "start_policy_unknown", {"policy": "pink", "choices": ["blue", "red"]}),
        ("run@11/red", "checkpoint_not_found", {"value": "11", "choices": ["10", "20", "30"]}),
        ("run@worst/red", "checkpoint_not_found", {"value": "worst"}),
        ("run@best/blue", "best_checkpoint_unknown", {"policy": "blue"}),
        ("empty/red", "policy_without_checkpoint", {"policy": "red"}),
    ],
)
def test_a_run_without_that_is_refused_with_what_there_is(
    path: str, kind: str, facts: dict[str, Any], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    (run.parent / "empty").mkdir()
    keep_config(Run(), run.parent / "empty")
    with raises(ConfigurationError, kind, key="policy.start.path", **facts):
        take_start("green", made(seed=2), Start(path=path))


def test_the_short_forms_mean_the_same_and_paths_are_anchored() -> None:
    short = PolicyConfig.model_validate({"start": "runs/x@best"})
    assert short.start == Start(path="runs/x@best")
    long = PolicyConfig.model_validate({"start": {"path": "x", "only": "core", "freeze": "core"}})
    assert long == PolicyConfig.model_validate({"start": {"path": "x", "only": ["core"], "freeze": {"only": ["core"]}}})
    run = Run.model_validate({"policy": {"start": "a"}, "policies": {"one": {"start": "b"}}}).anchored()
    assert run.policy.start == Start(path=os.path.abspath("a"))
    assert run.policy_config("one").start == Start(path=os.path.abspath("b"))


def test_what_is_frozen_is_not_compiled() -> None:
    with raises(Exception, "compile_conflict", key="compile"):
        PolicyConfig.model_validate({"compile": True, "start": {"path": "x", "freeze": "heads"}})
