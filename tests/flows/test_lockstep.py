"""Lock-step: the bits of a run do not depend on how many actors there are, nor on how segments travel (L1, S1)."""

from __future__ import annotations

import gc
import json
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launch.local.run_handle import RunHandle
from protocol.config.run import parse_run
from tests.flows import runs
from tests.tools import skip_or_fail
from workers.sequential import Sequential

WORLD = {"copies": 16, "settings": {"width": 9, "height": 9, "turns": 20}}


def in_step(algorithm: dict[str, Any] = runs.PPO, steps: int = 3_200, **keys: Any) -> dict[str, Any]:
    """16 copies in four blocks."""
    return runs.config(algorithm, steps=steps, **{"environment": WORLD, "schedule": "lockstep", "act_block": 4, **keys})


def bits(data: dict[str, Any], folder: Path, *arguments: str, seconds: float = runs.PATIENCE) -> dict[str, bytes]:
    """Every round's data, losses, returns and weights, and the last checkpoint of every policy."""
    folder.mkdir(exist_ok=True)
    result = runs.train(data, folder, *arguments, seconds=seconds)
    assert result.returncode == 0, result.stderr
    return found_in(folder)


def found_in(folder: Path) -> dict[str, bytes]:
    """The same of a run that has ended."""
    run = folder / "run"
    return {path.name: path.read_bytes() for path in (run / "rounds").iterdir()} | newest_checkpoints(run)


def newest_checkpoints(run: Path) -> dict[str, bytes]:
    """Weights and optimiser of each policy, at the end of the run in this folder."""
    found = {}
    for policy in (run / "checkpoints").iterdir():
        newest = max(policy.iterdir(), key=lambda path: int(path.name))
        for name in ("weights", "optimizer"):
            found[f"{policy.name}/{newest.name}/{name}"] = (newest / f"{name}.safetensors").read_bytes()
    return found


