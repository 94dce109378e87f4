"""Policies that do not learn, in runs of real processes: opponents from a file, and programs (J1, J7)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import PPO, parse_run
from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.readme import blocks
from tests.tools import ROOT
from tests.workers.policies.exports import made
from workers.environments.registry import describe
from workers.policies.export import safetensors

LSTM = {"hidden": [16], "core": {"name": "lstm", "size": 8}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recurrent policy of the world of these runs, exported."""
    one = made("earlier", describe(parse_run(runs.config()).environment), PPO(), LSTM)
    path = tmp_path_factory.mktemp("earlier") / "frozen.safetensors"
    safetensors.save_policy(path, one.manifest, one.policy)
    return path


def frozen(path: Path | str, **more: Any) -> dict[str, Any]:
    return {"algorithm": {"name": "frozen", "path": str(path), **more}}


@pytest.mark.chaos
def test_one_learns_against_a_frozen_one_while_an_actor_is_killed_J7(
    tmp_path: Path, memory_dir: Path, file: Path
) -> None:
    """Only the other has a learner, weights and checkpoints; both earn; the books are exact, the file as it was."""
    before = file.read_bytes()
    data = runs.paced(tmp_path, 6_400, pause=0.004, policies={"agent_1": frozen(file)})
    with runs.training(data, tmp_path) as worker:
        runs.until(
            lambda: runs.agent_steps(tmp_path) >= 800 and len(runs.workers_of(tmp_path)) == 3, what="the run is on"
        )
        assert set(runs.workers_of(tmp_path)) == {"actor-0", "learner-agent_0", "coordinator"}
        runs.kill(runs.workers_of(tmp_path)["actor-0"])
        assert worker.wait() == 0, worker.said
    summary = runs.summary_of(tmp_path)
    assert (summary["complete"], summary["restarts"]) == (True, {"actor-0": 1})
    assert 6_400 <= summary["agent_steps"] < 6_800
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["unexplained"] == 0
    assert (set(summary["train_steps"]), set(summary["versions"])) == ({"agent_0"}, {"agent_0"})
    assert set(summary["returns"]) == {"agent_0", "agent_1"}
    assert summary["fixed"]["agent_1"].items() >= {"algorithm": "frozen", "source": str(file)}.items()
    assert summary["fixed"]["agent_1"]["episodes"] > 50
    assert abs(summary["fixed_steps"] - summary["agent_steps"] / 2) <= 16
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["agent_0"]
    assert [path.name for path in (tmp_path / "run" / "ledgers").iterdir()] == ["agent_0"]
    assert file.read_bytes() == before
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_in_one_process_it_is_the_same_J7(tmp_path: Path, file: Path) -> None:
    """A recurrent opponent; every step is accounted for."""
    result = runs.train(runs.config(steps=3_200, policies={"agent_1": frozen(file)}), tmp_path, "--sequential")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["agent_steps"], summary["fixed_steps"]) == (3_200, 1_600)
    segments = summary["segments"]
    assert runs.balanced(segments)
    assert segments["produced"] * 8 + summary["unfinished_steps"] + 8 == 1_600  # of each stream one row is still open
    assert summary["fixed"]["agent_1"]["episodes"] == 72
    assert set(summary["train_steps"]) == {"agent_0"}
    assert summary["rows_trained_per_row_made"] > 0.9


@pytest.mark.slow
def test_the_same_seed_gives_the_same_opponent_A9_J7(tmp_path: Path, file: Path) -> None:
    """What it earned and what the other learned, to the last bit."""
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        data = runs.config(steps=3_200, policies={"agent_1": frozen(file)})
        result = runs.train(data, tmp_path / name, "--sequential")
        assert result.returncode == 0, result.stderr
        places = sorted((tmp_path / name / "run" / "checkpoints").rglob("*.safetensors"))
        found.append((json.loads(result.stdout)["fixed"], [place.read_bytes() for place in places]))
    assert found[0] == found[1]


PROGRAM = """
import numpy as np


class Waverer:
    def __init__(self, place, streams, generator, most):
        self.generator, self.most = generator, most

    def __call__(self, present):
        return self.generator.integers(self.most, size=len(present.observation))
"""


