"""A whole run whose learners compile their updates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.flows import runs


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_learners_that_compile_say_so_and_their_books_are_exact(tmp_path: Path, memory_dir: Path) -> None:
    result = runs.train(runs.config(policy={"compile": True}), tmp_path, "--no-progress")
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["unexplained"] == summary["segments"]["torn"] == 0
    assert min(summary["train_steps"].values()) > 0
    logs = [log.read_text() for log in (tmp_path / "run" / "logs").glob("learner-*.log")]
    assert logs
    for log in logs:
        assert "event=compiling function=objective" in log
        assert "event=compile_failed" not in log
    assert runs.files(memory_dir) == []
