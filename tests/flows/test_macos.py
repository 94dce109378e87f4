"""A run on a machine like a Mac: no /dev/shm, no way to reserve room but writing, no futex, another processor."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.flows import runs

LIKE_A_MAC = """
import os
import platform

for name in ("posix_fallocate", "pidfd_open", "sched_getaffinity"):
    delattr(os, name)
access = os.access
os.access = lambda path, *rest, **named: str(path) != "/dev/shm" and access(path, *rest, **named)
platform.machine = lambda: "arm64"
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_reaches_its_end_by_files_in_the_temporary_folder(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "sitecustomize.py").write_text(LIKE_A_MAC)
    monkeypatch.setattr(runs, "EXTRA_PATH", str(tmp_path / "like"))
    monkeypatch.delenv("ROOKERY_MEMORY")
    monkeypatch.setenv("TMPDIR", str(memory_dir))
    seen, ours = set[str](), memory_dir / f"rookery.{os.geteuid()}"
    with runs.training(runs.config(steps=20_000, transport="memory"), tmp_path) as worker:
        while worker.popen.poll() is None:
            seen |= {path.suffix for path in ours.glob("rookery-*")}
            time.sleep(0.02)
        assert worker.wait(120) == 0
    assert {".ring", ".weights"} <= seen
    summary = runs.summary_of(tmp_path)
    assert runs.balanced(summary["segments"])
    assert runs.files(ours) == []
