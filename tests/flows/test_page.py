"""The page of a real run: its numbers are the run's, and what it asks for happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.flows import runs
from tests.workers.coordination.dashboard.asking import Answer, ask


def test_a_run_is_watched_paused_saved_and_ended_from_its_page(tmp_path: Path, memory_dir: Path) -> None:
    run_dir = tmp_path / "run"
    with runs.training(runs.config(steps=100_000_000), tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path), 120, "first steps")
        url = json.loads((run_dir / "coordinator.json").read_text())["http"]
        token = (run_dir / "token").read_text().strip()
        assert f"{url}/#token={token}" in worker.said

        def view() -> dict[str, Any]:
            return dict(ask(f"{url}/api/view", Authorization=f"Bearer {token}").json)

        def order(what: str) -> Answer:
            return ask(f"{url}/api/{what}", b"", Authorization=f"Bearer {token}")

        def states() -> set[str]:
            return {one["state"] for one in view()["workers"] if one["role"] == "actor"}

        def training() -> float:
            """As Prometheus sees it, who sees room on the disk as well."""
            lines = ask(f"{url}/metrics").body.decode().splitlines()
            told = dict(line.split() for line in lines if line.startswith("rookery_run_") and "{" not in line)
            assert 0 < float(told["rookery_run_disk_free_bytes"]) < 2**60
            return float(told["rookery_run_training"])

        def saved() -> set[str]:
            return {str(path) for path in run_dir.glob("checkpoints/*/*/manifest.json")}

        assert ask(f"{url}/readyz").status == 200
        runs.until(lambda: states() == {"acting"}, 120, "actors act")
        assert order("pause").status == 200
        runs.until(lambda: states() == {"paused"}, 120, "actors wait")
        assert training() == 0
        before, steps = saved(), runs.until(lambda: runs.agent_steps(tmp_path))
        shown = runs.until(lambda: (now := view())["made"] == runs.agent_steps(tmp_path) and now, 60, "same numbers")
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        returns = [row["agent_0"].get("return") for row in rows if row["agent_steps"] == shown["made"]]
        assert shown["policies"]["agent_0"].get("return") in returns
        order("resume")
        runs.until(lambda: runs.agent_steps(tmp_path) > steps, 120, "it goes on")
        assert training() == 1
        order("checkpoint")
        runs.until(lambda: saved() - before, 120, "a checkpoint that was asked for")
        assert json.loads(runs.rookery("status", str(run_dir), "--json", cwd=tmp_path).stdout)["stage"] == "running"
        order("stop")
        assert worker.wait(120) == 1
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is False
    assert runs.balanced(summary["segments"])
    assert runs.files(memory_dir) == []
    assert "ended early" in runs.rookery("status", str(run_dir), cwd=tmp_path).stdout
