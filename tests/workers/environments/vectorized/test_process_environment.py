"""Copies in processes: the same turns, groups that alternate, and nothing lost or left behind by any death."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from protocol.config.run import PPO, EnvironmentConfig, PolicyConfig, parse_run
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.experience.layout import segment_layout
from tests.benchmarks import overlap
from tests.faults import raises
from tests.tools import ROOT
from tests.workers.environments.vectorized.process_worlds import ACTIONS, Ragged
from tests.workers.scripted import Performer, Sender, never, seat
from workers.environments.base import Environment, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.vectorized import process_environment
from workers.environments.vectorized.process_environment import ProcessEnvironment, partition_seed

pytestmark = pytest.mark.usefixtures("forked_steppers")
FILE = "tests/workers/environments/vectorized/process_worlds.py"
WORLDS = "tests.workers.environments.vectorized.process_worlds"
Told = dict[tuple[str, int, int], tuple]
"""(present or outcome, agent, copy) -> everything that was told of it."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_environment, "_BACK_OFF", 0.01)
    monkeypatch.setattr(process_environment, "_END_SECONDS", 1.0)


def config(id: str, copies: int, processes: int = 1, groups: int = 1, **rest: Any) -> EnvironmentConfig:
    if ":" not in id and id[0].isupper():
        id = f"{WORLDS}:{id}"
    return EnvironmentConfig(id=id, copies=copies, processes=processes, async_factor=groups, **rest)


@contextmanager
def started(id: str, copies: int, processes: int = 1, groups: int = 1, **rest: Any) -> Iterator[ProcessEnvironment]:
    environment = make(config(id, copies, processes, groups, **rest))
    assert isinstance(environment, ProcessEnvironment)
    try:
        yield environment
    finally:
        environment.close()


def actions_for(turn: Turn, rows: int, salt: int, n: int = ACTIONS) -> list[NDArray[np.int64]]:
    """An action of `n` for each agent and copy; with enough of them, one that no other has at this time."""
    every = np.arange(rows)
    return [(7 * (every if p.copies is None else p.copies) + 31 * p.agent + salt) % n for p in turn.present]


def told(turn: Turn, first: int = 0) -> Told:
    """All that a turn says, agent by agent and copy by copy from `first` on."""
    said: Told = {}
    for kind, entries in (("present", turn.present), ("outcome", turn.outcomes)):
        for one in entries:
            copies = one.copies if one.copies is not None else np.arange(len(one.reward))
            lasts = [one.final_observation, one.final_common]
            finals = {
                int(k): [last if last is None else last[i].tolist() for last in lasts]
                for i, k in enumerate(one.final_index)
            }
            for i, copy in enumerate(copies):
                seen = one.observation[i].tolist() if kind == "present" else None  # type: ignore[union-attr]
                ends = (bool(one.terminated[i]), bool(one.truncated[i]), finals.get(i))
                said[kind, one.agent, first + int(copy)] = (seen, float(one.reward[i]), *ends)
    return said


def pid_of(index: int) -> int:
    """Of the process with that number."""
    for child in psutil.Process().children():
        command = [word for word in child.cmdline() if word]  # a fork has room for more
        if "workers.environments.process_main" in command and command[-2] == str(index):
            return child.pid
    raise AssertionError(f"no process {index}")


HUNT = {"height": 6, "width": 7, "turns": 7, "agents": 3, "spawn": 0.2, "map": True, "desynchronize": True}


@pytest.mark.parametrize(
    ("id", "rest"),
    [
        ("Ragged", {}),
        ("treasure_hunt", {"settings": HUNT, "turn_mode": "simultaneous"}),
    ],
)
def test_one_process_and_one_group_give_the_turns_of_the_same_environment_in_this_process(id: str, rest: Any) -> None:
    """J9: also what all agents see beside their own observations."""
    here = CheckedEnvironment(make(config(id, 4, processes=0, **rest)))
    with started(id, 4, **rest) as there:
        assert there.world == here.world
        n = here.world.agents[0].action.n
        turn, same = here.reset(11), there.reset(11)
        for t in range(60):
            assert (told(turn), turn.env_steps) == (told(same), same.env_steps)
            assert [p.agent for p in turn.present] == [p.agent for p in same.present]
            np.testing.assert_array_equal(turn.common, same.common)
            turn, same = here.step(actions_for(turn, 4, t, n)), there.step(actions_for(same, 4, t, n))
    here.close()


