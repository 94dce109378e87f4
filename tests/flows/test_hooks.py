"""Hooks of the user's own in whole runs: each event where it happens, errors, cost, orders, and a process that dies."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

import rookery
from protocol.config.run import HookConfig, Run
from protocol.errors import ConfigurationError
from protocol.memory.shared_file import Counters
from tests.faults import kinds_in, raises
from tests.flows import runs
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.hooks import HooksWorker
from workers.metrics.hooks.calls import DONE, ENDING, HookCalls, hook_classes, hooked_roles
from workers.metrics.hooks.episodes import WatchedEnvironment, checked
from workers.metrics.hooks.findings import hook_findings
from workers.metrics.hooks.hook import EVENTS
from workers.metrics.hooks.run_events import RunEvents

MODULE = """
import json
import os
import time

import rookery


class All(rookery.Hook):
    def __init__(self, file):
        self.file = file


def note(name):
    def method(self, event):
        with open(self.file, "a") as file:
            facts = {key: getattr(event, key) for key in event.__dataclass_fields__}
            file.write(json.dumps([self.run.worker, name, facts], default=str) + "\\n")

    return method


for name in [name for name in vars(rookery.Hook) if name.startswith("on_")]:
    setattr(All, name, note(name))


class Broken(rookery.Hook):
    def on_update(self, event):
        return event.metrics["no_such_number"]


class Slow(rookery.Hook):
    updates = 0

    def on_update(self, event):
        time.sleep(0.1)
        self.updates += 1
        if self.updates == 15:
            self.run.stop()


class Waits(rookery.Hook):
    def __init__(self, file, seconds):
        self.file, self.seconds = file, seconds

    def on_policy_start(self, event):
        until = time.monotonic() + self.seconds
        while not (os.path.exists(self.file) and "on_worker_start" in open(self.file).read()):
            assert time.monotonic() < until, "the process for hooks does not begin"
            time.sleep(0.05)


class Freeze(rookery.Hook):
    def on_update(self, event):
        if event.train_steps == 4:
            self.run.set_learning_rate(event.policy, 0.125)
        if event.train_steps == 8:
            self.run.set_learning_rate(event.policy, 0.0)


class Misspelt(rookery.Hook):
    def on_updates(self, event):
        pass


class Later(rookery.Hook):
    async def on_update(self, event):
        pass


class Apart:
    pass
