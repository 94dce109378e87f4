"""Returns by environment of a collection: from the actor's page, which survives it, to summary, metrics and table."""

from __future__ import annotations

import errno
import io
import json
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from launch.cli.display import environments_table
from protocol.config.run import parse_run
from protocol.control.heartbeat import MAX_REQUEST
from protocol.errors import ConfigurationError
from protocol.memory.shared_file import Counters, read_counters
from protocol.messages.codec import encode
from protocol.messages.core import Heartbeat
from tests.faults import raises
from workers.environments.base import Environment, Episodes
from workers.metrics.diagnostics import cut_counter, findings_of
from workers.metrics.infos import LONGEST, info_counters, infos_counted
from workers.metrics.run_metrics import RunMetrics
from workers.metrics.segment_accounting import environment_books
from workers.metrics.writers import TensorBoardWriter
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


def told(path: Path, *infos: Episodes) -> dict[str, float]:
    """What an actor with the policies `a.b` (agents 0 and 2) and `a` leaves behind, without the counters of all."""
    found = page(path, *infos)
    return {name: found[name] for name in found if "info" in name}


def test_what_worlds_tell_of_their_episodes_is_counted_by_policy_and_name(run_dir: Path) -> None:
    first = {
        ("info/won", 0): (2, 1.0),
        ("info/won", 2): (1, 1.0),
        ("info/won", 1): (4, 0.0),
        ("info/far", 1): (4, -9.5),
    }
    assert told(run_dir / "actor-0.1", first, {("info/won", 0): (1, 0.0)}, {}) == {
        "infos.a.b/won": 4,
        "info_sums.a.b/won": 2.0,
        "infos.a/won": 4,
        "info_sums.a/won": 0.0,
        "infos.a/far": 4,
        "info_sums.a/far": -9.5,
    }
    assert told(run_dir / "actor-0.2", {("small", 0): (1, 1.0)}) == {}, "of a world that tells nothing"


def test_no_more_names_of_a_policy_are_drawn_than_thirty_and_a_finding_names_the_others(run_dir: Path) -> None:
    names = [f"n{number:02}" for number in range(35)]
    pages = {
        ("actor-0", 1): page(
            run_dir / "actor-0.1",
            {(f"info/{name}", 0): (1, 1.0) for name in names[:29]},
            {(f"info/{name}", 0): (1, 1.0) for name in (*names, "x" * 49, "two\nlines")},
            {("info/n34", 0): (2, 1.0), ("info/n00", 0): (1, 1.0)},
        )
    }
    (counted,) = pages.values()
    assert [name for name in counted if name.startswith("infos.")] == [f"infos.a.b/{name}" for name in names[:30]]
    assert counted["infos.a.b/n00"] == 3
    (found,) = findings_of(["a.b", "a"], {}, pages)
    assert (found["policy"], found["finding"], found["level"]) == ("a.b", "infos_cut", "note")
    assert found["names"] == [*names[30:], "two\\nlines", "x" * 48]
    assert found["says"].endswith("n30, n31, n32, n33, n34, two\\nlines, " + "x" * 48)


def test_what_a_hundred_policies_tell_fits_into_a_heartbeat() -> None:
    """With the longest names, and as many of those that are left out."""
    policies = [f"{'p' * 61}{number:03}" for number in range(100)]
    names = [f"{'x' * 46}{number:02}" for number in range(40)]
    infos = [(policy, name, 1, 1.0) for policy in policies for name in names]
    counters = dict.fromkeys(infos_counted([], infos, 100), 1 / 3)
    assert sum(name.startswith("infos.") for name in counters) == 600
    whole, real = ActorReport.names(policies)
    told = {**dict.fromkeys([*whole, *real], 1 / 3), **counters}
    beat = Heartbeat(name="actor-0", token="t", incarnation=1, state="acting", counters=told)
    assert len(encode(beat)) < MAX_REQUEST - 100_000, "with room for what episodes earned"


def test_no_more_of_those_left_out_are_named_than_ten(run_dir: Path) -> None:
    pages = {("actor-0", 1): page(run_dir / "actor-0.1", {(f"info/{n:03}", 1): (1, 1.0) for n in range(90)})}
    (found,) = findings_of(["a"], {}, pages)
    assert found["names"] == [f"{n:03}" for n in range(30, 40)]