def test_groups_alternate_and_tell_what_their_shares_tell_alone_however_ragged_K1_K2() -> None:
    """Each process's share of a group's contiguous copies is an environment of its own with a seed of its own, never
    more than a step ahead of the others; reset begins anew even while a group is being stepped."""
    share, processes, groups = 3, 2, 3
    rows = share * processes
    alone = [[CheckedEnvironment(Ragged(share)) for _ in range(processes)] for _ in range(groups)]
    with started("Ragged", rows * groups, processes, groups) as environment:
        for seed in (5, 9):
            turn = environment.reset(seed)
            parts = [
                [one.reset(partition_seed(seed, g * rows + i * share)) for i, one in enumerate(group)]
                for g, group in enumerate(alone)
            ]
            for t in range(40 * groups):
                group = t % groups
                expected: Told = {}
                for i, part in enumerate(parts[group]):
                    expected |= told(part, i * share)
                assert turn.group == group
                assert told(turn) == expected
                assert turn.env_steps == sum(part.env_steps for part in parts[group])
                assert all(p.copies is None or (np.diff(p.copies) > 0).all() for p in turn.present)
                actions = actions_for(turn, rows, t)
                by_copy = {
                    (p.agent, int(copy)): actions[k][i]
                    for k, p in enumerate(turn.present)
                    for i, copy in enumerate(np.arange(rows) if p.copies is None else p.copies)
                }
                for i, part in enumerate(parts[group]):
                    own = []
                    for p in part.present:
                        copies = range(share) if p.copies is None else p.copies.tolist()
                        own.append(np.array([by_copy[p.agent, i * share + copy] for copy in copies]))
                    parts[group][i] = alone[group][i].step(own)
                turn = environment.step(actions)


def lose(index: int, how: signal.Signals) -> None:
    os.kill(pid_of(index), how)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_is_replaced_and_its_episodes_end_as_truncated(
    how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on, its copies begin anew with another seed, and a counter and a line tell which they are."""
    timeout = 60.0 if how == signal.SIGKILL else 2.0
    with started("Diary", 8, processes=2, groups=2, step_timeout=timeout) as environment:
        turn = environment.reset(3)
        for t in range(5):
            turn = environment.step(actions_for(turn, 4, t))
        before = turn.present[0].observation.copy()
        assert turn.group == 1
        lose(1, how)
        with caplog.at_level(logging.WARNING):
            other = environment.step(actions_for(turn, 4, 5))
            after = environment.step(actions_for(other, 4, 6))
    assert environment.restarts == 1
    (line,) = [r.getMessage() for r in caplog.records if "environment_restarted" in r.getMessage()]
    reason = "it was killed by SIGKILL in step" if how == signal.SIGKILL else "it did not answer within 2 s"
    assert line == f'event=environment_restarted copies=2-3,6-7 restart=1 of=3 reason="{reason}"'
    present = after.present[0]
    assert present.truncated.tolist() == [False, False, True, True]
    assert not present.terminated.any()
    assert present.reward.tolist() == [*((7 * np.arange(2) + 5) % ACTIONS), 0, 0]
    assert present.final_index.tolist() == [2, 3]
    assert present.final_observation is not None
    assert present.final_observation.tolist() == before[2:].tolist()
    assert present.observation[:, 2].tolist() == [3, 3, 0, 0]
    seeds = [partition_seed(3, 4), partition_seed(3, 6, restarts=1)]
    assert present.observation[:, 0].tolist() == [seeds[0] % 1000] * 2 + [seeds[1] % 1000] * 2


def test_every_action_gets_one_end_of_its_row_whoever_dies_when() -> None:
    """What an actor relies on: nothing is told of an action never made, and none waits forever."""
    rows, groups, kills = 4, 2, 3
    chance = np.random.default_rng(0)
    with started("Ragged", 8, processes=2, groups=groups, restarts=kills) as environment:
        waiting = np.zeros((groups, len(environment.world.agents), rows), np.bool_)
        turn = environment.reset(1)
        ends = 0
        for t in range(120):
            for outcome in turn.outcomes:
                open_ = waiting[turn.group, outcome.agent]
                assert open_[outcome.copies].all()
                open_[outcome.copies[outcome.terminated | outcome.truncated]] = False
                ends += int(outcome.truncated.sum())
            for present in turn.present:
                open_ = waiting[turn.group, present.agent]
                here = np.arange(rows) if present.copies is None else present.copies
                assert not (present.terminated | present.truncated)[~open_[here]].any()
                assert not present.reward[~open_[here]].any()
                open_[here] = True
                ends += int(present.truncated.sum())
            if t % 40 == 20:
                time.sleep(chance.random() * 2e-3)
                lose(int(chance.integers(2)), signal.SIGKILL)
            turn = environment.step(actions_for(turn, rows, t))
        assert environment.restarts == kills
        assert ends


def test_the_seats_of_an_actor_write_no_row_that_mixes_what_was_before_a_crash_with_what_came_after_it_K4() -> None:
    """One seat for each agent and group. Each row's reward is for its own action; where a process died the row says
    truncated, its bootstrap observation is its own, and the next row is another episode's first."""
    rows, policy = 4, PolicyConfig(algorithm=PPO(), segment_length=6)
    with started("Diary", 8, processes=2, groups=2) as environment:
        layout = segment_layout(environment.world, environment.world.places[0], policy)
        senders = [Sender(layout, rows, 6) for _ in range(2)]
        seats = [seat(sender, Performer(environment.world), rows, rows * group) for group, sender in enumerate(senders)]
        turn = environment.reset(3)
        for call in range(60):
            if call in (21, 40):
                lose(1, signal.SIGKILL)
            turn = environment.step([seats[turn.group].act(present, never) for present in turn.present])
    for sender in senders:
        columns = sender.ring.columns
        cut = [(slot, row) for slot, row in zip(*np.nonzero(columns["truncated"][:16, :6]), strict=True)]
        assert len(cut) == 2 * 2
        assert {slot % rows for slot, _ in cut} == {2, 3}
        for slot in range(16):
            for row in range(6):
                seen, following = columns["observation"][slot, row], columns["observation"][slot, row + 1]
                if (slot, row) in cut:
                    (entry,) = np.flatnonzero(columns["final_row"][slot] == row)
                    assert columns["final_observation"][slot, entry].tolist() == seen.tolist()
                    assert columns["reward"][slot, row] == 0
                    assert following[2] == 0
                else:
                    assert columns["reward"][slot, row] == columns["action"][slot, row]
                    assert following.tolist() == [seen[0], seen[1], seen[2] + 1]


def line_of(how: str) -> int:
    """Where `Dying` does that."""
    lines = (ROOT / FILE).read_text().splitlines()
    return 2 + next((i for i, line in enumerate(lines) if f'self._how == "{how}"' in line), -3)


def play_on(environment: Environment, turn: Turn, rows: int) -> None:
    """Ten more steps."""
    for t in range(10):
        turn = environment.step(actions_for(turn, rows, t))


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("exit", f"it ended with os._exit(7) in _die ({FILE}:{{line}})"),
        ("segfault", f"it was killed by SIGSEGV in _die ({FILE}:{{line}})"),
        ("silence", "it ended with exit code 5 in step"),
        ("spin", "it did not answer within 0.5 s"),
    ],
)
def test_without_a_restart_left_it_is_an_error_that_says_how_the_process_ended(how: str, end: str) -> None:
    end = end.format(line=line_of(how))
    with started("Dying", 2, restarts=0, step_timeout=0.5, settings={"how": how}) as environment:
        turn = environment.reset(0)
        with raises(
            EnvironmentFault, "environment_restarts_exhausted", environment=f"{WORLDS}:Dying", reason=end, count=0
        ):
            play_on(environment, turn, 2)


