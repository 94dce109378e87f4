"""`rookery page`: what runs left, on the page of a coordinator; several beside each other."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from launch.local.process import python
from protocol.config.run import Run
from tests.faults import kinds_in
from tests.waiting import until
from tests.workers.coordination.dashboard.browser import browser
from workers.metrics.history import History
from workers.tools.page import main, view_of


def left(folder: Path, policies: int = 1, complete: bool | None = True, rows: int = 3, **config: Any) -> Path:
    """What a run leaves of which each policy returns its number times the thousands of steps."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(Run(steps=2_000, **config).model_dump(mode="json")))
    lines = [
        {
            "agent_steps": 1_000 * row,
            "agent_steps_per_second": 50.0,
            **{
                f"p{i}": {"return": float(row * i), "version": row, "train_steps": 4 * row, "lag": 0.5}
                for i in range(policies)
            },
        }
        for row in range(rows)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"agent_st')
    if complete is not None:
        found = {"policy": "p0", "level": "fault", "layer": "data", "finding": "x", "says": "bad", "remedy": "mend it"}
        summary = {"complete": complete, "seconds": 4.0, "verdict": "balanced", "waits": {"data.p0": 2.0}}
        summary["health"] = {"findings": [found]}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_run_is_shown_with_what_it_left(tmp_path: Path) -> None:
    history = History()
    folder = left(tmp_path / "one", policies=2)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace('"lag"', '"evaluation/return": 9.0, "lag"', 1)  # an evaluator that has left since
    lines[2] = lines[2].replace('"lag"', '"episode_length": 4.0, "lag"', 1)
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    view = view_of(folder, history)
    assert view is not None
    assert (view["run"], view["stage"], view["made"], view["steps"]) == ("one", "complete", 2_000, 2_000)
    assert view["policies"] == {
        "p0": {"return": 0.0, "episode_length": 4.0, "version": 2.0, "lag": 0.5},
        "p1": {"return": 2.0, "episode_length": None, "version": 2.0, "lag": 0.5},
    }
    assert view["evaluations"] == {"p0": {"evaluation/return": 9.0}, "p1": {}}
    assert view["health"][0]["policy"] == "p0"
    assert history.curves("return")["p1"] == ([0.0, 1_000.0, 2_000.0], [0.0, 1.0, 2.0])


@pytest.mark.parametrize(("complete", "stage"), [(False, "ended early"), (None, "not over, or killed")])
def test_how_a_run_ended_is_told(tmp_path: Path, complete: bool | None, stage: str) -> None:
    view = view_of(left(tmp_path / "one", complete=complete), History())
    assert view is not None
    assert view["stage"] == stage


def test_without_actors_steps_are_the_rows_trained(tmp_path: Path) -> None:
    folder = left(tmp_path / "one", actors=0, policy={"dataset": {"path": "x"}, "algorithm": {"name": "bc"}})
    lines = (folder / "metrics.jsonl").read_text().replace('"agent_steps": 2000', '"agent_steps": 0, "rows_trained": 8')
    (folder / "metrics.jsonl").write_text(lines)
    view = view_of(folder, History())
    assert view is not None
    assert (view["unit"], view["made"]) == ("rows trained", 8)


def test_of_several_runs_a_single_policy_is_called_as_its_run(tmp_path: Path) -> None:
    history = History()
    for name, policies in (("one", 1), ("two", 2)):
        view_of(left(tmp_path / name, policies), history, apart=True)
    assert [*history.curves("return")] == ["one", "two · p0", "two · p1"]
    assert [*history.curves("agent_steps_per_second")] == ["one", "two"]


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    left(tmp_path / "begun", rows=0)
    (tmp_path / "none").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        left(tmp_path / "one")
        for words, kind in (
            (["none"], "folder_without_config"),
            (["begun"], "nothing_to_plot"),
            (["one", "--port", port], "page_port_not_bindable"),
        ):
            told = CliRunner().invoke(main, [str(tmp_path / words[0]), *words[1:]])
            assert (told.exit_code, kinds_in(told.output)) == (2, [kind])


@contextmanager
def served(*runs: Path) -> Iterator[str]:
    """The address that the command prints."""
    process = subprocess.Popen(
        python("workers.tools.page", *map(str, runs)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield until(lambda: next((word for word in process.stdout.readline().split() if "#token=" in word), None))  # type: ignore[union-attr]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def test_runs_are_beside_each_other_on_a_page_that_nobody_can_give_orders_on(tmp_path: Path) -> None:
    runs = [left(tmp_path / "one"), left(tmp_path / "two", policies=2), left(tmp_path / "begun", rows=0)]
    with served(*runs) as url, browser(tmp_path) as window:
        window.open(url)
        window.until("return document.getElementById('stop').disabled && Curves.points() === 9")
        window.until("return Boolean(Curves.panels[0].place.data)")  # drawn a turn later
        assert window.do("return Curves.panels[0].place.data.map((line) => line.name)") == [
            "one",
            "two · p0",
            "two · p1",
        ]
        assert window.text("made") == "4,000 of 4,000"
        assert window.text("health").count("mend it") == 1, "once for both runs"
        window.do("fetch('api/stop', { method: 'POST' }).then((answer) => { window.answered = answer.status; })")
        assert window.until("return window.answered") == 404
        assert [line for line in window.complaints() if "api/stop" not in line] == []