def here(data: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """The same of the sequential reference, in this process."""
    sequential = Sequential(parse_run(data), folder / "run")
    sequential.finish(sequential.run())
    del sequential
    gc.collect()  # its pages of counters
    return found_in(folder)


@pytest.mark.usefixtures("as_a_worker")
def test_two_actors_give_the_bits_of_the_sequential_reference_in_each_round_L1_L7(
    tmp_path: Path, memory_dir: Path
) -> None:
    """PPO beside IQN, with data, losses, gradients, values and weights of each round; another seed gives others."""
    data = in_step(policies={"agent_1": {"algorithm": runs.IQN}}, num_learner_processes=1)
    reference = here({**data, "actors": 4}, tmp_path / "sequential")
    for policy in ("agent_0", "agent_1"):
        rounds = [json.loads(line) for line in reference[f"{policy}.jsonl"].splitlines()]
        assert [line["round"] for line in rounds] == [*range(12)]
        assert len({line["data"] for line in rounds}) == 12
        assert rounds[-1]["losses"][-1].keys() >= {"loss", "grad_norm"}
        assert sum(len(line["returns"]) for line in rounds) >= 16
    assert "value_mean" in rounds[-1]["losses"][-1]
    assert len(reference) == 6
    assert bits({**data, "actors": 2}, tmp_path / "two") == reference
    assert runs.files(memory_dir) == []
    other = here({**data, "seed": 1}, tmp_path / "other")
    assert not {*other.items()} & {*reference.items()}


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("victim", ["actor-1", "learner-agent_0", "learner-agent_1"])
def test_after_a_worker_was_killed_all_go_on_from_the_last_cut_and_no_bit_differs_L1(
    tmp_path: Path, victim: str
) -> None:
    data = in_step(steps=26_000, policies={"agent_1": {"algorithm": STACKED}}, lockstep_checkpoint_rounds=10)
    reference = bits(data, tmp_path / "sequential", "--sequential", seconds=600)
    folder = tmp_path / "killed"
    folder.mkdir()
    with runs.training({**data, "actors": 2}, folder) as worker:
        runs.until(lambda: runs.agent_steps(folder) > 4_000, 600, "it acts")
        runs.kill(runs.workers_of(folder)[victim])
        assert worker.wait(3_000) == 0, worker.said
    assert runs.summary_of(folder)["restarts"]
    assert cuts_gone_back_to(folder) >= {"actor-0", "actor-1", "learner-agent_0", "learner-agent_1"}
    assert found_in(folder) == reference


def cuts_gone_back_to(folder: Path) -> set[str]:
    """Workers whose logs say that they did."""
    logs = (folder / "run" / "logs").glob("*.log")
    return {
        path.stem
        for path in logs
        if "event=resumed" in (said := path.read_text()) and "from=lockstep_checkpoint" in said
    }


STACKED = {**runs.IQN, "frames": 3, "priority_alpha": 0.6, "noisy": True, "buffer_capacity": 1_024}
CARTPOLE = {"id": "gymnasium:CartPole-v1", "copies": 16}
PAIR = {"id": "foraging", "copies": 16}
TEAM = {**PAIR, "teams": {"pair": "all"}, "team_reward": "mean"}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": in_step(steps=26_000),
    "recurrent": in_step(steps=26_000, policy={"network": {"hidden": [16], "core": {"name": "lstm", "size": 8}}}),
    "iqn": in_step(runs.IQN, steps=26_000),
    "by priority": in_step(STACKED, steps=26_000),
    **{name: in_step({**runs.SAC, "name": name}, steps=13_000, environment=CARTPOLE) for name in ("dqn", "sac")},
    "choices in turn": in_step(
        steps=26_000,
        environment=TEAM,
        policy={"network": {"hidden": [16], "autoregressive": ["agent_1", "agent_0"]}},
    ),
    "columns of its own": in_step(
        {"entry": "tests.workers.algorithms.test_own_algorithm:Telling"}, steps=26_000, environment=CARTPOLE
    ),
    **{
        f"{algorithm['name']} that remembers": in_step(
            {**algorithm, "burn_in": 3},
            steps=13_000,
            environment=CARTPOLE,
            policy={"network": {"core": {"name": "lstm", "size": 8}}},
        )
        for algorithm in ({**runs.SAC, "name": "dqn"}, {**runs.SAC, "name": "c51"}, runs.IQN)
    },
}
"""200 updates of each policy or more; replay that was overwritten, frames, noisy heads, states, numbers of any size."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_actors_gives_the_same_bits_after_200_updates_over_memory_and_tcp_L1_S1(
    tmp_path: Path, kind: str
) -> None:
    data = KINDS[kind]
    reference = bits(data, tmp_path / "sequential", "--sequential", seconds=600)
    for name, content in reference.items():
        if name.endswith(".jsonl"):
            assert json.loads(content.splitlines()[-1])["train_steps"] >= 200
    for transport in ("memory", "tcp"):
        for actors in (1, 2, 4):
            changed = {**data, "actors": actors, "transport": transport}
            found = bits(changed, tmp_path / f"{transport}-{actors}", seconds=600)
            differing = [name for name in reference if found.get(name) != reference[name]]
            assert (found.keys(), differing) == (reference.keys(), []), (transport, actors)


GOING_ON = {
    **KINDS,
    "impala": in_step({"name": "impala"}),
    "c51": in_step({**runs.SAC, "name": "c51"}, environment=CARTPOLE),
    "central critic": in_step({**runs.PPO, "central_critic": True}, environment={**PAIR, "central_state": "joint"}),
    **{name: in_step({**runs.SAC, "name": name}, environment=TEAM) for name in ("vdn", "qmix")},
    "a batched world": in_step(runs.PPO, environment={**CARTPOLE, "id": "gymnax:CartPole-v1"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOING_ON)
def test_a_run_that_goes_on_after_its_end_gives_the_bits_of_one_that_was_longer_at_once(
    tmp_path: Path, memory_dir: Path, kind: str
) -> None:
    """Weights, optimisers, and the data, losses and returns of each round, of before the end and behind it."""
    if kind == "a batched world" and find_spec("gymnax") is None:
        skip_or_fail("a game of `make returns` is not installed", "gymnax")
    data = {**GOING_ON[kind], "steps": 6_400, "actors": 2}
    reference, parts = bits(data, tmp_path / "whole"), tmp_path / "parts"
    before = bits({**data, "until": 3_200}, parts)
    assert before != reference
    again = runs.rookery("train", str(parts / "run"), "--set", "until=6400", cwd=parts)
    assert again.returncode == 0, again.stderr
    found = found_in(parts)
    assert (found.keys(), [name for name in reference if found.get(name) != reference[name]]) == (reference.keys(), [])
    assert runs.files(memory_dir) == []


def rounds_of(folder: Path) -> dict[str, list[str]]:
    """The lines of each policy's rounds, and of its commands."""
    return {path.name: path.read_text().splitlines() for path in (folder / "run" / "rounds").iterdir()}


