"""Whole runs on locked rings with checksums: the reference mode trains as the lock-free one does."""

from __future__ import annotations

from pathlib import Path

from tests.flows import runs


def test_locked_rings_with_checksums_train_in_both_modes_G6_U1(tmp_path: Path, memory_dir: Path) -> None:
    """G6: nobody waits for a lock too long, nothing is torn, and the books balance."""
    data = runs.config(
        policy={"ring": "locked", "checksums": True},
        policies={"agent_1": {"algorithm": runs.IQN}},
        transport="memory",
        lock_timeout=5.0,
    )
    result = runs.train(data, tmp_path)
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert all(steps > 0 for steps in summary["train_steps"].values())
    assert runs.balanced(summary["segments"], stream=False), summary["segments"]
    assert summary["segments"]["torn"] == 0
    assert not any(summary["restarts"].values())
    assert "lock" in summary["waits"]
    assert runs.files(memory_dir) == []
