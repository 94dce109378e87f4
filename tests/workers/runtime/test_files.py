"""A disk that is full costs what there was no room for, and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from workers.metrics.writers import TensorBoardWriter
from workers.runtime.files import AppendFile, SafeWriter


def test_a_record_for_which_there_is_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SafeWriter()
    file = AppendFile(tmp_path / "a", disk)
    assert file.append(b"one\n")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: _half_then_full(real, descriptor, data))
    assert not file.append(b"two-two-two\n")
    monkeypatch.setattr(os, "write", real)
    assert file.append(b"three\n")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"one\nthree\n"
    assert disk.missed == 1


def test_a_file_stays_as_it_was_where_there_is_no_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = SafeWriter(), tmp_path / "state.json"
    assert disk.replace(path, "old")

    def full(self: Path, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    assert not disk.replace(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
    assert disk.missed == 1


def test_any_other_fault_of_a_disk_is_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SafeWriter().replace(tmp_path / "missing" / "state.json", "text")


def test_scalars_are_read_back_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    log = TensorBoardWriter(tmp_path / "tensorboard", SafeWriter())
    log.scalars(7, {"return": 1.5, "lag": 0.25})
    log.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    first, second = EventFileLoader(str(path)).Load()
    assert first.file_version == "brain.Event:2"
    assert second.step == 7
    assert [value.tag for value in second.summary.value] == ["return", "lag"]


def _half_then_full(real: object, descriptor: int, data: bytes) -> int:
    if len(data) > 6:
        return int(real(descriptor, bytes(data[:6])))  # type: ignore[operator]
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_holds_secrets_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("of an earlier release")
    (tmp_path / ".state.json").write_text("of one that was killed")
    assert SafeWriter().replace(path, "{}", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
