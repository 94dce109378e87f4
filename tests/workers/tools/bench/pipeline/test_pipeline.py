"""The figures of whole runs: all keys, from a real run, with counts that agree; and which way the ratios go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from protocol.config.on_policy import PPO
from protocol.memory.shared_file import Counters
from tests.forge import Forge
from tests.tools import PYTHON_PATH
from tests.waiting import until
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies
from workers.runtime import torch_setup
from workers.tools.bench.__main__ import main
from workers.tools.bench.pipeline import pipeline as module
from workers.tools.bench.pipeline import run_under_test
from workers.tools.bench.pipeline.cpu_bound import Parts
from workers.tools.bench.pipeline.pipeline import _beside, _rates
from workers.tools.bench.pipeline.run_under_test import Look, ProcessTree, RunUnderTest
from workers.tools.bench.pipeline.workloads import workload

PROMISED = {
    "env_steps_per_second",
    "agent_steps_per_second",
    "train_steps_per_second",
    "two_core_bound",
    "ratio_to_bound",
    "samples_trained_per_made",
    "lag",
    "peak_pss_gib",
    "cpu.actor",
    "cpu.learner",
}


@pytest.fixture
def forked_runs(forge: Forge | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is forked."""

    def started(command: Sequence[str], **how: Any) -> Any:
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        made = forge and forge.start(command[3:], Path.cwd(), environment, how["stdout"], how["stderr"])
        return made or subprocess.Popen(command, **how)

    instead = SimpleNamespace(**vars(subprocess) | {"Popen": started})
    monkeypatch.setattr(run_under_test, "subprocess", instead)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
@pytest.mark.timeout(600)
def test_a_short_run_prints_every_figure_with_the_bound_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_setup, "configure_torch", lambda: None)
    monkeypatch.setattr(module, "_WARM_UPDATES", 2)
    options = ["--workload", "W3-lite", "--copies", "8", "--json", "--windows", "1", "--seconds", "0.3", "--warm", "0"]
    result = CliRunner().invoke(main, ["pipeline", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.keys() >= PROMISED
    assert told["agent_steps_per_second"] == pytest.approx(3 * told["env_steps_per_second"], rel=0.2)
    assert told["ratio_to_bound"] == pytest.approx(told["env_steps_per_second"] / told["two_core_bound"])
    spent = sum(told[f"bare.{part}_us"] for part in ("environment", "forward", "update"))
    assert 0.99 < told["two_core_bound"] * spent / 2e6 < 5  # the mean of inverses is no less than the inverse of a mean
    assert 0 < told["peak_pss_gib"] < 16


@pytest.mark.parametrize(
    ("name", "streams", "epochs"), [("W1", 256, 1), ("W2", 256, 1), ("W3", 128, 1), ("W5-84", 32, 2), ("W5-10", 128, 2)]
)
def test_a_workload_trains_on_a_segment_of_each_copy_in_four_parts_whatever_defaults_are(
    name: str, streams: int, epochs: int
) -> None:
    _, run = workload(name, {})
    for plan in plan_policies(run, describe(run.environment)).values():
        algorithm = plan.config.algorithm
        assert isinstance(algorithm, PPO)
        assert (plan.batch_segments, plan.minibatches, algorithm.epochs) == (streams, 4, epochs)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunUnderTest]:
    """A process that goes on in a folder where a run would."""
    with subprocess.Popen(["sleep", "60"]) as popen:
        try:
            yield RunUnderTest(popen, tmp_path, tmp_path / "output.txt")
        finally:
            popen.kill()


def test_a_look_leaves_out_pages_that_are_still_being_made(running: RunUnderTest, tmp_path: Path) -> None:
    (tmp_path / "counters").mkdir()
    Counters(tmp_path / "counters" / "actor-0.1", ["env_steps"]).add("env_steps", 7)
    (tmp_path / "counters" / ".actor-1.1").touch()
    assert running.look().counted["env_steps"] == 7


def test_a_worker_that_was_forked_is_counted_as_one_once_it_shows_its_command() -> None:
    """Until then it looks like the process that forked it."""
    becomes = "import os; input(); os.execv('/bin/sleep', ['workers' + '.learner', '60'])"
    tree = ProcessTree(os.getpid())
    with subprocess.Popen([sys.executable, "-S", "-c", becomes], stdin=subprocess.PIPE, text=True) as forked:
        try:
            assert "learner" not in tree.look()
            assert forked.stdin is not None
            forked.stdin.write("\n")
            forked.stdin.flush()
            until(lambda: "learner" in tree.look(), what="it is known")
        finally:
            forked.kill()


def test_returns_are_those_of_whole_lines(running: RunUnderTest, tmp_path: Path) -> None:
    """The last line of a run that goes on may be half there."""
    lines = [{"env_steps": 1}, *({"a": {"return": of}, "b": {"return": None}, "c": {"return": -of}} for of in (0, 2))]
    told = "".join(json.dumps(line) + "\n" for line in [*lines, {"a": {"return": -3.0}}])
    assert running.returns() == {}
    (tmp_path / "metrics.jsonl").write_text(told + '{"a": {"ret')
    assert running.returns() == {"return_first": 0.0, "return_last": -3.0}


def test_rates_are_medians_of_windows_and_the_bound_is_of_two_cores() -> None:
    made = [(0.0, 0), (1.0, 10), (3.0, 50), (4.0, 1_000)]
    looks = [Look(at, {"env_steps": n, "agent_steps": 3 * n, "steps_made": n / 10}, 1, {}) for at, n in made]
    assert _rates(looks) == {
        "env_steps_per_second": 20.0,
        "agent_steps_per_second": 60.0,
        "train_steps_per_second": 2.0,
    }
    assert Parts(0.1, 0.2, 0.2, train_steps=1, agent_steps=3).bound == pytest.approx(4.0)


def test_both_rates_are_told_beside_one_process_and_beside_each_half_alone() -> None:
    parts = Parts(0.1, 0.1, 0.25, train_steps=0.5, agent_steps=2)
    apart = {"env_steps_per_second": 4.0, "train_steps_per_second": 1.5}
    alone = {"env_steps_per_second": 2.0, "train_steps_per_second": 1.0, "samples_trained_per_made": 1.0}
    told = _beside(apart, alone, parts, parts)
    assert told["sequential.env_steps_per_second.ratio"] == told["sequential.train_steps_per_second.ratio"] + 0.5 == 2
    assert told["isolated.env_steps_per_second.ratio"] == pytest.approx(4 * 0.2)
    assert told["isolated.train_steps_per_second.ratio"] == pytest.approx(1.5 * 0.5)