def test_numbers_that_are_none_are_counted_and_found(run_dir: Path) -> None:
    pages = {("actor-0", 1): page(run_dir / "actor-0.1", {("info/far", 1): (3, 6.0), ("info/", 1): (2, 0.0)})}
    (found,) = findings_of(["a.b", "a"], {}, pages)
    assert (found["policy"], found["finding"]) == ("a", "infos_not_finite")
    assert pages["actor-0", 1]["health.infos_not_finite.a"] == 2


def test_a_full_disk_costs_curves_and_not_the_actor(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    counters = Counters(run_dir / "actor-0.1", *ActorReport.names(["a"]))
    before = counters.snapshot()
    monkeypatch.setattr("protocol.memory.shared_file.reserve", full)
    update_environment_counters(counters, cast("Environment", Told({("info/far", 1): (3, 6.0)})), {1: "a"})
    assert "event=infos_not_counted" in caplog.text
    assert read_counters(run_dir / "actor-0.1") == counters.snapshot() == {**before, "environment_restarts": 2}
    assert [path.name for path in run_dir.iterdir()] == ["actor-0.1"]


def test_means_are_of_what_ended_since_the_last_look_and_of_the_whole_run(run_dir: Path) -> None:
    run = parse_run({"environment": {"id": "tag"}})
    one, two = ("actor-0", 1), ("actor-1", 1)
    with closing(RunMetrics(run, ["p", "q"], run_dir)) as books:
        pages: list[dict[tuple[str, int], dict[str, float]]] = [
            {one: {"agent_steps": 10, "infos.p/won": 4, "info_sums.p/won": 1.0}},
            {one: {"agent_steps": 10, "infos.p/won": 4, "info_sums.p/won": 1.0}, two: {"infos.p/won": 2}},
            {one: {"agent_steps": 30, "infos.p/won": 6, "info_sums.p/won": -3.0}, two: {"infos.p/won": 2}},
            {one: {"agent_steps": 40, "infos.p/won": 6, "info_sums.p/won": -3.0, "infos.nobody/x": 1}},
        ]
        for each in pages:
            books.observe(each, {}, [], {})
        summary = books.summary(pages[2], {}, set(), {}, {}, True)
        assert books.history.curves("info/won") == {"p": ([10, 10, 30, 40], [0.25, 0.0, -2.0, -2.0])}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["p"]["info/won"] for row in rows] == [0.25, 0.0, -2.0, -2.0]
    assert "info/won" not in rows[-1]["q"]
    assert summary["infos"] == {"p": {"won": {"episodes": 8, "mean": -3.0 / 8}}, "q": {}}


def test_the_books_keep_no_more_names_of_a_policy_than_an_actor_has_nor_such_as_cannot_be_shown(run_dir: Path) -> None:
    with closing(RunMetrics(parse_run({"environment": {"id": "tag"}}), ["p"], run_dir)) as books:
        for number in range(3):
            names = [*(f"{number}.{n}" for n in range(20)), "two\nlines"]
            books.observe({("actor-0", 1): {"agent_steps": 1, **{f"infos.p/{n}": 1.0 for n in names}}}, {}, [], {})
        told = [name for name in books.view["policies"]["p"] if name.startswith("info/")]
    assert len(told) == 30
    assert all(map(str.isprintable, told))


def test_the_longest_names_fit_into_a_heartbeat() -> None:
    """Of a policy and of a member, as long as a configuration allows them to be."""
    policy, member = "p" * 64, "m" * 48
    whole, real = ActorReport.names([policy], [member])
    infos = [*info_counters(policy, "x" * LONGEST), cut_counter(policy, "x" * LONGEST)]
    counters = dict.fromkeys([*whole, *real, *infos], 1.0)
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


def test_in_a_league_the_world_tells_of_whoever_played_and_nobody_counts_it(tmp_path: Path) -> None:
    counters = Counters(tmp_path / "page", *ActorReport.names(["a"]))
    update_environment_counters(counters, cast("Environment", Told({("info/far", 1): (3, 6.0)})), {1: "a"}, league=True)
    assert not any(name.startswith("infos.") for name in counters.names)
