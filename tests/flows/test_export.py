"""A run's policies leave its folder as files, with no worker running, and play without it (I2, J7)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from protocol.config.run import EnvironmentConfig
from tests.faults import kinds_in, words_in
from tests.flows.runs import config, rookery, write
from tests.playing import play
from tests.tools import skip_or_fail
from workers.environments.registry import make
from workers.policies import checkpoint
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players.frozen_player import FrozenPlayer
from workers.tools import export as exporting


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two policies."""
    folder = tmp_path_factory.mktemp("run")
    path = write(config(steps=2_000, checkpoint_interval=0.05, keep_checkpoints=3), folder)
    made = rookery("train", str(path), "--run-dir", "out", "--no-progress", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder / "out"


def export(run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `rookery export` does, without another interpreter each time (the documents' tests run that)."""
    with chdir(run.parent):
        told = CliRunner().invoke(exporting.main, [run.name, *arguments])
    return subprocess.CompletedProcess(arguments, told.exit_code, told.stdout, told.stderr)


def test_an_exported_policy_is_that_of_the_newest_checkpoint_and_plays_J7(run: Path, tmp_path: Path) -> None:
    told = export(run, "--policy", "agent_1", "--out", str(tmp_path / "mine.safetensors"))
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == str(tmp_path / "mine.safetensors")
    frozen = ExportedPolicy.load(tmp_path / "mine.safetensors")
    folder = run / "checkpoints" / "agent_1"
    step = checkpoint.list_steps(folder)[-1]
    newest = checkpoint.load(folder / str(step))
    source = frozen.manifest.provenance
    assert source.run == (run / "run_id").read_text().strip()
    assert (source.train_steps, source.version, source.folder) == (step, newest.manifest.version, "out")
    assert json.loads((tmp_path / "mine.json").read_text())["provenance"] == source.model_dump()
    assert torch.equal(frozen._policy.state_dict()["policy_weight"], newest.weights["policy_weight"])

    world = make(EnvironmentConfig(copies=4, settings={"width": 9, "height": 9, "turns": 20}))
    players = {name: FrozenPlayer(frozen, 4, np.random.default_rng(i)) for i, name in enumerate(("agent_0", "agent_1"))}
    returns = play(world, players, 8, seed=1)
    assert all(np.isfinite(mean) for mean, _ in returns.values())


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("torchscript", ".pt"), pytest.param("onnx", ".onnx", marks=pytest.mark.slow), ("safetensors", ".safetensors")],
)
def test_without_a_name_a_file_lies_in_the_runs_folder(run: Path, kind: str, ending: str) -> None:
    if kind == "onnx" and importlib.util.find_spec("onnxscript") is None:
        skip_or_fail("onnxscript is not installed")
    oldest = checkpoint.list_steps(run / "checkpoints" / "agent_0")[0]
    told = export(run, "--policy", "agent_0", "--format", kind, "--checkpoint", str(oldest))
    assert (told.returncode, told.stderr) == (0, "")
    path = run.parent / told.stdout.strip()
    assert path == run / "exports" / f"agent_0-{oldest}{ending}"
    assert path.stat().st_size > 1000
    assert json.loads(path.with_suffix(".json").read_text())["provenance"]["train_steps"] == oldest


def test_the_best_checkpoint_is_that_with_the_greatest_return(run: Path) -> None:
    folder = run / "checkpoints" / "agent_0"
    manifests = [folder / str(step) / "manifest.json" for step in checkpoint.list_steps(folder)]
    assert json.loads(manifests[-1].read_text())["mean_return"] is not None, "its learner was never told of returns"
    kept = [path.read_text() for path in manifests]
    for i, path in enumerate(manifests):
        path.write_text(json.dumps({**json.loads(kept[i]), "mean_return": 9.0 - abs(i - 1)}))
    told = export(run, "--policy", "agent_0", "--checkpoint", "best", "--out", "best.safetensors")
    for path, text in zip(manifests, kept, strict=True):
        path.write_text(text)
    assert told.returncode == 0, told.stderr
    steps = checkpoint.list_steps(folder)
    assert ExportedPolicy.load(run.parent / "best.safetensors").manifest.provenance.train_steps == steps[1]


def test_a_checkpoint_that_the_run_removes_meanwhile_gives_way_to_another(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "agent_0"
    *_, second, newest = checkpoint.list_steps(folder)
    load = checkpoint.load

    def slow(path: Path) -> checkpoint.Checkpoint:
        shutil.rmtree(folder / str(newest), ignore_errors=True)
        return load(path)

    monkeypatch.setattr(checkpoint, "load", slow)
    path = exporting.export(tmp_path / "run", "agent_0", "safetensors", None, "newest")
    assert ExportedPolicy.load(path).manifest.provenance.train_steps == second


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((), "policy_option_needed", ["agent_0", "agent_1"]),
        (("--policy", "agent_7"), "policy_option_needed", ["'agent_7'", "agent_0", "agent_1"]),
        (("--policy", "agent_0", "--checkpoint", "999999"), "checkpoint_not_found", ["999999", "'agent_0'"]),
        (("--policy", "agent_0", "--out", "/proc/nowhere.safetensors"), "file_not_writable", ["--out"]),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(
    run: Path, arguments: tuple[str, ...], kind: str, words: list[str]
) -> None:
    told = export(run, *arguments)
    assert told.returncode in (2, 10)
    assert kinds_in(told.stderr) == [kind]
    assert {*words} <= words_in(told.stderr)
    assert "Traceback" not in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = export(tmp_path / "empty")
    assert told.returncode == 2
    assert kinds_in(told.stderr) == ["folder_without_config"]