def test_every_process_has_a_budget_of_its_own_and_waits_longer_before_each_restart_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(process_environment, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr(process_environment, "_LONGEST_BACK_OFF", 0.03)
    with started("Diary", 4, processes=2, restarts=3) as environment:
        turn = environment.reset(0)
        for lost in (0, 1, 1, 1):
            lose(lost, signal.SIGKILL)
            turn = environment.step(actions_for(turn, 4, 0))
        assert environment.restarts == 4
        lose(1, signal.SIGKILL)
        facts = {
            "copies": "2-3",
            "reason": "it was killed by SIGKILL in step",
            "count": 3,
            "key": "environment.restarts",
        }
        with raises(EnvironmentFault, "environment_restarts_exhausted", **facts):
            environment.step(actions_for(turn, 4, 0))
    assert waits == pytest.approx([0.01, 0.01, 0.02, 0.03]), "doubled, up to the longest"


def test_a_process_has_the_time_of_a_step_for_making_its_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what it takes to start; then the run ends in a sentence instead of waiting."""
    monkeypatch.setenv("ROOKERY_FORK", "0")
    monkeypatch.setattr(process_environment, "_START_SECONDS", 0.0)
    with started("Diary", 2, step_timeout=30) as environment:
        assert environment.reset(0).present
    with raises(
        EnvironmentFault,
        "environment_process_not_started",
        environment=f"{WORLDS}:Diary",
        copies="0-1",
        reason="it did not answer within 0.01 s",
    ):
        make(config("Diary", 2, 1, step_timeout=0.01))


@pytest.mark.parametrize(
    ("how", "reason"), [("raise", "RuntimeError: the world broke"), ("interrupt", "Interrupted: out of luck")]
)
def test_what_an_environment_does_wrong_is_told_as_if_it_ran_here_and_at_once(how: str, reason: str) -> None:
    """With the place, and a traceback of the world's frames without ours."""
    settings = {"how": how}
    here = CheckedEnvironment(make(config("Dying", 2, processes=0, settings=settings)))
    said = []
    with started("Dying", 2, settings=settings) as there:
        for environment in (here, there):
            turn = environment.reset(0)
            facts = {"method": "step", "reason": reason, "function": "_die", "line": line_of(how)}
            with raises(EnvironmentFault, "environment_raised", **facts) as caught:
                play_on(environment, turn, 2)
            said.append(caught.value.coded)  # type: ignore[attr-defined]
            trace = caught.value.traceback  # type: ignore[attr-defined]
            assert FILE in trace
            assert "checked_environment.py" not in trace
            assert "checked_environment.py" in "".join(traceback.format_exception(caught.value))
        assert there.restarts == 0
    assert said[0] == said[1]


def test_a_crash_that_comes_again_at_the_same_place_at_once_is_not_tried_a_third_time() -> None:
    with started("Dying", 2, settings={"how": "exit"}) as environment:
        turn = environment.reset(0)
        with raises(EnvironmentFault, "environment_restarts_exhausted", count=1, limit=3):
            for _ in range(9):
                turn = environment.step(actions_for(turn, 2, 0))


def test_a_world_that_cannot_be_made_is_the_configurations_fault_in_the_same_words() -> None:
    said = []
    for count in (0, 1):
        with raises(ConfigurationError, "unknown_environment_setting") as caught:
            make(config("treasure_hunt", 2, count, settings={"agnets": 3}))
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "agnets" in said[0]


def test_processes_that_step_different_worlds_are_refused() -> None:
    with raises(EnvironmentFault, "environment_processes_differ", environment=f"{WORLDS}:Unlike"):
        make(config("Unlike", 2, processes=2))


@pytest.mark.parametrize(
    ("keys", "kind", "facts"),
    [
        (
            {"copies": 30, "processes": 4, "async_factor": 2},
            "copies_do_not_divide",
            {"key": "environment.copies", "copies": 30, "groups": 2, "processes": 4, "choices": "24 or 32"},
        ),
        ({"copies": 3, "processes": 4}, "copies_do_not_divide", {"key": "environment.copies", "choices": "4"}),
        ({"async_factor": 2}, "async_factor_without_processes", {"key": "environment.async_factor", "value": 2}),
    ],
)
def test_copies_that_cannot_be_divided_are_refused_with_the_fix_K11(
    keys: dict[str, int], kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts):
        parse_run({"environment": keys})


def test_what_will_not_end_is_killed_at_close(monkeypatch: pytest.MonkeyPatch, memory_dir: Path) -> None:
    monkeypatch.setattr(process_environment, "_END_SECONDS", 0.2)
    with started("Diary", 2) as environment:
        stopped = pid_of(0)
        lose(0, signal.SIGSTOP)
        assert list(memory_dir.iterdir()) == []  # its memory has no name at any time that others could see
        del environment
    assert not psutil.pid_exists(stopped)


def test_what_a_world_started_dies_with_its_process() -> None:
    with started("Nest", 2) as environment:
        turn = environment.reset(0)
        (egg,) = psutil.Process(pid_of(0)).children()
        lose(0, signal.SIGKILL)
        environment.step(actions_for(turn, 2, 0))
        assert psutil.wait_procs([egg], timeout=60)[1] == []
        (egg,) = psutil.Process(pid_of(0)).children()
    assert psutil.wait_procs([egg], timeout=60)[1] == []


ORPHAN = """
import sys
import numpy as np
from protocol.config.run import EnvironmentConfig
from workers.environments.registry import make
environment = make(EnvironmentConfig.model_validate_json(sys.argv[1]))
turn = environment.reset(0)
print("going", flush=True)
while True:
    turn = environment.step([np.zeros(len(present.observation), np.int64) for present in turn.present])
"""


def test_nothing_outlives_an_actor_that_is_killed(memory_dir: Path) -> None:
    """Neither a process that hangs in a step and holds the interpreter's lock, nor one that is stopped."""
    asked = config("Dying", 4, processes=2, groups=2, settings={"how": "spin"}).model_dump_json()
    with subprocess.Popen([sys.executable, "-c", ORPHAN, asked], cwd=ROOT, stdout=subprocess.PIPE, text=True) as actor:
        assert actor.stdout is not None
        assert actor.stdout.readline() == "going\n"
        steppers = psutil.Process(actor.pid).children()
        assert len(steppers) == 2
        time.sleep(0.2)
        steppers[0].suspend()
        actor.kill()
    assert psutil.wait_procs(steppers, timeout=60)[1] == []
    assert list(memory_dir.iterdir()) == []


def test_stepping_one_group_overlaps_the_choice_of_anothers_actions_K10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ideal 2; both ways run in turns, and sleep far longer than a busy machine lets anybody wait for a processor."""
    monkeypatch.setattr(overlap, "_SLEEP", 0.05)
    monkeypatch.setattr(overlap, "_ROUNDS", 5)
    monkeypatch.setattr(overlap, "_PROCESSES", 1)
    assert overlap.overlap()["async.speedup"] >= 1.3
