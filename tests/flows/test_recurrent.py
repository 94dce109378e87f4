"""Recurrent policies through separate workers: what they remember travels with each segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows import runs
from tests.flows.test_training import check


@pytest.mark.parametrize(
    ("transport", "kind"),
    [*(pytest.param("memory", kind, marks=pytest.mark.slow) for kind in ("lstm", "attention")), ("tcp", "gru")],
)
def test_recurrent_policies_train_through_separate_processes_K6(
    tmp_path: Path, memory_dir: Path, transport: str, kind: str
) -> None:
    """Rows of the newest weights have ratio 1: the first update of all, in each learner's log, sees no others."""
    network = {"hidden": [16], "core": {"name": kind, "size": 8}}
    data = runs.config(policy={"network": network}, transport=transport, log_interval=1)
    summary = check(tmp_path, memory_dir, runs.train(data, tmp_path), {"agent_0": "ppo", "agent_1": "ppo"}, 4_000)
    assert summary["segments"]["trained"] >= 0.9 * summary["segments"]["produced"]
    for agent in ("agent_0", "agent_1"):
        log = (tmp_path / "run" / "logs" / f"learner-{agent}.log").read_text()
        first = next(line for line in log.splitlines() if "event=update " in line and " train_step=0 " in line)
        facts = dict(part.split("=", 1) for part in first.split() if "=" in part)
        assert float(facts["approx_kl"]) < 1e-2
        assert float(facts["ratio_mean"]) == pytest.approx(1, abs=0.02)


def test_what_is_older_than_max_lag_is_in_the_books_and_training_goes_on(tmp_path: Path, memory_dir: Path) -> None:
    """The learner is so slow, and publishes so often, that most of what waits for it is too old."""
    policy = {"algorithm": {"name": "ppo", "minibatches": 2, "epochs": 8, "max_lag": 0}}
    data = runs.config(steps=4_800, policy=policy)
    summary = check(tmp_path, memory_dir, runs.train(data, tmp_path), {"agent_0": "ppo", "agent_1": "ppo"}, 4_800)
    books = summary["segments"]
    assert books["trained"] > 0
    assert books["dropped"]["stale"] > 0
