"""Hooks that do what they should not, and runs that are not the plain one: leagues, ranks, going on."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.memory.shared_file import Counters, read_counters
from tests.flows import runs, test_hooks
from tests.flows.test_hooks import ALL, SAME, WAITS, findings, hook, run_of, seen
from workers.metrics.hooks.calls import HookCalls
from workers.metrics.hooks.findings import hook_findings
from workers.metrics.hooks.hook import BatchEvent
from workers.metrics.hooks.run_events import RunEvents

MODULE = """
import time

import rookery


class Ends(rookery.Hook):
    \"\"\"Raises what no `except Exception` catches.\"\"\"

    def __init__(self, name):
        self.name = name

    def on_batch(self, event):
        raise {"keyboard": KeyboardInterrupt, "generator": GeneratorExit, "base": BaseException}[self.name]

    def on_worker_start(self, event):
        self.on_batch(event)


class Hangs(rookery.Hook):
    def on_worker_start(self, event):
        time.sleep(1000)

    def on_run_end(self, event):
        pass


class Begun(rookery.Hook):
    \"\"\"Nobody learns before the process for hooks has begun, in each life of a run that goes on to more steps.\"\"\"

    def on_policy_start(self, event):
        history, until = self.run.folder / "history.jsonl", time.monotonic() + 300
        life = 1 + (history.read_text().count('"key": "steps"') if history.exists() else 0)
        while len([*self.run.folder.glob("counters/hooks.*")]) < life:
            assert time.monotonic() < until
            time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_hooks.py").write_text(test_hooks.MODULE)
    (tmp_path / "hostile_hooks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def hostile_hook(name: str, **keys: object) -> dict[str, object]:
    return {**hook(name, **keys), "hook": f"hostile_hooks:{name}"}


@pytest.mark.parametrize("name", ["generator", "base"])
def test_whatever_a_hook_raises_is_an_error_of_it(name: str) -> None:
    calls = HookCalls(run_of(hostile_hook("Ends", settings={"name": name}, on_error="stop")))
    calls.count_in(Counters(None, []))
    (call,) = calls.of("batch")
    call(BatchEvent("one", 1, 1))
    assert calls.orders()


@pytest.mark.slow
def test_who_calls_hooks_of_the_run_lives_on_after_an_interrupt_that_one_raises(
    tmp_path: Path, memory_dir: Path
) -> None:
    data = runs.paced(tmp_path, 3_000, pause=0.005, hooks=[hostile_hook("Ends", settings={"name": "keyboard"}), ALL])
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "on_run_end" in {name for worker, name, _ in seen(tmp_path) if worker == "hooks"}
    assert "KeyboardInterrupt" in findings(tmp_path)["hook_failed"]["traceback"]


@pytest.mark.slow
def test_episodes_of_a_league_s_members_are_no_policy_s(tmp_path: Path, memory_dir: Path) -> None:
    """All rows that a player learned from, and those of what goes on, are of its episodes and of nobody else's."""
    league = {"snapshot_every": 900, "arena": 0.25}
    data = runs.config(steps=8_000, agents={"agent_0": "main", "agent_1": "main"}, league=league, hooks=[ALL])
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    ended = [facts for _, name, facts in seen(tmp_path) if name == "on_episode_end"]
    summary = runs.summary_of(tmp_path)
    own = summary["agent_steps"] - summary["fixed_steps"]
    assert {facts["policy"] for facts in ended} == {"main"}
    assert 0 < sum(facts["length"] for facts in ended) <= own < summary["agent_steps"] / 2


@pytest.mark.slow
def test_the_first_of_several_ranks_tells_when_its_policy_begins(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.config(steps=3_200, policy={"ranks": 2}, actors=2, hooks=[ALL], **SAME)
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    told = [(worker, name) for worker, name, _ in seen(tmp_path) if name in ("on_policy_start", "on_policy_end")]
    assert told == [("learner-one-0", "on_policy_start"), ("learner-one-0", "on_policy_end")]


@pytest.mark.slow
def test_a_hook_that_hangs_keeps_nobody_and_what_it_was_not_told_is_counted(tmp_path: Path, memory_dir: Path) -> None:
    page = tmp_path / "run" / "counters" / "hooks.1"
    with runs.training(runs.config(hooks=[hostile_hook("Hangs")], steps=10**9), tmp_path) as worker:
        runs.until(lambda: page.exists() and read_counters(page).get("hook_now.0"), what="it hangs")
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait() == 1, worker.said
    counted = read_counters(page)
    assert counted["hook_events_dropped"] >= 2, "the first worker's start, which was not done with, and the run's end"
    assert counted["hook_now.0"] > 10


def test_a_call_that_does_not_end_is_named(tmp_path: Path) -> None:
    """While it goes on, and not once it has ended."""
    run = run_of(ALL, hostile_hook("Hangs"))
    calls, counters, begun, ending = HookCalls(run), Counters(None, []), threading.Event(), threading.Event()
    calls.count_in(counters)

    def hang(_: object) -> None:
        begun.set()
        ending.wait()

    calls._hooks[1].on_worker_start = hang  # type: ignore[method-assign, assignment]
    (_, call) = calls.of("worker_start")
    thread = threading.Thread(target=call, args=(None,))
    thread.start()
    begun.wait()

    def found() -> list[tuple[str, str]]:
        calls.look()
        page = counters.snapshot()
        late = {name: count + 60 * bool(name.startswith("hook_now") and count) for name, count in page.items()}
        return [(one["policy"], one["finding"]) for one in hook_findings(run, {("hooks", 1): late}, tmp_path)]

    assert found() == [("hostile_hooks:Hangs", "hook_hangs")]
    assert calls.going_on == "hostile_hooks:Hangs"
    ending.set()
    thread.join()
    assert found() == []


@pytest.mark.slow
def test_what_changes_as_a_run_goes_on_is_told_as_commands_once(tmp_path: Path, memory_dir: Path) -> None:
    def told(name: str) -> list[Mapping[str, Any]]:
        return [facts for worker, event, facts in seen(tmp_path) if worker == "hooks" and event == name]

    data = runs.config(steps=2_000, hooks=[ALL, hostile_hook("Begun", on_error="stop")])
    assert runs.train(data, tmp_path).returncode == 0
    for steps in (4_000, 6_000):
        longer = runs.rookery("train", str(tmp_path / "run"), "--steps", str(steps), cwd=tmp_path)
        assert longer.returncode == 0, longer.stderr
    sets = [facts["value"] for facts in told("on_command") if facts["key"] == "steps"]
    assert sets == [4_000, 6_000]
    assert [facts["first"] for facts in told("on_run_start")] == [True, False, False]


@pytest.mark.slow
def test_hooks_that_a_run_goes_on_with_are_no_first_ones(tmp_path: Path, memory_dir: Path) -> None:
    assert runs.train(runs.config(steps=2_000), tmp_path).returncode == 0
    hooks = ["--set", f"hooks={json.dumps([ALL, WAITS])}"]
    longer = runs.rookery("train", str(tmp_path / "run"), "--steps", "4000", *hooks, cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    assert [facts["first"] for _, name, facts in seen(tmp_path) if name == "on_run_start"] == [False]


def test_a_coordinator_that_has_just_come_back_ends_no_worker(tmp_path: Path) -> None:
    events = RunEvents(tmp_path, first=True)
    row = {"name": "actor-0", "role": "actor", "incarnation": 1}
    view = {"workers": [row], "paused": True}
    assert [name for name, _ in events.look(view)] == ["worker_start", "command"]
    assert [*events.look({})] == [*events.look(view)] == []
