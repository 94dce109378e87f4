"""Checkpoints appear whole or not at all, are pruned, and are refused in one sentence where they do not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.policies import checkpoint
from workers.policies.checkpoint import Checkpoint, CheckpointManifest

HASH = "0123456789abcdef"


def save(
    folder: Path,
    step: int,
    value: float = 1.0,
    keep: int = 2,
    mean_return: float | None = None,
    replay: bool = False,
    every: int | None = None,
) -> Path:
    """A checkpoint whose tensors are views of one buffer, as policies' are."""
    buffer = torch.full((6,), value)
    weights = checkpoint.to_cpu({"a": buffer[:2], "b": buffer[2:].view(2, 2)})
    manifest = CheckpointManifest(
        step=step,
        policy="one",
        version=3,
        incarnation=1,
        train_steps=step,
        rows=5,
        weights_hash=HASH,
        mean_return=mean_return,
        agent={},
        common=None,
        config={},
    )
    rows = {"random": np.arange(13, dtype=np.uint64)} if replay else {}
    return checkpoint.save(folder, Checkpoint(manifest, weights, {"m": torch.ones(3)}, rows), keep, every)


def newest(folder: Path) -> Checkpoint:
    """The newest one."""
    found = checkpoint.load_newest(folder, HASH)
    assert found is not None
    return found


def test_what_was_saved_is_loaded_with_its_facts(tmp_path: Path) -> None:
    save(tmp_path, 7, 2.5, replay=True)
    found = newest(tmp_path)
    assert found.weights["b"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert found.optimizer["m"].tolist() == [1, 1, 1]
    assert found.replay["random"].tolist() == list(range(13))
    told = found.manifest
    assert (told.step, told.rows, told.mean_return, told.format) == (7, 5, None, checkpoint.FORMAT)


def test_what_was_copied_stays_while_the_weights_go_on_changing() -> None:
    buffer = torch.zeros(4)
    copied = checkpoint.to_cpu({"a": buffer[:2]})
    buffer.fill_(9)
    assert copied["a"].tolist() == [0, 0]


def test_no_folder_and_an_empty_one_hold_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "²").mkdir()  # a digit, but no number
    for folder in (tmp_path / "none", tmp_path):
        assert checkpoint.load_newest(folder, HASH) is None
        assert checkpoint.best(folder) is None


def test_only_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 100, 101):
        save(tmp_path, step, step)
    assert checkpoint.list_steps(tmp_path) == [100, 101]
    assert newest(tmp_path).weights["a"].tolist() == [101, 101]


def test_the_best_is_kept_beside_them_until_a_better_one_comes(tmp_path: Path) -> None:
    kept = []
    for step, mean_return in enumerate([None, 5.0, 7.0, 7.0, 6.0, 1.0, None, 8.0, 2.0], 1):
        save(tmp_path, step, keep=1, mean_return=mean_return)
        kept.append(checkpoint.list_steps(tmp_path))
    assert kept == [[1], [2], [3], [4], [4, 5], [4, 6], [4, 7], [8], [8, 9]]
    assert checkpoint.best(tmp_path) == 8


def test_the_first_of_each_so_many_train_steps_stays_for_good(tmp_path: Path) -> None:
    for step in (1, 40, 99, 100, 130, 199, 350, 360, 370):
        save(tmp_path, step, keep=1, every=100)
    assert checkpoint.list_steps(tmp_path) == [1, 100, 350, 370]


def test_one_that_cannot_be_read_is_not_the_best(tmp_path: Path) -> None:
    (save(tmp_path, 1, mean_return=9.0) / "manifest.json").write_text("{")
    save(tmp_path, 2, mean_return=1.0)
    assert checkpoint.best(tmp_path) == 2


def test_a_save_that_was_killed_is_never_loaded_and_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 1.0)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, 2.0)
    assert len(list(tmp_path.iterdir())) == 2
    assert newest(tmp_path).manifest.step == 1
    save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_all_of_it_is_on_disk_before_it_has_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, order = tmp_path / "5", []
    monkeypatch.setattr(checkpoint, "sync", lambda path: order.append((path.name, final.exists())))
    save(tmp_path, 5)
    parts = {(path.name, False) for path in final.iterdir()}
    assert len(parts) >= 3
    assert set(order[:-2]) == parts
    assert order[-2:] == [(".5.new", False), (tmp_path.name, True)]


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 4, 1.0, keep=1)
    save(tmp_path, 4, 2.0, keep=1)
    assert newest(tmp_path).weights["a"].tolist() == [2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


FILES = ["weights.safetensors", "optimizer.safetensors", "replay.safetensors", "manifest.json"]


def refused(folder: Path, kind: str, said: str, **facts: object) -> None:
    """The newest checkpoint in `folder` is, in one sentence that names it."""
    with raises(ConfigurationError, kind, file=folder / "3", **facts) as told:
        checkpoint.load_newest(folder, HASH)
    assert str(folder / "3") in str(told.value)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("file", ["weights.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [b"", b"[]", b"\xff" * 99, b"[" * 100_000])
def test_a_damaged_checkpoint_is_told_in_one_sentence_with_the_remedy(tmp_path: Path, file: str, damage: bytes) -> None:
    (save(tmp_path, 3, replay=True) / file).write_bytes(damage)
    refused(tmp_path, "checkpoint_unreadable", f"{file}: ")


@pytest.mark.parametrize("file", FILES)
def test_one_that_was_cut_short_or_lengthened_is_refused(tmp_path: Path, file: str) -> None:
    path = save(tmp_path, 3, replay=True) / file
    data = path.read_bytes()
    for wrong in (data[:-5], data + b"more"):
        path.write_bytes(wrong)
        refused(tmp_path, "checkpoint_unreadable", f"{file}: ")


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_leads_elsewhere_never_ends_or_is_missing_is_refused(tmp_path: Path, file: str) -> None:
    path = save(tmp_path, 3, replay=True) / file
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused(tmp_path, "checkpoint_unreadable", f"{file}: it is no plain file")
    path.unlink()
    os.mkfifo(path)
    refused(tmp_path, "checkpoint_unreadable", f"{file}: it is no plain file")
    path.unlink()
    if file != "replay.safetensors":  # which not all have
        refused(tmp_path, "checkpoint_unreadable", f"{file}: ")


@pytest.mark.parametrize(
    ("file", "number"), [("weights.safetensors", float("nan")), ("optimizer.safetensors", float("inf"))]
)
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, file: str, number: float) -> None:
    save_file({"a": torch.tensor([1.0, number])}, save(tmp_path, 3) / file)
    refused(tmp_path, "checkpoint_not_finite", "(a)", field="a")


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"version": "7"},
        {"version": 2**40},
        {"rows": 1.5},
        {"mean_return": float("nan")},
        {"more": 1},
    ],
    ids=str,
)
def test_a_manifest_that_says_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    manifest = save(tmp_path, 3) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    refused(tmp_path, "checkpoint_unreadable", f"manifest.json: {next(iter(change))} ")


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with raises(ConfigurationError, "checkpoint_of_other_network"):
        checkpoint.load_newest(tmp_path, "f" * 16)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    manifest = save(tmp_path, 3) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    refused(tmp_path, "checkpoint_format_unknown", "99", value=99, oldest=1, newest=checkpoint.FORMAT)
