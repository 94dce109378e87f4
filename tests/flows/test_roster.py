"""What real runs are told of their policies while they go on: it holds through the deaths of who follows it."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import statistics
import time
from bisect import bisect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import launch.cli.roster
from launch.local.run_handle import RunHandle
from protocol.control.run_summary import NO_COMMANDS
from protocol.errors import ConfigurationError, Timeout
from protocol.memory.shared_file import read_counters
from tests.faults import raises
from tests.flows import runs
from workers.coordination.roster_state import after
from workers.league import policy_pool
from workers.planning.league_plan import ADDED

DIES = """
import os, sys

if 'workers.coordinator' in sys.orig_argv:
    before = os.fsync

    def fsync(file):
        before(file)
        marker, history = (os.path.join(os.getcwd(), name) for name in ('die', 'run/history.jsonl'))
        if all(map(os.path.exists, (marker, history))) and os.path.sameopenfile(file, os.open(history, os.O_RDONLY)):
            os.remove(marker)
            os.kill(os.getpid(), 9)

    os.fsync = fsync
"""
"""A coordinator that is killed when the next command is on the disk, and nobody has been told of it, where a file is.
"""


def roster(folder: Path, *words: str, weights: Path | None = None) -> dict[str, Any]:
    """What the run was told so far, `words` included."""
    return RunHandle(folder / "run").roster(*words, weights=weights)


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
        living = runs.workers_of(tmp_path)
        assert living.pop("coordinator") != before.pop("coordinator")
        assert living == before
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


@pytest.mark.parametrize("names", [pytest.param("agent_{}", marks=pytest.mark.slow), "{}"])
def test_a_run_that_goes_on_has_the_policies_that_joined_it_and_not_those_that_went(
    tmp_path: Path, memory_dir: Path, names: str
) -> None:
    one, two = names.format(0), names.format(1)

    def received(policy: str) -> float:
        return counted(tmp_path, f"received.{policy}", f"learner-{policy}")

    def settles(before: float) -> None:
        runs.until(lambda: received("third") > before + 20, what="it is trained")
        left = {"actor-0", "coordinator", f"learner-{one}", "learner-third"}
        runs.until(lambda: {*runs.workers_of(tmp_path)} == left, what="who is left")

    data = runs.paced(tmp_path, 10**8, pause=0.001, agents={"agent_0": one, "agent_1": two})
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: received(two), what="the one that is to go is trained")
        roster(tmp_path, "add", "third", "agent_1")
        roster(tmp_path, "assign", "agent_1", "third")
        roster(tmp_path, "retire", two)
        settles(0)
        stopped(worker, tmp_path, memory_dir)
    with runs.training(data, tmp_path) as worker:
        settles(received("third"))
        assert stopped(worker, tmp_path, memory_dir)["restarts"] == {}


@pytest.mark.slow
def test_what_a_killed_actor_had_of_a_policy_that_goes_is_sent_by_the_next_one(
    tmp_path: Path, memory_dir: Path
) -> None:
    def waits() -> float:
        return sum(counted(tmp_path, f"{level}.agent_1", "actor-0") for level in ("backlog", "flight"))

    with runs.training(runs.paced(tmp_path, 10**8, pause=0.001, transport="tcp"), tmp_path) as worker:
        runs.until(lambda: counted(tmp_path, "received.agent_1", "learner-agent_1"), what="it is trained")
        roster(tmp_path, "add", "third", "agent_1")
        runs.until(lambda: counted(tmp_path, "version.third", "learner-third"), what="the next one has weights")
        workers = runs.workers_of(tmp_path)
        runs.kill(workers["learner-agent_1"], signal.SIGSTOP)
        runs.until(waits, what="nobody takes its segments")
        roster(tmp_path, "assign", "agent_1", "third")
        runs.kill(workers["actor-0"])
        roster(tmp_path, "retire", "agent_1")
        runs.kill(workers["learner-agent_1"], signal.SIGCONT)
        runs.until(lambda: "learner-agent_1" not in runs.workers_of(tmp_path), what="it has gone")
        assert not [file for file in runs.files(memory_dir) if "-agent_1." in str(file)]
        runs.until(lambda: counted(tmp_path, "received.third", "learner-third"), what="the next one is trained")
        summary = stopped(worker, tmp_path, memory_dir)
    assert summary["restarts"] == {"actor-0": 1}
    assert summary["segments"]["dropped"]["actor_lost"] == 0
    assert "event=predecessor_resent policy=agent_1" in (tmp_path / "run" / "logs" / "actor-0.log").read_text()


@pytest.mark.slow
def test_weights_from_a_file_are_learned_from_and_a_killed_learner_goes_on_with_what_it_made_of_them(
    tmp_path: Path, memory_dir: Path
) -> None:
    def version() -> float:
        return newest(tmp_path, "agent_0", "version") or 0.0

    def replaced() -> int:
        log = tmp_path / "run" / "logs" / "learner-agent_0.log"
        return log.read_text().count("event=weights_replaced")

    data = runs.paced(tmp_path, 10**8, pause=0.001, keep_checkpoints=10_000)
    data["policy"]["learning_rate"] = 1e-12
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: counted(tmp_path, "checkpoints.agent_1", "learner-agent_1"), what="it learns")
        mine, sent = (tmp_path / "run" / "checkpoints" / f"agent_{number}" for number in (0, 1))
        runs.until(lambda: sent.is_dir() and [*sent.glob("[0-9]*")], what="a checkpoint of the other one")
        file = next(sent.glob("[0-9]*")) / "weights.safetensors"
        bad = tmp_path / "bad"
        bad.write_bytes(b"weights")
        with raises(ConfigurationError, "start_not_safetensors"):
            roster(tmp_path, "replace", "agent_0", weights=bad)
        before = [load_file(file), load_file(max(mine.glob("[0-9]*")) / "weights.safetensors")]
        assert not torch.allclose(before[0]["policy_weight"], before[1]["policy_weight"])
        roster(tmp_path, "replace", "agent_0", weights=file)
        runs.until(replaced, what="it has them")
        pid = runs.workers_of(tmp_path)["learner-agent_0"]
        at = counted(tmp_path, "checkpoints.agent_0", "learner-agent_0")
        runs.until(lambda: counted(tmp_path, "checkpoints.agent_0", "learner-agent_0") > at, what="they are kept")
        runs.kill(pid)
        made = counted(tmp_path, "steps_made.agent_0", "learner-agent_0")
        runs.until(lambda: counted(tmp_path, "steps_made.agent_0", "learner-agent_0") > made + 10, what="the next one")
        roster(tmp_path, "add", "third", "agent_1", weights=file)
        roster(tmp_path, "assign", "agent_1", "third")
        runs.until(lambda: newest(tmp_path, "third", "train_steps"), what="who begins with them learns")
        summary = stopped(worker, tmp_path, memory_dir)
    assert replaced() == 1
    assert summary["starts"]["third"]["sha256"] == summary["roster"]["replaced"]["agent_0"]["sha256"]
    for policy in ("agent_0", "third"):
        folder = max((tmp_path / "run" / "checkpoints" / policy).iterdir(), key=lambda path: int(path.name))
        kept = load_file(folder / "weights.safetensors")
        acting = [name for name in kept if name.startswith("policy_")]
        assert acting
        assert all(torch.allclose(kept[name], before[0][name], atol=1e-6) for name in acting)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["sent", "tried"])
def test_a_coordinator_that_dies_as_weights_are_sent_or_tried_leaves_nothing_and_takes_them_the_next_time(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def replaced() -> dict[str, Any]:
        return dict(told(tmp_path).get("replaced", {}))

    def trials() -> list[psutil.Process]:
        """Of this run's coordinators, as they are tried."""
        name = "workers.coordination.trial"
        return [one for one in psutil.process_iter(["cmdline", "cwd"]) if name in (one.info["cmdline"] or ())]

    def kill() -> None:
        pid = runs.workers_of(tmp_path)["coordinator"]
        runs.kill(pid)
        runs.until(lambda: runs.workers_of(tmp_path).get("coordinator", pid) != pid, what="another coordinator")

    data = runs.paced(tmp_path, 10**8, pause=0.002, restarts=5, num_learner_processes=1, keep_checkpoints=10_000)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: counted(tmp_path, "checkpoints.agent_1", "learner-0"), what="it learns")
        place = tmp_path / "run" / "checkpoints" / "agent_1"
        runs.until(lambda: place.is_dir() and [*place.glob("[0-9]*")], what="a checkpoint")
        file = tmp_path / "weights.safetensors"
        shutil.copy(next(place.glob("[0-9]*")) / file.name, file)
        before = runs.workers_of(tmp_path)
        with monkeypatch.context() as parts, raises(Timeout, "roster_command_unanswered"):
            if moment == "sent":
                parts.setattr(launch.cli.roster, "_PART", file.stat().st_size // 3)
                parts.setattr(launch.cli.roster, "ask", dying(launch.cli.roster.ask, kill))
                roster(tmp_path, "replace", "agent_0", weights=file)
            else:
                with ThreadPoolExecutor(1) as other:
                    asked = other.submit(roster, tmp_path, "replace", "agent_0", weights=file)
                    (trial,) = runs.until(trials, what="they are tried")
                    kill()
                    asked.result()
                runs.until(lambda: not trial.is_running(), what="the trial ends with its coordinator")
        runs.until(lambda: told(tmp_path), what="it answers")
        assert replaced() == {}
        assert not [*(tmp_path / "run").glob("sent/*")]
        roster(tmp_path, "replace", "agent_0", weights=file)
        assert replaced()["agent_0"]["number"] == 1
        living = runs.workers_of(tmp_path)
        assert living.pop("coordinator") != before.pop("coordinator")
        assert living == before
        stopped(worker, tmp_path, memory_dir)


def dying(ask: Callable[..., bytes], kill: Callable[[], None]) -> Callable[..., bytes]:
    """Asks, and kills who is asked after the first answer."""
    asked = 0

    def answer(*arguments: Any) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 2:
            kill()
            raise ConnectionResetError
        return ask(*arguments)

    return answer


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


@pytest.mark.slow
def test_a_member_that_is_added_to_a_league_is_met_though_the_coordinator_and_the_learner_die_of_it(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the command is written, and before the player's learner has followed it."""

    def met() -> float:
        return counted(tmp_path, f"league.games.agent_1:agent_0/{ADDED}", "actor-0")

    def added() -> list[str]:
        entries = policy_pool.entries(tmp_path / "run", "agent_0")
        return [entry.name for entry in entries if entry.number >= ADDED]

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.setattr(runs, "EXTRA_PATH", str(tmp_path / "site"))
    players = {"agent_0": {"opponents": ["agent_1"]}, "agent_1": {"opponents": ["agent_0"]}}
    league = {"snapshot_every": 40_000, "size": 64, "players": players}
    data = runs.paced(tmp_path, 600_000, pause=0.002, restarts=5, keep_checkpoints=1_000, league=league)
    with runs.training(data, tmp_path) as worker:
        place = tmp_path / "run" / "checkpoints" / "agent_0"
        runs.until(lambda: place.is_dir() and [*place.glob("[0-9]*")], what="a checkpoint")
        file = tmp_path / "weights.safetensors"
        shutil.copy(next(place.glob("[0-9]*")) / file.name, file)
        learner = runs.workers_of(tmp_path)["learner-agent_0"]
        runs.kill(learner, signal.SIGSTOP)
        (tmp_path / "die").touch()
        with raises(Timeout, "roster_command_unanswered"):
            roster(tmp_path, "member", "agent_0", weights=file)
        assert added() == []
        runs.kill(learner)
        runs.until(added, what="it joins")
        runs.until(met, what="it is met")
        runs.kill(runs.workers_of(tmp_path)["learner-agent_0"])
        roster(tmp_path, "freeze", "agent_0")
        roster(tmp_path, "member", "agent_0", weights=file)
        runs.until(lambda: len(added()) > 1, what="another one joins a player that is frozen")
        summary = stopped(worker, tmp_path, memory_dir)
    assert added() == [f"agent_0/{ADDED}", f"agent_0/{ADDED + 1}"]
    logs = "".join(log.read_text() for log in (tmp_path / "run" / "logs").glob("learner-agent_0*.log"))
    assert logs.count("event=member_added") == 2
    games = {one["name"]: one["games"] for one in summary["league"]["members"]}
    assert games[f"agent_0/{ADDED}"] > 0
    assert [one["member"] for one in summary["roster"]["members"]["agent_0"]] == added()


class _Told:
    """What a run of six policies in three worlds was told, and what should have come of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.draw, self.count = folder, random.Random(0), 0
        self.state: dict[str, Any] = {**NO_COMMANDS}
        self.died: set[str] = set()
        """Commands of which a coordinator died."""
        self.weights, self.last = folder / "weights.safetensors", 0
        shutil.copy(next((folder / "run" / "checkpoints" / "agent_0").glob("[0-9]*")) / self.weights.name, self.weights)
        self.sha256 = hashlib.sha256(self.weights.read_bytes()).hexdigest()

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
        if verb == "replace":
            policy = self.draw.choice([*policies, *self.joined])
            state["replaced"] = {**state["replaced"], policy: {"number": self.count + 1, "sha256": self.sha256}}
            return [verb, policy]
        world = self.draw.choice(["one", "two", "three"])
        if verb == "settings":
            steps = {"episode_steps": self.draw.choice([one for one in range(4, 20) if one != self.last])}
            self.last = steps["episode_steps"]
            state["settings"] = {**state["settings"], world: steps}
            return ["worlds", world, f"episode_steps={self.last}"]
        if verb == "worlds":
            share = self.draw.choice([0.5, 1.0, 2.0])
            state["shares"] = {**state["shares"], world: share}
            return [verb, world, f"share={share}"]
        if verb == "add":
            name, agent = f"new_{len(state['added'])}", self.draw.choice(policies)
            told = {"agent": agent, "policy": {"algorithm": {"name": "impala"}}}
            state["added"] = {**state["added"], name: told}
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
        words, weights = self.words(verb), self.weights if verb == "replace" else None
        self.count += 1
        if not dies:
            roster(self.folder, *words, weights=weights)
            return
        self.died.add(verb)
        (self.folder / "die").touch()
        with raises(Timeout, "roster_command_unanswered"):
            roster(self.folder, *words, weights=weights)
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
    data = runs.config(steps=10**9, num_learner_processes=2, restarts=20, keep_checkpoints=1_000)
    data["environment"] = {"copies": 8, "members": members, "prior": dict.fromkeys(worlds, 1.0)}
    made: list[tuple[float, float]] = []
    each = ["set", "freeze", "thaw", "assign", "worlds", "settings", "add", "retire", "replace"]
    verbs = [*each * 5, "freeze", "add", "assign", "add", "thaw"]
    random.Random(1).shuffle(verbs)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: counted(tmp_path, "steps_made.agent_5", "learner-1"), what="all learn")
        runs.until(lambda: counted(tmp_path, "checkpoints.agent_0", "learner-0"), what="a checkpoint")
        before, run, began = runs.workers_of(tmp_path), _Told(tmp_path), time.monotonic()
        watch(made, tmp_path, 30.0)
        to_die = {verb: number for number, verb in enumerate(verbs)}  # its last one
        for number, verb in enumerate(verbs):
            run.give(verb, dies=number in to_die.values())
            watch(made, tmp_path, 1.0)
        now = roster(tmp_path)
        for told in now["replaced"].values():
            del told["checksum"]
        assert {name: now[name] for name in run.state} == run.state
        assert [one["number"] for one in now["commands"]] == [*range(1, 51)]
        living = runs.workers_of(tmp_path)
        assert living.pop("coordinator") != before.pop("coordinator")
        assert {name: living.get(name) for name in before} == before
        learners = {f"learner-{name}" for name in run.joined}
        runs.until(lambda: runs.workers_of(tmp_path).keys() - {*before, "coordinator"} == learners, what="who is left")
        gone = run.state["retired"]
        assert [one for one in runs.files(memory_dir) if any(f"-{name}." in str(one) for name in gone)] == []
        summary = stopped(worker, tmp_path, memory_dir)
    assert run.died == {*verbs}
    again = NO_COMMANDS
    for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines():
        again = after(again, json.loads(line), ())
    assert summary["roster"] == again
    assert summary["restarts"].get("coordinator", 0) >= len(run.died)
    at, rates = [one for one, _ in made[1:]], [(b - a) / (later - one) for (one, a), (later, b) in pairwise(made)]
    below = [
        rate < statistics.median(rates[bisect(at, moment - 30.0) : number]) / 2 if moment > began + 30.0 else False
        for number, (moment, rate) in enumerate(zip(at, rates, strict=True))
    ]
    slow = [sum(1 for _ in group) for low, group in groupby(below) if low]
    usual = statistics.median(one for one, moment in zip(rates, at, strict=True) if moment <= began + 30.0)
    figures = f"{at[-1] - began:.0f} s, {summary['segments']['produced']} segments, usual {usual:.0f} steps/s"
    assert max(slow, default=0) * 0.25 < 3, f"nobody waits: {figures}, lowest {min(rates):.0f}"


def watch(made: list[tuple[float, float]], folder: Path, seconds: float) -> None:
    """Adds (moment, agent steps) four times a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        made.append((time.monotonic(), counted(folder, "agent_steps", "actor-0")))
        time.sleep(0.25)