@pytest.mark.usefixtures("as_a_worker")
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_people_tell_policies_between_rounds_is_repeated_to_the_bit(
    tmp_path: Path, memory_dir: Path, killed: bool
) -> None:
    """A rate, and a policy that is frozen for a while; also where a learner dies of it, and all go back to a cut."""
    data = in_step(steps=10**7, lockstep_checkpoint_rounds=10, policies={"agent_1": {"algorithm": runs.IQN}})

    def rounds(policy: str) -> list[dict[str, Any]]:
        path = tmp_path / "run" / "rounds" / f"{policy}.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def grows(by: int) -> None:
        before = len(rounds("agent_1"))
        runs.until(lambda: len(rounds("agent_1")) > before + by, what="it goes on")

    def told(*words: str) -> None:
        """A command, and that it was followed."""
        path = tmp_path / "run" / "rounds" / f"{words[1]}.commands.jsonl"
        before = path.read_text() if path.exists() else ""
        run.roster(*words)
        runs.until(lambda: path.exists() and path.read_text() != before, what=f"{words} is followed")

    with runs.training({**data, "actors": 2}, tmp_path) as worker:
        runs.until(lambda: len(rounds("agent_1")) > 2, what="it learns")
        run = RunHandle(tmp_path / "run")
        told("set", "agent_0", "learning_rate=0.005")
        told("freeze", "agent_1")
        grows(3)
        if killed:
            grows(10)  # a cut
            runs.kill(runs.workers_of(tmp_path)["learner-agent_1"])
            runs.until(lambda: "learner-agent_1" in cuts_gone_back_to(tmp_path), what="all went back")
            grows(12)
        told("thaw", "agent_1")
        grows(3)
        runs.kill(worker.popen.pid, signal.SIGINT)
        assert worker.wait() == 1
    found, frozen = rounds_of(tmp_path), [line for line in rounds("agent_1") if not line["losses"]]
    assert len({line["weights"] for line in frozen[-3:]}) == 1
    assert rounds("agent_1")[-1]["weights"] != frozen[-1]["weights"]
    again = tmp_path / "again"
    again.mkdir()
    until = (max(map(len, found.values())) + 1) * 2 * 16 * data["policy"]["segment_length"]
    here({**data, "until": until, "commands": str(tmp_path / "run")}, again)
    repeated = rounds_of(again)
    if killed:  # by workers too, who find it from where they work, and have cuts of their own
        workers, keys = tmp_path / "workers", {"actors": 2, "until": until, "commands": "../run"}
        assert bits({**data, **keys}, workers).keys() >= {"agent_1.commands.jsonl"}
        assert rounds_of(workers) == repeated
        (cuts,) = (workers / "run" / "lockstep_checkpoints").iterdir()
        assert {len([*cut.iterdir()]) for cut in cuts.iterdir()} == {4}, "of two actors and two policies"
    for name, lines in found.items():
        assert repeated[name][: len(lines)] == lines, name
    assert runs.files(memory_dir) == []