"""
SAME: dict[str, Any] = {"agents": {"agent_0": "one", "agent_1": "one"}}
EVALUATED = {"every_steps": 1_000, "episodes": 2}
Seen = list[tuple[str, str, Mapping[str, Any]]]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_hooks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def hook(name: str, **keys: Any) -> dict[str, Any]:
    return {"hook": f"mine_of_hooks:{name}", **keys}


ALL = hook("All", settings={"file": "seen.jsonl"})
WAITS = hook("Waits", settings={"file": "seen.jsonl", "seconds": runs.PATIENCE}, on_error="stop")
"""As a short run may be over before the process for hooks has begun."""


def seen(folder: Path) -> Seen:
    path = folder / "seen.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [cast("Any", tuple(json.loads(line))) for line in lines if line.endswith("]")]


def run_of(*hooks: Any, **keys: Any) -> Run:
    return Run.model_validate(runs.config(hooks=list(hooks), **keys))


def findings(folder: Path) -> dict[str, Mapping[str, Any]]:
    return {one["finding"]: one for one in runs.summary_of(folder)["health"]["findings"] if one["layer"] == "hooks"}


def test_each_event_is_told_where_it_happens_and_an_error_only_warns(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.config(steps=3_000, evaluation=EVALUATED, hooks=[ALL, WAITS, hook("Broken")], **SAME)
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    told = seen(tmp_path)
    places: dict[str, set[str]] = {}
    for worker, name, _ in told:
        places.setdefault(name.removeprefix("on_"), set()).add(worker)
    learner = ("policy_start", "batch", "update", "publish", "checkpoint", "policy_end")
    run = ("run_start", "run_end", "worker_start", "worker_end", "evaluation", "finding")
    of_learner, of_run = {name: {"learner-one"} for name in learner}, {name: {"hooks"} for name in run}
    assert places == {"episode_end": {"actor-0"}, **of_learner, **of_run}
    assert {*places, "command"} == {*EVENTS}, "which the run that is stopped tells"
    by_name = {name: facts for _, name, facts in told}
    assert by_name["on_episode_end"]["length"] == 20
    assert by_name["on_run_end"]["complete"] is True
    assert by_name["on_run_end"]["summary"]["agent_steps"] == 3_000
    assert by_name["on_worker_end"]["in_order"] is True
    numbers = [facts["number"] for worker, _, facts in told if worker == "hooks"]
    assert numbers == [*range(1, len(numbers) + 1)], "none is dropped"
    wrong = findings(tmp_path)["hook_failed"]
    assert (wrong["policy"], wrong["level"]) == ("mine_of_hooks:Broken", "fault")
    assert "KeyError: 'no_such_number'" in wrong["says"]
    assert "mine_of_hooks.py" in wrong["traceback"]
    examined = runs.rookery("doctor", str(tmp_path / "run"), cwd=tmp_path)
    assert "no_such_number" in examined.stdout, examined.stderr


def test_an_error_ends_the_run_where_that_is_asked_for(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(tmp_path, 10**6, pause=0.001, hooks=[hook("Broken", on_error="stop")], **SAME)
    done = runs.train(data, tmp_path)
    assert done.returncode == 1, done.stderr
    summary = runs.summary_of(tmp_path)
    assert (summary["complete"], summary["agent_steps"] < 10**6) == (False, True)
    assert "hook_failed" in findings(tmp_path)


def test_a_hook_ends_the_run_as_complete_and_a_slow_one_is_named_with_its_cost(
    tmp_path: Path, memory_dir: Path
) -> None:
    data = runs.paced(tmp_path, 10**6, pause=0.001, hooks=[hook("Slow")], **SAME)
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    summary = runs.summary_of(tmp_path)
    assert (summary["complete"], summary["agent_steps"] < 10**6) == (True, True)
    slow = findings(tmp_path)["hook_slow"]
    assert (slow["policy"], slow["worker"]) == ("mine_of_hooks:Slow", "learner-one")
    assert slow["share"] > 0.05


def test_a_run_goes_on_without_its_process_for_hooks_which_begins_again(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(tmp_path, 10**6, pause=0.001, hooks=[ALL], **SAME)

    def starts() -> list[Mapping[str, Any]]:
        return [facts for _, name, facts in seen(tmp_path) if name == "on_run_start"]

    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: bool(starts()) and runs.agent_steps(tmp_path) > 0, what="the run has begun")
        children = psutil.Process(worker.popen.pid).children(recursive=True)
        (hooks,) = [one for one in children if "workers.hooks" in one.cmdline()]
        before = runs.workers_of(tmp_path)
        hooks.kill()
        made = runs.agent_steps(tmp_path)
        runs.until(lambda: len(starts()) == 2 and runs.agent_steps(tmp_path) > made, what="another one has begun")
        assert runs.workers_of(tmp_path) == before, "nobody else was started again"
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait() == 1, worker.said
    assert [one["first"] for one in starts()] == [True, False]
    assert [facts["command"] for _, name, facts in seen(tmp_path) if name == "on_command"] == ["stop"]
    assert [facts["complete"] for _, name, facts in seen(tmp_path) if name == "on_run_end"] == [False]


def test_in_one_process_the_same_hooks_are_called_and_set_a_learning_rate(tmp_path: Path) -> None:
    data = runs.config(steps=3_000, evaluation=EVALUATED, hooks=[hook("Freeze"), ALL], **SAME)
    done = runs.train(data, tmp_path, "--sequential")
    assert done.returncode == 0, done.stderr
    told = seen(tmp_path)
    assert {name.removeprefix("on_") for _, name, _ in told} >= {*EVENTS} - {"command", "finding", "worker_end"}
    updates = {facts["train_steps"]: facts["metrics"] for _, name, facts in told if name == "on_update"}
    assert {updates[step]["learning_rate"] for step in updates if 4 < step <= 8} == {0.125}
    frozen = [one for step, one in updates.items() if step > 8]
    assert frozen
    assert {(one["learning_rate"], one["weight_delta"]) for one in frozen} == {(0.0, 0.0)}


@pytest.mark.parametrize(
    ("given", "kind", "key"),
    [
        (hook("Apart"), "hook_not_a_hook", "hooks.0.hook"),
        (hook("Misspelt"), "hook_event_unknown", "hooks.0"),
        (hook("Later"), "hook_method_async", "hooks.0"),
        (hook("Slow", settings={"size": 3}), "hook_settings_refused", "hooks.0.settings"),
        (hook("All"), "hook_settings_refused", "hooks.0.settings"),
        (hook("Missing"), "name_not_in_module", "hooks.0.hook"),
        ("no_such_module_of_hooks:All", "module_not_found", "hooks.0.hook"),
    ],
)
def test_what_is_no_hook_is_refused_by_its_key(given: Any, kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=key):
        hook_classes(run_of(given))


def test_a_wrong_hook_is_refused_before_any_worker_starts(tmp_path: Path, memory_dir: Path) -> None:
    done = runs.train(runs.config(hooks=[hook("Apart")]), tmp_path)
    assert (done.returncode, kinds_in(done.stderr)) == (2, ["hook_not_a_hook"])
    assert not (tmp_path / "run").exists()


def test_a_name_alone_is_a_hook_that_warns() -> None:
    assert run_of("mine_of_hooks:Slow").hooks == (HookConfig(hook="mine_of_hooks:Slow"),)


def test_what_no_hook_wants_costs_nothing() -> None:
    """No call is there to be made, and the world is the plain one."""
    world = make(run_of().environment)
    assert {name: HookCalls().of(name) for name in EVENTS} == {name: [] for name in EVENTS}
    assert type(checked(world, HookCalls(run_of()).of("episode_end"))) is CheckedEnvironment
    slow = HookCalls(run_of(hook("Slow")))
    assert [name for name in EVENTS if slow.of(name)] == ["update"]
    assert hooked_roles(run_of(hook("Slow"))) == {"learner"}
    assert hooked_roles(run_of(ALL)) == {"actor", "learner", "supervisor"}


def test_a_learning_rate_is_set_where_the_policy_learns_only() -> None:
    calls = HookCalls(run_of(hook("Slow")), "actor-0")
    with raises(ConfigurationError, "hook_policy_not_here", policy="one", peer="actor-0"):
        calls.control.set_learning_rate("one", 0.1)
    calls.control.rates["one"] = lambda _rate: None
    with raises(ConfigurationError, "hook_rate_invalid", policy="one"):
        calls.control.set_learning_rate("one", float("nan"))
    assert calls.orders() == {}
    calls.control.stop()
    assert calls.orders() == {ENDING: DONE}


def test_episodes_are_told_one_by_one_with_their_info() -> None:
    """Of agents that share a world of processes' making; what was told of them is there for the curves all the same."""
    told: list[rookery.EpisodeEvent] = []
    config = run_of().environment.model_copy(update={"id": "tests.flows.telling:match", "copies": 2, "settings": {}})
    world = checked(make(config), [told.append])
    assert isinstance(world, WatchedEnvironment)
    world.policy_of = dict.fromkeys(range(3), "p")
    plain = make(config)
    turn, other = world.reset(0), plain.reset(0)
    while not told:
        actions = [one.observation[:, ...].shape[0] for one in turn.present]
        zeros = [world.world.places[one.agent] for one in turn.present]
        chosen = [place.acted.zeros(rows) for place, rows in zip(zeros, actions, strict=True)]
        turn, other = world.step(chosen), plain.step(chosen)
    assert other.env_steps == turn.env_steps
    assert world.take_episodes() == plain.take_episodes()
    assert all(one.info for one in told)