@pytest.mark.parametrize("way", ["two actors", pytest.param("--sequential", marks=pytest.mark.slow)])
def test_a_run_in_which_nothing_learns_compares_policies_J1(
    tmp_path: Path, memory_dir: Path, file: Path, way: str
) -> None:
    """A program of the user's, in the working directory, against a file: no learner runs, and it ends by itself."""
    (tmp_path / "players_of_this_test.py").write_text(PROGRAM)
    mine = {"name": "scripted", "entry": "players_of_this_test:Waverer", "settings": {"most": 3}}
    data = runs.config(steps=3_200, actors=2, policies={"agent_0": {"algorithm": mine}, "agent_1": frozen(file)})
    result = runs.train(data, tmp_path, *([way] if way.startswith("-") else []))
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["complete"]
    assert summary["agent_steps"] == summary["fixed_steps"] == 3_200
    ended = 9 * 8 if way == "--sequential" else 2 * 4 * 8  # of each copy, but for the episode that the run ends with
    assert [summary["fixed"][agent]["episodes"] for agent in ("agent_0", "agent_1")] == [ended, ended]
    assert (summary["train_steps"], summary["segments"]["produced"], summary["unfinished_steps"]) == ({}, 0, 0)
    assert summary["verdict"] in ("starting", "actor-bound")
    assert {path.name for path in (tmp_path / "run" / "logs").glob("learner*")} == set()
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert runs.files(memory_dir) == []


@pytest.mark.parametrize(
    ("keys", "kind", "way"),
    [
        ({"path": "nowhere.safetensors"}, "policy_file_missing", "--sequential"),
        ({}, "policy_trained_on_other_spaces", "--no-progress"),
    ],
    ids=["missing", "other spaces"],
)
def test_what_does_not_fit_is_refused_before_anything_starts_J7(
    tmp_path: Path, file: Path, keys: dict[str, str], kind: str, way: str
) -> None:
    (tmp_path / "frozen.safetensors").write_bytes(file.read_bytes())
    algorithm = {"name": "frozen", "path": "frozen.safetensors", **keys}
    data = runs.config(policies={"agent_1": {"algorithm": algorithm}})
    data["environment"]["settings"]["radius"] = 3
    result = runs.train(data, tmp_path, way)
    assert result.returncode == 2
    assert kinds_in(result.stderr) == [kind]
    assert algorithm["path"] in {Path(word).name for word in words_in(result.stderr)}
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_program_that_fails_in_a_turn_ends_the_run_with_its_name(tmp_path: Path) -> None:
    """And what was learned until then stays."""
    (tmp_path / "players_of_this_test.py").write_text(PROGRAM)
    mine = {"name": "scripted", "entry": "players_of_this_test:Waverer", "settings": {"most": 9}}
    data = runs.config(policies={"agent_0": {"algorithm": mine}})
    result = runs.train(data, tmp_path, "--no-progress", "--sequential")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert "policy 'agent_0': players_of_this_test:Waverer should return 0 to 3 as action but returns" in last
    assert (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_what_learned_against_a_program_is_beaten_by_what_learns_against_it_J7(tmp_path: Path) -> None:
    """Self-play over exported files, by the very commands of the page: paper beats the rock, scissors beat the
    paper, and beat it in the last run as well, in which nothing learns."""
    document = (ROOT / "launch" / "docs" / "learning" / "fixed.md").read_text()
    (commands,) = [block.text for block in blocks(document) if "runs/scissors" in block.text]
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=tmp_path,
        env=runs.environment() | {"PATH": f"{Path(runs.PYTHON).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for run in ("paper", "scissors", "match"):
        summary = json.loads((tmp_path / "runs" / run / "summary.json").read_text())
        returns = [summary["returns"][player]["last"] for player in ("player_0", "player_1")]
        assert returns[0] > 22
        assert sum(returns) == pytest.approx(0)
        assert runs.balanced(summary["segments"])
    assert summary["train_steps"] == {}
