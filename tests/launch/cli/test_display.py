"""The display draws every view that a coordinator can send."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.cli import display as module
from launch.cli.display import Display, Plain, Silent, baselines_line, render, sparkline, summary_table, tell_summary
from protocol.config.run import Run
from protocol.control.wording import verdict_line
from workers.metrics.run_metrics import RunMetrics
from workers.metrics.throughput import bottleneck


def views(folder: Path) -> list[dict[str, Any]]:
    """What a coordinator's books show: before anybody came, while it runs, after its end."""
    folder.mkdir()
    worker = {"name": "actor-0", "role": "actor", "state": "acting", "pid": 7, "silent": 0.2, "incarnation": 1}
    found: list[dict[str, Any]] = [{}]
    with closing(RunMetrics(Run(steps=1_000), ["agent_[0]", "b"], folder, ["novelty"])) as books:
        for steps in (0, 500, 1_008):
            if steps:
                books.episodes("agent_[0]", steps, 2, 31.0, 25)
            books.observe(
                {("actor-0", 1): {"env_steps": steps, "agent_steps": steps}},
                {("learner-b", 1): {"train_steps.b": 3, "version.b": 2, "version.novelty": 4711}},
                [worker] if steps else [],
                {"actor-0": 2},
            )
            found.append(books.view)
    return found


def on(terminal: bool) -> tuple[Console, io.StringIO]:
    """A console into memory."""
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=140), stream


def test_the_live_table_shows_policies_workers_and_progress(run_dir: Path) -> None:
    console, stream = on(terminal=True)
    with Display(console) as display:
        for view in views(run_dir):
            display.show(view)
        display.tell("an [event] in brackets")
        display._live.refresh()
        text = stream.getvalue()
    shown = (
        "agent_[0]",
        "actor-0",
        "1,008 of 1,000 agent steps",
        "acting",
        "an [event] in brackets",
        "15.5",
        "novelty",
    )
    assert [word for word in shown if word not in text] == []
    left = stream.getvalue().rpartition("agent steps")[2]
    assert "15.5" in left
    assert "actor-0" not in left, "it has ended"


def long_run(folder: Path) -> dict[str, Any]:
    """The view of one whose numbers are as wide as they come."""
    view = views(folder)[-1]
    view |= {"steps": 40_000_000, "made": 12_345_678, "made_per_second": 123_456.7, "seconds": 100.0}
    row = {"history": [float(i) for i in range(99)], "return": -1234.5, "episode_length": 12_345.6, "lag": 0.123}
    view["policies"]["b"] |= row
    view["flow"]["b"] |= {"queue_fill": 0.5, "starvation": 0.25, "blocked": 0.75}
    return view


@pytest.mark.parametrize(("columns", "blocks"), [(80, (21, 9)), (130, (60, 59))])
def test_a_row_is_as_wide_as_the_terminal_and_only_the_history_gives_way(
    run_dir: Path, columns: int, blocks: tuple[int, int]
) -> None:
    """With and without evaluations, of which there is one of two policies."""
    view = long_run(run_dir)
    for evaluations, room in zip(({}, {"b": {"maze": 10.0, "hall": 21.0}}), blocks, strict=True):
        console, stream = on(terminal=False)
        console.width = columns
        console.print(render({**view, "evaluations": evaluations}))
        lines = stream.getvalue().splitlines()
        told = ["evaluation"] if evaluations else []
        (head,) = [line for line in lines if line.startswith("policy")]
        assert head.split() == [*("policy", "return", *told, "length", "history", "lag", "queue", "starved", "blocked")]
        (row,) = [line for line in lines if line.startswith("b ")]
        history = sparkline(view["policies"]["b"]["history"], room)
        mean = ["15.5"] if evaluations else []
        assert row.split() == ["b", "-1,234", *mean, "12,346", history, "0.123", "50%", "25%", "75%"]
        assert max(map(len, lines)) <= columns
        assert "12,345,678 of 40,000,000 agent steps  123,457/s  3:44 left" in lines[0]
    console, stream = on(terminal=False)
    console.print(render({**view, "made_per_second": 9.0}, over=True))
    assert "12,345,678 of 40,000,000 agent steps  123,457/s  in 100 s" in stream.getvalue(), "not as slow as its end"


