"""Returns by environment of a collection: from the actor's page, which survives it, to summary, metrics and table."""

from __future__ import annotations

import io
import json
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from launch.cli.display import environments_table
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.memory.counters import Counters, read_counters
from protocol.messages.core import Heartbeat
from tests.faults import raises
from workers.environments.base import Environment, Episodes
from workers.metrics.run_metrics import RunMetrics
from workers.metrics.segment_accounting import environment_books
from workers.metrics.tensorboard import TensorBoardWriter
from workers.rollout.report import ActorReport, update_environment_counters

MEMBERS = {"small": {"id": "tag"}, "large": {"id": "tag"}}


class Told:
    """An environment that has only this to tell, once."""

    restarts = 2
    counters = ()

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def metrics(self) -> dict[str, float]:
        return {}

    def take_episodes(self) -> Episodes:
        taken, self.episodes = self.episodes, {}
        return taken


def page(path: Path, *episodes: Episodes) -> dict[str, float]:
    """What an actor leaves behind that told this, heartbeat by heartbeat."""
    counters = Counters(path, *ActorReport.names(["a.b", "a"], [*MEMBERS]))
    policies = {0: "a.b", 1: "a", 2: "a.b"}
    for one in episodes:
        update_environment_counters(counters, cast("Environment", Told(one)), policies)
    return read_counters(path)


def test_episodes_of_all_agents_of_a_policy_are_counted_by_environment_I9(run_dir: Path) -> None:
    first = page(
        run_dir / "actor-0.1",
        {("small", 0): (2, -3.0), ("small", 2): (1, 0.5), ("large", 1): (4, 10.0)},
        {("small", 0): (1, 1.0)},
        {},
    )
    second = page(run_dir / "actor-0.2", {("small", 0): (4, 9.0), ("large", 0): (1, -7.25)})
    assert first["environment_restarts"] == 2
    assert environment_books(["a.b", "a"], [*MEMBERS], {("actor-0", 1): first, ("actor-0", 2): second}) == {
        "a.b": {"small": {"episodes": 8, "return_mean": 7.5 / 8}, "large": {"episodes": 1, "return_mean": -7.25}},
        "a": {"small": {"episodes": 0, "return_mean": None}, "large": {"episodes": 4, "return_mean": 2.5}},
    }
    assert environment_books(["a"], [], {("actor-0", 1): first}) == {}


def test_the_longest_names_fit_into_a_heartbeat() -> None:
    """Of a policy and of a member, as long as a configuration allows them to be."""
    policy, member = "p" * 64, "m" * 48
    whole, real = ActorReport.names([policy], [member])
    counters = dict.fromkeys([*whole, *real], 1.0)
    assert Heartbeat(name="actor-0", token="t", incarnation=1, state="acting", counters=counters).counters == counters
    config = {"environment": {"members": {member: {"id": "tag"}}}, "policies": {policy: {}}}
    assert [*(parse_run(config).environment.members or ())] == [member]
    config["environment"] = {"members": {member + "m": {"id": "tag"}}}
    with raises(ConfigurationError, "value_invalid", key=f"environment.members.{member}m"):
        parse_run(config)


def test_they_reach_summary_metrics_and_tensorboard_I9(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over time it is the mean of what ended since the last look."""
    run = parse_run({"environment": {"members": MEMBERS, "adversarial": {}}})
    key = ("actor-0", 1)
    with closing(RunMetrics(run, ["p"], run_dir)) as books:
        scalars: list[dict[str, float]] = []
        monkeypatch.setattr(TensorBoardWriter, "scalars", lambda _, step, values: scalars.append(dict(values)))
        pages: list[dict[str, float]] = [
            {"agent_steps": 10, "episodes.p/small": 2, "returns.p/small": 6.0},
            {"agent_steps": 20, "episodes.p/small": 3, "returns.p/small": 16.0, "episodes.p/large": 1},
            {"agent_steps": 30, "episodes.p/small": 3, "returns.p/small": 16.0, "episodes.p/large": 1},
        ]
        for one in pages:
            books.observe({key: one}, {}, [], {})
        summary = books.summary({key: pages[-1]}, {}, set(), {}, {}, True)
    told = [{k: v for k, v in row.items() if "return/" in k} for row in scalars]
    assert told == [{"p/return/small": 3.0}, {"p/return/small": 10.0, "p/return/large": 0.0}, {}]
    rows = [json.loads(line)["p"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("return/small") for row in rows] == [3.0, 10.0, None]
    small, large = {"episodes": 3, "return_mean": 16.0 / 3}, {"episodes": 1, "return_mean": 0.0}
    assert summary["environments"] == {"p": {"small": small, "large": large}}
    table = environments_table(summary)
    assert table is not None
    stream = io.StringIO()
    Console(file=stream, width=100).print(table)
    cells = [line.replace("│", " ").split() for line in stream.getvalue().splitlines()]
    assert ["p", "small", "3", "5.333"] in cells
    assert ["p", "large", "1", "0"] in cells
    assert environments_table({"environments": {}}) is None, "of a single one"
