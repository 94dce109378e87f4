"""What real runs are told of their policies while they go on: it holds through the deaths of who follows it."""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import ExitStack
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from launch.local.run_handle import RunHandle
from protocol.errors import ConfigurationError, Timeout
from protocol.memory.shared_file import read_counters
from tests.faults import raises
from tests.flows import runs
from workers.coordination.roster import NOTHING
from workers.league import policy_pool

DIES = """
import os, sys

if 'workers.coordinator' in sys.orig_argv:
    before = os.fsync

    def fsync(file):
        before(file)
        marker = os.path.join(os.getcwd(), 'die')
        if os.path.exists(marker):
            os.remove(marker)
            os.kill(os.getpid(), 9)

    os.fsync = fsync
"""
"""A coordinator that is killed when the next thing is on the disk, and nobody has been told of it, where a file is."""

LEFT = {"actor-0", "coordinator", "learner-agent_0", "learner-third"}


def roster(folder: Path, *words: str) -> dict[str, Any]:
    """What the run was told so far, `words` included."""
    return RunHandle(folder / "run").roster(*words)


def told(folder: Path) -> dict[str, Any]:
    """The same; {} while nobody answers."""
    try:
        return roster(folder)
    except Timeout:
        return {}


def stopped(worker: runs.Worker, folder: Path, memory: Path) -> dict[str, Any]:
    """The summary of a run that is told to stop, with exact books and nothing left."""
    runs.kill(worker.popen.pid, signal.SIGINT)
    assert worker.wait() == 1
    summary = runs.summary_of(folder)
    assert summary["segments"]["unexplained"] == 0
    assert runs.balanced(summary["segments"])
    assert runs.files(memory) == []
    return summary


def counted(folder: Path, name: str, of: str) -> float:
    """The counter called so, summed over the lives of a worker."""
    return sum(read_counters(page).get(name, 0.0) for page in (folder / "run" / "counters").glob(f"{of}.*"))


def newest(folder: Path, policy: str, measure: str) -> float | None:
    """As it was measured last."""
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1]).get(policy, {}).get(measure) if lines else None


