"""Checkpoints appear whole or not at all, are pruned, and are refused in one sentence where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from protocol.errors import ConfigurationError
from workers.learning import checkpoint

HASH = "0123456789abcdef"


def save(folder: Path, step: int, value: float = 1.0, keep: int = 2) -> Path:
    """A checkpoint whose tensors are views of one buffer, as policies' are."""
    buffer = torch.full((6,), value)
    weights = {"a": buffer[:2], "b": buffer[2:].view(2, 2)}
    return checkpoint.save(folder, step, weights, {"m": torch.ones(3)}, {"weights_hash": HASH, "rows": 5}, keep)


def test_what_was_saved_is_loaded_with_its_facts(tmp_path: Path) -> None:
    save(tmp_path, 7, 2.5)
    loaded = checkpoint.load_newest(tmp_path, HASH)
    assert loaded is not None
    weights, optimizer, facts = loaded
    assert weights["b"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert optimizer["m"].tolist() == [1, 1, 1]
    assert (facts["step"], facts["rows"], facts["format"]) == (7, 5, checkpoint.FORMAT)


def test_no_folder_and_an_empty_one_hold_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "none", HASH) is None
    assert checkpoint.load_newest(tmp_path, HASH) is None


def test_only_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 100, 101):
        save(tmp_path, step, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100", "101"]
    loaded = checkpoint.load_newest(tmp_path, HASH)
    assert loaded is not None
    assert loaded[0]["a"].tolist() == [101, 101]


def test_a_save_that_was_killed_is_never_loaded_and_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 1.0)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_sync", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, 2.0)
    assert len(list(tmp_path.iterdir())) == 2
    loaded = checkpoint.load_newest(tmp_path, HASH)
    assert loaded is not None
    assert loaded[2]["step"] == 1
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 4, 1.0, keep=1)
    save(tmp_path, 4, 2.0, keep=1)
    loaded = checkpoint.load_newest(tmp_path, HASH)
    assert loaded is not None
    assert loaded[0]["a"].tolist() == [2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [b"", b"\x00garbage" * 9, None])
def test_a_damaged_checkpoint_is_told_in_one_sentence_with_the_remedy(
    tmp_path: Path, file: str, damage: bytes | None
) -> None:
    place = save(tmp_path, 3) / file
    place.unlink() if damage is None else place.write_bytes(damage)
    with pytest.raises(ConfigurationError, match=r"cannot be read.*remove this folder") as told:
        checkpoint.load_newest(tmp_path, HASH)
    assert str(tmp_path / "3") in str(told.value)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    with pytest.raises(ConfigurationError, match="of another network; use the configuration it was trained with"):
        checkpoint.load_newest(tmp_path, "f" * 16)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    manifest = save(tmp_path, 3) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(ConfigurationError, match=r"format 99.*use the release that wrote it"):
        checkpoint.load_newest(tmp_path, HASH)


def test_nothing_on_disk_is_a_pickle(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "optimizer.safetensors",
        "weights.safetensors",
    ]
    for path in folder.glob("*.safetensors"):
        length = int.from_bytes(path.read_bytes()[:8], "little")
        json.loads(path.read_bytes()[8 : 8 + length])
