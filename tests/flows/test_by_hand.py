"""Workers started one by one, told only the coordinator's address, in every order."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from tests.flows import runs

ROLES = ("coordinator", "learners", "actor")
SHOWN = ("actor", "coordinator", "learners")
"""The order in which somebody waits for somebody at every step; the others are run with the slow tests."""


def begin(role: str, folder: Path, base: int, stack: ExitStack) -> list[runs.Worker]:
    """The processes of `role`."""
    address = ["--coordinator", f"tcp://127.0.0.1:{base}", "--patience", "120"]
    if role == "coordinator":
        path = str(runs.write(runs.config(steps=3_200), folder))
        command = ["coordinator", "--open", path, "--run-dir", str(folder / "run"), "--bind", f"127.0.0.1:{base}"]
        return [stack.enter_context(runs.started(command, folder, role))]
    if role == "actor":
        return [stack.enter_context(runs.started(["actor", *address], folder, role))]
    return [stack.enter_context(runs.started(["learner", *address], folder, f"learner-{i}")) for i in range(2)]


ORDERS = [
    pytest.param(order, marks=() if order == SHOWN else pytest.mark.slow, id="-".join(order))
    for order in permutations(ROLES)
]


@pytest.mark.parametrize("order", ORDERS)
def test_workers_may_be_started_in_any_order_A1_A6_A7(
    tmp_path: Path, memory_dir: Path, free_port_block: int, order: tuple[str, ...]
) -> None:
    """Each is a fresh interpreter with one address; all end by themselves with exit code 0."""
    with ExitStack() as stack:
        workers: list[runs.Worker] = []
        for role in order:
            fresh = begin(role, tmp_path, free_port_block, stack)
            workers += fresh
            if role == "coordinator":
                runs.until((tmp_path / "run" / "coordinator.json").exists, what="coordinator is up")
        for worker in workers:
            assert worker.wait() == 0, worker.said
            assert "Traceback" not in worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["agent_steps"] == 3_200
    assert runs.balanced(summary["segments"])
    assert summary["segments"]["torn"] == summary["segments"]["in_flight"] == 0
    assert summary["segments"]["dropped"]["undelivered"] == 0
    assert json.loads((tmp_path / "run" / "state.json").read_text())["members"] == []
    assert runs.files(memory_dir) == []
