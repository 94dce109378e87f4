"""Hooks that do what they should not, and runs that are not the plain one: leagues, ranks, going on."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.memory.shared_file import Counters
from tests.flows import runs, test_hooks
from tests.flows.test_hooks import ALL, SAME, findings, hook, run_of, seen
from workers.metrics.hooks.calls import HookCalls
from workers.metrics.hooks.hook import BatchEvent

MODULE = """
import rookery


class Ends(rookery.Hook):
    \"\"\"Raises what no `except Exception` catches.\"\"\"

    def __init__(self, name):
        self.name = name

    def on_batch(self, event):
        raise {"keyboard": KeyboardInterrupt, "generator": GeneratorExit, "base": BaseException}[self.name]

    def on_worker_start(self, event):
        self.on_batch(event)
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


def test_who_calls_hooks_of_the_run_lives_on_after_an_interrupt_that_one_raises(
    tmp_path: Path, memory_dir: Path
) -> None:
    data = runs.paced(tmp_path, 3_000, pause=0.005, hooks=[hostile_hook("Ends", settings={"name": "keyboard"}), ALL])
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "on_run_end" in {name for worker, name, _ in seen(tmp_path) if worker == "hooks"}
    assert "KeyboardInterrupt" in findings(tmp_path)["hook_failed"]["traceback"]


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


def test_the_first_of_several_ranks_tells_when_its_policy_begins(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.config(steps=3_200, policy={"ranks": 2}, actors=2, hooks=[ALL], **SAME)
    done = runs.train(data, tmp_path)
    assert done.returncode == 0, done.stderr
    told = [(worker, name) for worker, name, _ in seen(tmp_path) if name in ("on_policy_start", "on_policy_end")]
    assert told == [("learner-one-0", "on_policy_start"), ("learner-one-0", "on_policy_end")]
