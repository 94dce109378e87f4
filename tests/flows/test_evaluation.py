"""A run that evaluates itself, with a process for it: on its own schedule, and with the last weights in the end."""

from __future__ import annotations

import json
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import zmq

from tests.flows.runs import config, summary_of, train, training, until
from tests.flows.test_findings import DQN, WORLD
from workers.environments.registry import describe
from workers.evaluator import EvaluatorWorker
from workers.policies import checkpoint
from workers.tools.evaluate import evaluate, load_run


def test_a_run_evaluates_itself_and_in_the_end_what_its_checkpoints_are_J1(tmp_path: Path) -> None:
    """J1: the evaluation is an actor beside those that explore, whose own books know nothing of it."""
    data = config(steps=6_000, evaluation={"every_steps": 1_000, "episodes": 4})
    done = train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    last = {line["policy"]: line for line in lines}
    summary = summary_of(tmp_path)
    assert {policy: line["version"] for policy, line in last.items()} == summary["versions"]
    again = {line["policy"]: line["mean"] for line in evaluate(tmp_path / "run", 4)}
    assert {policy: line["mean"] for policy, line in last.items()} == again
    assert summary["env_steps"] * 2 == summary["agent_steps"] == 6_000
    log = (tmp_path / "run" / "logs" / "evaluator-0.log").read_text()
    told = [int(steps) for steps in re.findall(r"event=evaluated agent_steps=(\d+) ", log)]
    assert [line["agent_steps"] for line in lines] == [steps for steps in told for _ in last], "each is told of"
    # the last weights may have come, and been evaluated, before the coordinator told of all steps
    assert told == sorted(told)
    assert 1_000 <= told[0] <= told[-1] <= 6_000
    assert {policy: list(told.values()) for policy, told in summary["evaluations"].items()} == {
        policy: [mean] for policy, mean in again.items()
    }
    late = evaluated_late(tmp_path / "run", summary)
    assert {policy: (line["version"], line["mean"]) for policy, line in late.items()} == {
        policy: (line["version"], line["mean"]) for policy, line in last.items()
    }


def evaluated_late(folder: Path, summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """policy -> line of an evaluator that was ready only when all learners had left, as it may be in a short run."""
    (folder / "evaluations.jsonl").unlink()
    status = SimpleNamespace(routes=[], view={"made": summary["agent_steps"], "complete": 1})
    client = SimpleNamespace(command="drain", status=status, changed=threading.Event())
    vitals = SimpleNamespace(bind=lambda *_: None, tick=lambda: None)
    run = load_run(folder)
    with zmq.Context() as context:
        life = SimpleNamespace(client=client, vitals=vitals, context=context)
        life.check, life.report, life.close_world = lambda: None, lambda _: None, lambda close: close()
        evaluator = EvaluatorWorker(cast("Any", life), run, describe(run.environment), folder)
        try:
            evaluator.run()
        finally:
            evaluator.close()
    return {line["policy"]: line for line in map(json.loads, (folder / "evaluations.jsonl").read_text().splitlines())}


def test_a_policy_that_does_well_without_exploring_is_on_disk_as_the_best_while_it_learns(tmp_path: Path) -> None:
    """Who acts at random earns 10 of 20 in all episodes that are played; nobody else plays any but the evaluation."""
    (tmp_path / "world_of_this_test.py").write_text(WORLD)
    data = config(
        {**DQN, "epsilon_min": 1.0},
        10**9,
        environment={"id": "world_of_this_test:make", "copies": 8},
        evaluation={"every_seconds": 0.5, "episodes": 5},
        policy={"learning_rate": 0.003},
    )
    folder = tmp_path / "run" / "checkpoints" / "agent"
    with training(data, tmp_path) as worker:

        def best() -> float:
            with suppress(FileNotFoundError):  # there is none yet, or a better one has just taken its place
                told = (folder / str(checkpoint.best(folder)) / "manifest.json").read_text()
                return float(json.loads(told)["mean_return"])
            return 0.0

        until(lambda: best() > 15, what="a checkpoint that says what an evaluation found")
        worker.popen.send_signal(signal.SIGINT)
        worker.wait()
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert best() in [json.loads(line)["mean"] for line in lines]