def test_a_command_holds_whose_coordinator_is_killed_before_it_tells_anybody(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    data = runs.paced(tmp_path, 10**8, pause=0.002, num_learner_processes=1)
    command = ["coordinator", "--open", str(runs.write(data, tmp_path)), "--run-dir", str(tmp_path / "run"), "--bind"]
    with ExitStack() as stack:
        with monkeypatch.context() as mortal:
            mortal.setattr(runs, "EXTRA_PATH", str(tmp_path / "site"))
            first = stack.enter_context(runs.started([*command, "127.0.0.1:0"], tmp_path, "first"))
        runs.until((tmp_path / "run" / "coordinator.json").exists, what="the coordinator is up")
        address = json.loads((tmp_path / "run" / "coordinator.json").read_text())["address"]
        for role in ("learner", "actor"):
            stack.enter_context(runs.started([role, "--coordinator", address], tmp_path, role))
        runs.until(lambda: newest(tmp_path, "agent_0", "learning_rate"), what="it learns")
        before = runs.workers_of(tmp_path)
        (tmp_path / "die").touch()
        with raises(Timeout, "roster_command_unanswered"):
            roster(tmp_path, "set", "agent_0", "learning_rate=0.125")
        assert first.wait() == -signal.SIGKILL
        assert newest(tmp_path, "agent_0", "learning_rate") != 0.125
        second = stack.enter_context(runs.started([*command, address.removeprefix("tcp://")], tmp_path, "second"))
        now = runs.until(lambda: told(tmp_path), what="another coordinator")
        assert now["rates"] == {"agent_0": 0.125}
        assert [one["number"] for one in now["commands"]] == [1]
        runs.until(lambda: newest(tmp_path, "agent_0", "learning_rate") == 0.125, what="the rate")
        assert newest(tmp_path, "agent_1", "learning_rate") != 0.125
        after = runs.workers_of(tmp_path)
        assert after.pop("coordinator") != before.pop("coordinator")
        assert after == before
        runs.kill(second.popen.pid, signal.SIGINT)
        assert second.wait() == 9
    assert runs.balanced(runs.summary_of(tmp_path)["segments"])
    assert runs.files(memory_dir) == []


def test_a_frozen_policy_acts_on_with_its_weights_also_when_its_learner_is_killed(
    tmp_path: Path, memory_dir: Path
) -> None:
    def made(policy: str) -> float:
        return counted(tmp_path, f"steps_made.{policy}", f"learner-{policy}")

    def unread() -> float:
        return counted(tmp_path, "dropped.frozen.agent_0", "learner-agent_0")

    with runs.training(runs.paced(tmp_path, 10**8, pause=0.001), tmp_path) as worker:
        runs.until(lambda: made("agent_0") and made("agent_1"), what="both learn")
        roster(tmp_path, "set", "agent_0", "learning_rate=0.125")
        assert roster(tmp_path, "freeze", "agent_0")["frozen"] == ["agent_0"]
        runs.until(unread, what="it is frozen")
        stood, other, settled = made("agent_0"), made("agent_1"), unread()
        runs.until(lambda: unread() > settled + 40 and made("agent_1") > other + 10, what="the run goes on")
        assert made("agent_0") == stood
        checkpoints = tmp_path / "run" / "checkpoints" / "agent_0"
        runs.until(lambda: (checkpoints / f"{stood:.0f}").exists(), what="a checkpoint has what it learned")

        runs.kill(runs.workers_of(tmp_path)["learner-agent_0"])
        settled = unread()
        runs.until(lambda: unread() > settled + 20, what="its next learner does the same")
        assert made("agent_0") == stood

        assert roster(tmp_path, "thaw", "agent_0")["frozen"] == []
        runs.until(lambda: made("agent_0") > stood, what="it learns on")
        runs.until(lambda: newest(tmp_path, "agent_0", "learning_rate") == 0.125, what="as it was told before")
        summary = stopped(worker, tmp_path, memory_dir)
    assert summary["segments"]["dropped"]["frozen"] >= settled
    assert [one["command"] for one in roster(tmp_path)["commands"]] == ["set", "freeze", "thaw"]


def test_an_agent_that_is_given_to_another_policy_stays_there_also_when_its_actor_is_killed(
    tmp_path: Path, memory_dir: Path
) -> None:
    def received(policy: str) -> float:
        return counted(tmp_path, f"received.{policy}", "learner-0")

    def stands(policy: str, other: str) -> bool:
        """Whether what is made from now on is for the other one."""
        before, goes_on = received(policy), received(other)
        runs.until(lambda: received(other) > goes_on + 40, what=f"{other} is trained")
        return received(policy) == before

    data = runs.paced(tmp_path, 10**8, pause=0.001, num_learner_processes=1)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: received("agent_0") and received("agent_1"), what="both are trained")
        assert roster(tmp_path, "assign", "agent_1", "agent_0")["agents"] == {"agent_1": "agent_0"}
        runs.until(lambda: stands("agent_1", "agent_0"), what="nobody plays for agent_1")
        pid = runs.workers_of(tmp_path)["actor-0"]
        runs.kill(pid)
        runs.until(lambda: runs.workers_of(tmp_path).get("actor-0", pid) != pid, what="its next actor")
        assert stands("agent_1", "agent_0")
        roster(tmp_path, "assign", "agent_1", "agent_1")
        before = received("agent_1")
        runs.until(lambda: received("agent_1") > before + 20, what="it has its agent again")
        stopped(worker, tmp_path, memory_dir)


@pytest.mark.parametrize("transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_policy_with_another_algorithm_joins_plays_and_goes_and_nobody_is_started_again(
    tmp_path: Path, memory_dir: Path, transport: str
) -> None:
    def received(policy: str) -> float:
        return counted(tmp_path, f"received.{policy}", f"learner-{policy}")

    def process(policy: str) -> int | None:
        return runs.workers_of(tmp_path).get(f"learner-{policy}")

    data = runs.paced(tmp_path, 10**8, pause=0.001, transport=transport)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: received("agent_0") and received("agent_1"), what="both are trained")
        before = runs.workers_of(tmp_path)
        words = "algorithm.name=dqn", "algorithm.learning_starts=100", "algorithm.buffer_capacity=2000"
        roster(tmp_path, "add", "third", "agent_1", *words, "network.hidden=[24]")
        runs.until(lambda: process("third"), what="its learner")
        roster(tmp_path, "assign", "agent_1", "third")
        runs.until(lambda: newest(tmp_path, "third", "train_steps"), what="it learns")
        runs.until(lambda: newest(tmp_path, "third", "return") is not None, what="its curve")
        with raises(ConfigurationError, "roster_policy_not_retired"):
            roster(tmp_path, "retire", "third")
        roster(tmp_path, "retire", "agent_1")
        runs.until(lambda: process("agent_1") is None, what="the learner of the other one has gone")
        assert not [file for file in runs.files(memory_dir) if "-agent_1." in str(file)]
        assert [*(tmp_path / "run" / "checkpoints" / "agent_1").iterdir()]
        stood = received("agent_1")

        actor = runs.workers_of(tmp_path)["actor-0"]
        trained = received("third")
        assert {name: pid for name, pid in before.items() if name != "learner-agent_1"} == {
            name: pid for name, pid in runs.workers_of(tmp_path).items() if name != "learner-third"
        }
        runs.kill(actor)
        runs.kill(runs.workers_of(tmp_path)["learner-third"])
        runs.until(
            lambda: received("third") > trained + 40, what="the next actor plays it, and the next learner learns"
        )
        assert received("agent_1") == stood
        roster(tmp_path, "add", "fourth", "agent_0")
        roster(tmp_path, "assign", "agent_1", "fourth")
        runs.until(lambda: received("fourth"), what="another one")
        roster(tmp_path, "retire", "third")
        runs.until(lambda: process("third") is None, what="it has gone")
        runs.kill(worker.popen.pid, signal.SIGINT)
        assert worker.wait() == 1
    summary = runs.summary_of(tmp_path)
    assert summary["segments"]["unexplained"] == 0
    assert runs.balanced(summary["segments"])
    assert {"third", "fourth", "agent_0", "agent_1"} <= summary["train_steps"].keys()
    assert summary["restarts"] == {"actor-0": 1, "learner-third": 1}
    assert runs.files(memory_dir) == []


