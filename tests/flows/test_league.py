"""A league of processes: members join the library, meet players and each other, and a killed actor's games count."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.memory.shared_file import read_counters
from tests.flows import runs
from tests.flows.test_deaths import finished, killed
from tests.tools import skip_or_fail
from workers.league import policy_pool
from workers.policies.export.frozen_policy import ExportedPolicy


def test_a_league_of_two_seats_goes_on_over_a_killed_actor_and_loses_no_game_J2_J7(
    tmp_path: Path, memory_dir: Path
) -> None:
    """J2: both agents of the run have one policy, and one learner."""
    data = runs.paced(
        tmp_path,
        8_000,
        pause=0.001,
        agents={"agent_0": "main", "agent_1": "main"},
        league={"snapshot_every": 900, "matchmaking": "prioritised", "latest": 0.2, "arena": 0.25},
    )
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: len(policy_pool.entries(tmp_path / "run", "main")) > 1, 300, "a second member")
        killed(tmp_path, "actor-0", of=3)
        summary = finished(tmp_path, worker, memory_dir, {"actor-0": 1})
    league = summary["league"]
    entries = policy_pool.entries(tmp_path / "run", "main")
    assert [entry.name for entry in entries] == [member["name"] for member in league["members"]]
    assert len(entries) >= 3
    for entry in entries:
        path = entry.path(tmp_path / "run")
        policy_pool.verify(entry, path.read_bytes())
        assert ExportedPolicy.load(path).manifest.policy == "main"
    pages = [read_counters(page) for page in sorted((tmp_path / "run" / "counters").glob("actor-0.*"))]
    assert len(pages) == 2
    for i, one in enumerate(entries):
        for j, other in enumerate(entries[:i]):
            counted = [page[f"league.games.{other.name}:{one.name}"] for page in pages]
            assert league["games"][i][j] == league["games"][j][i] == sum(counted)
    assert sum(map(sum, league["games"])) > 0
    assert summary["fixed_steps"] > summary["agent_steps"] / 2  # members' and those of the arena
    assert runs.balanced(summary["segments"])


@pytest.mark.slow
def test_an_exploiter_meets_the_newest_main_agent_which_meets_all_of_its_pasts_alike_J7(
    tmp_path: Path, memory_dir: Path
) -> None:
    """An exploiter that no agent of the run names, with `latest` and `fresh`; a main agent with `uniform`."""
    players = {
        "main": {"opponents": ["main"]},
        "exploiter": {"agents": ["agent_0", "agent_1"], "opponents": ["main"], "matchmaking": "latest", "fresh": True},
    }
    data = runs.config(
        steps=24_000,
        environment={"id": "treasure_hunt", "copies": 16},
        agents={"agent_0": "main", "agent_1": "main"},
        league={"snapshot_every": 1_500, "size": 32, "arena": 0.25, "players": players},
    )
    result = runs.train(data, tmp_path, "--no-progress")
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    members = {name: [e.name for e in policy_pool.entries(tmp_path / "run", name)] for name in players}
    assert all(len(names) >= 2 for names in members.values())
    whom = summary["league"]["whom"]
    assert whom["exploiter"] == {"main": 1.0}
    assert whom["main"] == {name: pytest.approx(1 / len(members["main"]), abs=1e-4) for name in members["main"]}
    names = [one["name"] for one in summary["league"]["members"]]
    games = summary["league"]["games"]
    assert sum(games[names.index(a)][names.index(b)] for a in members["main"] for b in members["exploiter"]) > 0
    pages = [read_counters(page) for page in sorted((tmp_path / "run" / "counters").glob("actor-0.*"))]
    assert sum(page[f"league.games.main:{name}"] for page in pages for name in members["main"]) > 0
    assert all(page[f"league.games.exploiter:{name}"] == 0 for page in pages for name in members["main"])
    assert runs.balanced(summary["segments"])


@pytest.mark.slow
def test_actors_that_do_not_see_the_runs_folder_fetch_each_member_once_for_their_node_J7(
    tmp_path: Path, memory_dir: Path, free_port_block: int
) -> None:
    """Two actors of another machine: one with a folder for memory of its own, where the run's folder is empty."""
    data = runs.paced(
        tmp_path,
        12_000,
        pause=0.004,
        agents={"agent_0": "main", "agent_1": "main"},
        actors=2,
        league={"snapshot_every": 1_000, "arena": 0.25},
    )
    there = memory_dir / "there"
    there.mkdir()
    hidden = f'mount -t tmpfs none {tmp_path / "run"} && export ROOKERY_MEMORY={there} && exec "$@"'
    far = ["unshare", "--mount", "bash", "-c", hidden, "far"]
    if subprocess.run([*far[:2], "true"], capture_output=True, check=False).returncode:
        skip_or_fail("no mount namespaces")
    address = ["--coordinator", f"tcp://127.0.0.1:{free_port_block}", "--patience", "120"]
    path = str(runs.write(data, tmp_path))
    command = [
        "coordinator",
        "--open",
        path,
        "--run-dir",
        str(tmp_path / "run"),
        "--bind",
        f"127.0.0.1:{free_port_block}",
    ]
    with ExitStack() as stack:
        workers = [stack.enter_context(runs.started(command, tmp_path, "coordinator"))]
        runs.until((tmp_path / "run" / "coordinator.json").exists, what="coordinator is up")
        workers.append(stack.enter_context(runs.started(["learner", *address], tmp_path, "learner")))
        for number in range(2):
            actor = [runs.PYTHON, "-P", "-m", "workers.actor", *address, "--node", "far"]
            workers.append(stack.enter_context(runs.started(actor, tmp_path, f"actor-{number}", far)))
        for worker in workers:
            assert worker.wait(300) == 0, worker.said
            assert "Traceback" not in worker.said
    summary = runs.summary_of(tmp_path)
    members = [entry.name for entry in policy_pool.entries(tmp_path / "run", "main")]
    fetched = [word for worker in workers[2:] for word in worker.said.split() if word.startswith("member=")]
    assert sorted(fetched) == [f"member={name}" for name in members[: len(fetched)]]  # each once, by one of the two
    assert len(fetched) >= 2
    assert summary["league"]["loads"] > len(fetched)
    assert sum(map(sum, summary["league"]["games"])) > 0
    assert runs.files(there) == []
    there.rmdir()
    assert runs.files(memory_dir) == []
    assert runs.balanced(summary["segments"])