def test_until_the_first_step_it_says_who_has_joined(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the workers that a run waits for; in plain lines once that takes a while."""
    view = {**views(run_dir)[1], "wanted": 5}
    view["workers"] = [{"name": "w", "role": role, "state": "", "pid": 1, "silent": 0.0} for role in ("actor", "relay")]
    console, stream = on(terminal=False)
    console.print(render(view))
    assert "starting: 1 of 5 workers have joined" in stream.getvalue()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console, stream = on(terminal=False)
    with Plain(console) as plain:
        plain.show(view)
        now[0] += 6
        plain.show(view)
        plain.show({**view, "made": 8})
    assert [line.partition(" ")[0] for line in stream.getvalue().splitlines()] == ["starting:", "steps=8"]


@pytest.mark.parametrize(
    ("verdict", "flow"),
    [
        ("balanced", (0, 0)),
        ("actor-bound", (0, 1)),
        ("processor-bound", (0, 1, False, 0, 1)),
        ("learner-bound", (1, 0)),
        ("network-bound", (1, 1, True)),
        ("weight-bound", (0, 0, True, 9)),
    ],
)
def test_a_verdict_says_what_helps(verdict: str, flow: Any) -> None:
    assert bottleneck(*flow) == verdict
    assert len(verdict_line(verdict)) in range(len(verdict) + 10, 81)


def test_a_run_without_actors_shows_the_rows_it_trained_J5(run_dir: Path) -> None:
    run_dir.mkdir()
    with closing(RunMetrics(Run(steps=1_000, actors=0), ["a"], run_dir)) as books:
        for rows in (0, 400):
            books.observe({}, {("learner-a", 1): {"rows_trained.a": rows, "train_steps.a": rows // 8}}, [], {})
        console, stream = on(terminal=True)
        with Display(console) as display:
            display.show(books.view)
        assert "400 of 1,000 rows trained" in stream.getvalue()
        console, stream = on(terminal=False)
        with Plain(console) as plain:
            plain.show(books.view)
        assert stream.getvalue().startswith("steps=400 of=1000 ")


def test_plain_lines_come_every_few_seconds(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console, stream = on(terminal=False)
    with Plain(console) as display:
        for view in views(run_dir):
            display.show(view)
            display.show(view)
        now[0] += 6
        display.show(view)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("steps=500 of=1000 ")
    assert "return: agent_[0]=15.5 b=–" in lines[0]


def test_the_time_left_is_at_the_mean_pace_and_waits_come_longest_first(run_dir: Path) -> None:
    view = views(run_dir)[-1]
    view |= {"made": 400, "steps": 1_000, "seconds": 5_000.0}
    view["waits"] = {"data.b": 0.01, "credit.b": 2.0, "drain.b": 3.0}
    view["flow"]["b"] |= {"queue_fill": 0.5, "starvation": 0.25, "blocked": 0.75}
    console, stream = on(terminal=False)
    console.print(render(view))
    said = stream.getvalue()
    assert "2:05:00 left" in said
    assert "waits   drain.b 3 s  credit.b 2 s\n" in said
    (row,) = [line for line in said.splitlines() if line.startswith("b ")]
    assert row.split()[-3:] == ["50%", "25%", "75%"]
    console.print(render({**view, "paused": True}))
    assert "paused" in stream.getvalue()


def test_a_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 7.0]) == "▁█"
    assert sparkline([3.0, 3.0, 3.0]) == "▁▁▁"
    assert len(sparkline([float(i) for i in range(100)], width=30)) == 30


def test_the_summary_table_shows_unknown_numbers_as_dashes() -> None:
    console, stream = on(terminal=False)
    curve, lengths = {"first": None, "last": 0.03, "best": 1234.4}, {"a": 24.75, "b": None}
    told = {"returns": {"a": curve, "b": curve}, "baselines": {"a": {"random": 0.0021}}, "episode_length": lengths}
    console.print(summary_table(told))
    (row,) = [line.replace("│", " ").split() for line in stream.getvalue().splitlines() if " a " in line]
    assert row == ["a", "0.0021", "–", "–", "0.03", "1,234", "24.75"]


def test_all_of_the_summary_table_can_be_read_in_80_columns() -> None:
    curve = {"first": 11.37, "last": 1234.4, "best": 1234.4}
    told: dict[str, Any] = {"returns": {"adversary_0": curve}, "episode_length": {"adversary_0": 1234.0}}
    told |= {"baselines": {"adversary_0": {"random": -162.6, "scripted": 162.6}}}
    told |= {"evaluations": {"adversary_0": {"w": 117.5}}}
    stream = io.StringIO()
    Console(file=stream, width=80).print(summary_table(told))
    heads, rows = stream.getvalue().partition("┡")[::2]
    assert {"random", "scripted", "evaluation", "first", "last", "best", "length"} <= set(
        heads.replace("┃", " ").split()
    )
    assert "…" not in rows
    assert "-162.6 │    162.6 │      117.5" in rows


@pytest.mark.parametrize(
    ("evaluations", "row"),
    [({}, ["a", "22", "–", "80", "640"]), ({"a": {"w": 7.0, "v": 9.0}}, ["a", "22", "–", "8", "80", "640"])],
)
def test_what_was_learned_from_datasets_is_told_by_its_rows_and_evaluations(
    evaluations: dict[str, Any], row: list[str]
) -> None:
    """No episode was played: where no evaluation was asked for either, the hint is how to have one."""
    console, stream = on(terminal=False)
    curve = {"first": None, "last": None, "best": None}
    told = {"returns": {"a": curve}, "baselines": {"a": {"random": 22.0, "random_episodes": 1}}, "environments": {}}
    told |= {"rows": {"a": {"read": 80, "trained": 640}}, "evaluations": evaluations, "untrained": []}
    tell_summary(console, {**told, "baselines_missing": ""})
    (shown,) = [line.replace("│", " ").split() for line in stream.getvalue().splitlines() if " a " in line]
    assert shown == row
    assert ("rookery evaluate" in stream.getvalue()) is not bool(evaluations)


@pytest.mark.parametrize(
    ("rate", "lag", "starved", "says"),
    [
        (0.4, 0.004, 0.003, ["  0.4/s", "0.004", "0.3%"]),
        (0.03, 12.0, 0.0, ["  0.03/s", "12", "0%"]),
        (12_345.6, 0.66, 0.997, ["  12,346/s", "0.66", "100%"]),
    ],
)
def test_what_is_small_is_not_shown_as_nothing(
    run_dir: Path, rate: float, lag: float, starved: float, says: list[str]
) -> None:
    """Rates, lag and shares of a run that is slow, nearly fresh or hardly starved."""
    view = views(run_dir)[-1]
    view["made_per_second"] = rate
    view["policies"]["b"]["lag"] = lag
    view["flow"]["b"] |= {"queue_fill": 0.5, "starvation": starved, "blocked": 0.75}
    console, stream = on(terminal=False)
    console.print(render(view))
    (row,) = [line for line in stream.getvalue().splitlines() if line.startswith("b ")]
    assert says[0] in stream.getvalue()
    assert [row.split()[-4], row.split()[-2]] == says[1:]


def test_baselines_are_told_with_their_episodes_their_time_and_why_some_are_missing() -> None:
    found = {"random": 0.02, "random_stderr": 0.001, "random_episodes": 84}
    summary = {
        "baselines": {"a": found, "b": {}},
        "baselines_missing": "",
        "baselines_seconds": {"spent": 0.482, "budget": 1.0},
    }
    assert baselines_line(summary) == "random: 84 episodes in 0.48 s of at most 1 s"
    summary |= {"baselines": {"a": {}}, "baselines_missing": "ValueError: no"}
    assert baselines_line(summary) == "no baselines in 0.48 s of at most 1 s; ValueError: no"
    summary |= {"baselines_missing": "none are asked for", "baselines_seconds": {"spent": 0.0, "budget": 1.0}}
    assert baselines_line(summary) == "no baselines; none are asked for"


def ill(folder: Path) -> list[dict[str, Any]]:
    """Views of a run in which something is found at the second look."""
    folder.mkdir()
    found = []
    with closing(RunMetrics(Run(steps=1_000), ["[a]"], folder)) as books:
        for held in (0, 1, 2):
            page = {"batches_checked.[a]": 3, "health.gradient_zero.[a]": held, "health.reward_zero.[a]": held}
            books.observe({("actor-0", 1): {"agent_steps": 10}}, {("learner-a", 1): page}, [], {})
            found.append(books.view)
    return found


@pytest.mark.parametrize("display", [Silent, Plain])
def test_a_finding_is_told_once_with_its_remedy_H1(run_dir: Path, display: type[Silent]) -> None:
    console, stream = on(terminal=False)
    console.width = 400
    with display(console) as shown:
        for view in ill(run_dir):
            shown.show(view)
    lines = stream.getvalue().splitlines()
    if display is Plain:
        lines = [line for line in lines if not line.startswith("steps=")]
    assert [line.partition(":")[0] for line in lines] == ["fault in the gradient of [a]", "note in the data of [a]"]
    assert all("; " in line for line in lines)


def test_what_holds_for_several_policies_is_shown_once(run_dir: Path) -> None:
    view = ill(run_dir)[-1]
    (finding, *_) = view["health"]
    view["health"] = [{**finding, "policy": name} for name in ("red", "green", "blue")]
    console, stream = on(terminal=False)
    console.print(render(view))
    assert "fault in the gradient of red, green, blue: " in stream.getvalue()
    assert stream.getvalue().count(finding["remedy"][:20]) == 1


def test_a_frozen_policy_is_seen(run_dir: Path) -> None:
    view = views(run_dir)[2]
    console, stream = on(terminal=False)
    console.print(render({**view, "roster": {"frozen": [*view["policies"]]}}))
    assert "frozen" in stream.getvalue()


def test_the_live_picture_shows_findings_as_long_as_they_hold_H1(run_dir: Path) -> None:
    console, stream = on(terminal=True)
    views_of = ill(run_dir)
    for view, there in zip(views_of, (False, True, True), strict=True):
        console.print(module.render(view))
        text = stream.getvalue()
        assert ("fault in the gradient of [a]: the gradient is exactly zero" in text) is there
        stream.truncate(0)


def test_what_evaluators_tell_is_in_the_view(run_dir: Path) -> None:
    run_dir.mkdir()
    told = {"a.evaluation/return": 3.0, "a.adopted": 7.0, "b.evaluation/hall": 1.0, "b.evaluation/maze": 2.0}
    with closing(RunMetrics(Run(steps=1_000), ["a", "b", "c"], run_dir)) as books:
        books.observe({("actor-0", 1): {"env_steps": 8, "agent_steps": 8}}, {}, [], {}, told)
        assert books.view["evaluations"] == {"a": {"return": 3.0}, "b": {"hall": 1.0, "maze": 2.0}}
        books.observe({("actor-0", 1): {"env_steps": 9, "agent_steps": 9}}, {}, [], {}, {"b.evaluation/hall": 5.0})
        assert books.view["evaluations"] == {"a": {"return": 3.0}, "b": {"hall": 5.0, "maze": 2.0}}, "none has left"


def test_two_runs_that_are_shown_at_once_stand_in_one_picture(run_dir: Path) -> None:
    """Not over each other: who comes second draws on the first's console, by name, and leaves a last picture above."""
    (first, said), (second, silent) = on(terminal=True), on(terminal=True)
    view = views(run_dir)[2]
    with Display(first, "one") as kept:
        kept.show(view)
        kept._live.refresh()
        alone = said.getvalue()
        with Display(second, "two") as left:
            left.show(view)
            left._live.refresh()
            left.tell("an event")
            together = said.getvalue().removeprefix(alone)
        kept.show(view)
        kept._live.refresh()
    assert "one" not in alone.split()
    assert all(word in together for word in ("one", "two", "an event"))
    assert silent.getvalue() == ""
    assert Display._shown == []


def test_lines_of_several_runs_tell_whose_they_are(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console, stream = on(terminal=False)
    monkeypatch.setattr(module, "_PLAIN_EVERY", 0.0)
    for name in ("one", "two"):
        with Plain(console, name) as plain:
            plain.show(views(run_dir.parent / name)[2])
    assert [line.split()[0] for line in stream.getvalue().splitlines() if "steps=" in line] == ["run=one", "run=two"]