def test_a_run_that_goes_on_has_the_policies_that_joined_it_and_not_those_that_went(
    tmp_path: Path, memory_dir: Path
) -> None:
    def received(policy: str) -> float:
        return counted(tmp_path, f"received.{policy}", f"learner-{policy}")

    def settles(before: float) -> None:
        runs.until(lambda: received("third") > before + 20, what="it is trained")
        runs.until(lambda: {*runs.workers_of(tmp_path)} == LEFT, what="who is left")

    data = runs.paced(tmp_path, 10**8, pause=0.001)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: received("agent_1"), what="the one that is to go is trained")
        roster(tmp_path, "add", "third", "agent_1")
        roster(tmp_path, "assign", "agent_1", "third")
        roster(tmp_path, "retire", "agent_1")
        settles(0)
        stopped(worker, tmp_path, memory_dir)
    with runs.training(data, tmp_path) as worker:
        settles(received("third"))
        assert stopped(worker, tmp_path, memory_dir)["restarts"] == {}


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_no_more_episodes_begin_in_a_world_without_a_share(tmp_path: Path, memory_dir: Path, processes: int) -> None:
    def episodes(member: str) -> float:
        return counted(tmp_path, f"episodes.agent_0/{member}", "actor-0")

    hunt = {"id": "treasure_hunt", "settings": {"width": 7, "height": 7, "turns": 4}}
    members = {"members": {"easy": hunt, "hard": hunt}, "prior": {"easy": 1.0, "hard": 1.0}}
    data = runs.config(steps=10**8, num_learner_processes=1)
    data["environment"] = {"copies": 8, "processes": processes, **members}
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: episodes("easy") and episodes("hard"), what="both are played")
        assert roster(tmp_path, "worlds", "easy", "share=0")["shares"] == {"easy": 0.0}

        def over() -> bool:
            easy, hard = episodes("easy"), episodes("hard")
            runs.until(lambda: episodes("hard") > hard + 8, what="the other is played")
            return episodes("easy") == easy

        runs.until(over, what="it is played no more")
        stopped(worker, tmp_path, memory_dir)


@pytest.mark.slow
def test_a_player_of_a_league_that_is_frozen_is_met_as_it_is_and_the_league_goes_on(
    tmp_path: Path, memory_dir: Path
) -> None:
    def members(player: str) -> int:
        return len(policy_pool.entries(tmp_path / "run", player))

    players = {"agent_0": {"opponents": ["agent_1"]}, "agent_1": {"opponents": ["agent_0"]}}
    league = {"snapshot_every": 800, "size": 64, "latest": 0.5, "players": players}
    data = runs.paced(tmp_path, 60_000, pause=0.002, num_learner_processes=1, league=league)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: members("agent_0") > 1 and members("agent_1") > 1, what="both have members")
        roster(tmp_path, "freeze", "agent_0")
        runs.until(lambda: counted(tmp_path, "dropped.frozen.agent_0", "learner-0"), what="it is frozen")
        stood, other = members("agent_0"), members("agent_1")
        runs.until(lambda: members("agent_1") > other + 2, what="the other one joins on")
        assert members("agent_0") == stood
        roster(tmp_path, "thaw", "agent_0")
        runs.until(lambda: members("agent_0") > stood, what="it joins again")
        stopped(worker, tmp_path, memory_dir)