def test_events_that_a_hook_is_too_slow_for_are_dropped_and_counted(tmp_path: Path) -> None:
    """Of 300 the newest stay, whose numbers show the gap."""
    going, told = threading.Event(), list[int]()
    folder = tmp_path / "run"
    folder.mkdir()
    client = SimpleNamespace(status=None, changed=threading.Event(), orphaned=False)
    vitals = SimpleNamespace(bind=lambda *_: None, tick=lambda: None)
    options = SimpleNamespace(resident=False)
    life: Any = SimpleNamespace(client=client, vitals=vitals, options=options, report=lambda _: None, must_stop=True)
    life.stopping = threading.Event()
    worker = HooksWorker(life, run_of(ALL), folder)

    def slow(event: rookery.CommandEvent) -> None:
        going.wait(runs.PATIENCE)
        told.append(event.number)

    worker._wanted = {"command": [slow]}
    thread = threading.Thread(target=worker._call)
    thread.start()
    for number in range(1, 301):
        worker._put([("command", rookery.CommandEvent(number, "pause"))])
    going.set()
    worker._over = True
    worker._put([])
    thread.join(runs.PATIENCE)
    assert told[-256:] == [*range(45, 301)]
    page = {("hooks", 1): worker._calls._counters.snapshot()}
    (found,) = hook_findings(run_of(ALL), page, folder)
    assert (found["finding"], found["count"]) == ("hook_events_dropped", 300 - len(told))


