"""A league of processes: members join the library, meet players and each other, and a killed actor's games count."""

from __future__ import annotations

from pathlib import Path

from protocol.counters import read_counters
from tests.flows import runs
from tests.flows.test_deaths import finished, killed
from workers.league import library
from workers.policies.frozen import Frozen


def test_a_league_of_two_seats_goes_on_over_a_killed_actor_and_loses_no_game_J7(
    tmp_path: Path, memory_dir: Path
) -> None:
    data = runs.paced(
        tmp_path,
        8_000,
        pause=0.001,
        agents={"agent_0": "main", "agent_1": "main"},
        league={"snapshot_every": 900, "matchmaking": "prioritised", "latest": 0.2, "arena": 0.25},
    )
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: len(library.entries(tmp_path / "run", "main")) > 1, 300, "a second member")
        killed(tmp_path, "actor-0", of=3)
        summary = finished(tmp_path, worker, memory_dir, {"actor-0": 1})
    league = summary["league"]
    entries = library.entries(tmp_path / "run", "main")
    assert [entry.name for entry in entries] == [member["name"] for member in league["members"]]
    assert len(entries) >= 3
    for entry in entries:
        path = entry.path(tmp_path / "run")
        library.verify(entry, path.read_bytes())
        assert Frozen.load(path).manifest.policy == "main"
    pages = [read_counters(page) for page in sorted((tmp_path / "run" / "counters").glob("actor-0.*"))]
    assert len(pages) == 2
    for i, one in enumerate(entries):
        for j, other in enumerate(entries[:i]):
            counted = [page[f"league.games.{other.name}:{one.name}"] for page in pages]
            assert league["games"][i][j] == league["games"][j][i] == sum(counted)
    assert sum(map(sum, league["games"])) > 0
    assert summary["fixed_steps"] > summary["agent_steps"] / 2  # members' and those of the arena
    assert runs.balanced(summary["segments"])