class _Told:
    """What a run of six policies in three worlds was told, and what should have come of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.draw, self.count = folder, random.Random(0), 0
        self.state: dict[str, Any] = {**NOTHING}
        self.died: set[str] = set()
        """Commands of which a coordinator died."""

    @property
    def joined(self) -> list[str]:
        """Policies that joined and are there."""
        return [name for name in self.state["added"] if name not in self.state["retired"]]

    @property
    def idle(self) -> list[str]:
        """Those of them that play nothing."""
        return [name for name in self.joined if name not in self.state["agents"].values()]

    def words(self, verb: str) -> list[str]:
        """One command that can be followed, and what it makes of the state."""
        state, policies = self.state, [f"agent_{number}" for number in range(6)]
        if verb == "set":
            policy, rate = self.draw.choice(policies), self.draw.choice([1e-3, 1e-4, 0.0])
            state["rates"] = {**state["rates"], policy: rate}
            return [verb, policy, f"learning_rate={rate}"]
        if verb == "worlds":
            world, share = self.draw.choice(["one", "two", "three"]), self.draw.choice([0.5, 1.0, 2.0])
            state["shares"] = {**state["shares"], world: share}
            return [verb, world, f"share={share}"]
        if verb == "add":
            name, agent = f"new_{len(state['added'])}", self.draw.choice(policies)
            state["added"] = {**state["added"], name: {"agent": agent, "policy": {"algorithm": {"name": "impala"}}}}
            return [verb, name, agent, "algorithm.name=impala"]
        if verb == "retire":
            policy = self.draw.choice(self.idle)
            state["retired"] = [*state["retired"], policy]
            return [verb, policy]
        if verb == "assign":
            played = {policy: policy for policy in policies} | state["agents"]
            agent = self.draw.choice(policies)
            free = [p for p in [*policies, *self.joined] if p != played[agent] and [*played.values()].count(p) < 2]
            policy = self.draw.choice(free)
            state["agents"] = {**state["agents"], agent: policy}
            return [verb, agent, policy]
        frozen = state["frozen"]
        policy = self.draw.choice(frozen if verb == "thaw" else [one for one in policies if one not in frozen])
        state["frozen"] = sorted({*frozen} ^ {policy})
        return [verb, policy]

    def give(self, verb: str, dies: bool) -> None:
        """Tells the run, whose coordinator `dies` of it."""
        if verb == "thaw" and not self.state["frozen"]:
            verb = "freeze"
        if verb == "retire" and not self.idle:
            verb = "add"
        words, self.count = self.words(verb), self.count + 1
        if not dies:
            roster(self.folder, *words)
            return
        self.died.add(verb)
        (self.folder / "die").touch()
        with raises(Timeout, "roster_command_unanswered"):
            roster(self.folder, *words)
        runs.until(lambda: told(self.folder), what="another coordinator")


@pytest.mark.slow
def test_a_run_of_six_policies_follows_fifty_commands_and_a_coordinator_dies_of_each_kind(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is not named goes on: the same processes, and steps at half of the usual pace at least but for moments."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.setattr(runs, "EXTRA_PATH", str(tmp_path / "site"))
    worlds = {"one": 5, "two": 10, "three": 15}
    settings = {"agents": 6, "observation": 8, "actions": 4}
    members = {
        name: {"id": "synthetic", "settings": {**settings, "episode_steps": steps}} for name, steps in worlds.items()
    }
    data = runs.config(steps=10**9, num_learner_processes=2, restarts=20)
    data["environment"] = {"copies": 8, "members": members, "prior": dict.fromkeys(worlds, 1.0)}
    made: list[tuple[float, float]] = []
    verbs = ["set", "freeze", "thaw", "assign", "worlds", "add", "retire"] * 7 + ["assign"]
    random.Random(1).shuffle(verbs)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: counted(tmp_path, "steps_made.agent_5", "learner-1"), what="all learn")
        before, run = runs.workers_of(tmp_path), _Told(tmp_path)
        to_die = {verb: verbs.index(verb, 25) for verb in dict.fromkeys(verbs)}
        for number, verb in enumerate(verbs):
            run.give(verb, dies=number in to_die.values())
            for _ in range(4):
                made.append((time.monotonic(), counted(tmp_path, "agent_steps", "actor-0")))
                time.sleep(0.25)
        now = roster(tmp_path)
        assert {name: now[name] for name in run.state} == run.state
        assert [one["number"] for one in now["commands"]] == [*range(1, 51)]
        after = runs.workers_of(tmp_path)
        assert after.pop("coordinator") != before.pop("coordinator")
        assert {name: after.get(name) for name in before} == before
        learners = {f"learner-{name}" for name in run.joined}
        runs.until(lambda: runs.workers_of(tmp_path).keys() - {*before, "coordinator"} == learners, what="who is left")
        gone = run.state["retired"]
        assert [one for one in runs.files(memory_dir) if any(f"-{name}." in str(one) for name in gone)] == []
        summary = stopped(worker, tmp_path, memory_dir)
    assert run.died == {*verbs}
    assert summary["roster"] == run.state
    assert summary["restarts"].get("coordinator", 0) >= len(run.died)
    rates = [(other - one) / (later - at) for (at, one), (later, other) in pairwise(made)]
    usual = sorted(rates)[len(rates) // 2]
    slow = [len(list(group)) for below, group in groupby(rates, lambda rate: rate < usual / 2) if below]
    assert max(slow, default=0) * 0.25 < 3, "nobody waits"