def test_commands_are_seen_in_what_the_coordinator_tells(tmp_path: Path) -> None:
    events = RunEvents(tmp_path, first=True)
    plain = {"stage": "running", "paused": False, "checkpoints": 0, "complete": False}
    views = [plain, {**plain, "paused": True}, {**plain, "checkpoints": 1}, {**plain, "stage": "actors_draining"}]
    assert [event.command for view in views for _, event in events.look(view)] == [
        "pause",
        "resume",
        "checkpoint",
        "stop",
    ]
    lines = '{"key": "steps", "old": 1, "new": 2}\n{"command": "assign", "key": "a", "old": "x", "new": "y"}\n{"key"'
    (tmp_path / "history.jsonl").write_text(lines)
    told = [(event.command, event.key, event.value) for _, event in events.look(plain)]
    assert told == [("set", "steps", 2), ("assign", "a", "y")]


def test_a_run_that_is_told_something_before_its_hooks_begin_is_new_to_them_and_they_hear_of_it(
    tmp_path: Path,
) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text('{"number": 1, "command": "freeze", "key": "one", "old": false, "new": true}\n')
    life: Any = SimpleNamespace(vitals=SimpleNamespace(bind=lambda *_: None))
    events = HooksWorker(life, Run(), tmp_path)._events
    assert [event.first for _, event in events.begin()] == [True]
    assert [(event.command, event.key) for _, event in events.look({})] == [("freeze", "one")]
    (tmp_path / "counters" / "hooks.1").unlink()
    with history.open("a") as more:
        more.write('{"key": "steps", "old": 1, "new": 2}\n')
    events = HooksWorker(life, Run(), tmp_path)._events
    assert [event.first for _, event in events.begin()] == [False]


def test_a_traceback_is_kept_with_the_count(tmp_path: Path) -> None:
    run = run_of(hook("Broken", on_error="stop"))
    calls, counters = HookCalls(run, "learner-one", tmp_path), Counters(None, [])
    calls.count_in(counters)
    (call,) = calls.of("update")
    for _ in range(3):
        call(rookery.UpdateEvent("one", 1, 1, 0.0, None, {}))
    (found,) = hook_findings(run, {("learner-one", 1): counters.snapshot()}, tmp_path)
    assert found["finding"] == "hook_failed"
    assert "3 times" in found["says"]
    assert found["says"].endswith(found["traceback"].partition("\n")[0])
    (goes_on,) = hook_findings(run_of(hook("Broken")), {("learner-one", 1): counters.snapshot()}, tmp_path)
    assert found["remedy"] != goes_on["remedy"], "which says that other events still reach it"
    assert found["traceback"].startswith("learner-one, on_update: KeyError: 'no_such_number' in on_update (")
    assert calls.orders() == {ENDING: 2.0}
