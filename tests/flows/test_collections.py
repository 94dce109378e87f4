"""Whole runs in several environments: what ended where reaches the summary, with processes and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults import kinds_in, words_in
from tests.flows import runs

HUNT = {"width": 9, "height": 9, "turns": 10}
MEMBERS = {
    "small": {"id": "treasure_hunt", "settings": {**HUNT, "width": 7, "height": 7}},
    "large": {"id": "treasure_hunt", "settings": HUNT},
}
OPEN_AT_ONCE = {"after": {"large": ["small"]}, "threshold": {"small": -1000.0}, "episodes": 1}


def agreed(summary: dict[str, Any], steps: int) -> dict[str, dict[str, Any]]:
    """By policy and member; checked against the steps made: every episode is 10 steps of an agent."""
    found: dict[str, dict[str, Any]] = summary["environments"]
    assert found.keys() == summary["returns"].keys() == {"agent_0", "agent_1"}
    for policy, places in found.items():
        assert places.keys() == MEMBERS.keys()
        episodes = sum(place["episodes"] for place in places.values())
        made = steps / 2 / 10
        assert made - 3 * 8 <= episodes <= made, "of each copy one or two episodes are open or untold at the end"
        assert summary["returns"][policy]["last"] is not None
    assert runs.balanced(summary["segments"]), summary["segments"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_in_a_curriculum_tells_returns_by_environment_I9(tmp_path: Path, processes: int) -> None:
    data = runs.paced(tmp_path, 4_000)
    slow = {"id": data["environment"]["id"], "settings": {"pause": 0.006}}  # who decides for all is heard in time
    members = {
        name: {"id": slow["id"], "settings": member["settings"] | slow["settings"]} for name, member in MEMBERS.items()
    }
    data["environment"] = {"copies": 8, "members": members, "processes": processes, "curriculum": OPEN_AT_ONCE}
    result = runs.train(data, tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["curriculum"]["mastered"] == ["small"]
    found = agreed(summary, 4_000)
    for places in found.values():
        assert places["small"]["episodes"] >= 8
        assert places["large"]["episodes"] > places["small"]["episodes"], "it opened, and rehearsal has a fifth"
        assert -10.0 <= places["large"]["return_mean"] <= 100.0
    assert "by environment, over the whole run" in result.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("return/large" in row["agent_1"] for row in rows)


def test_the_sequential_reference_plays_a_collection_too_A9_I9(tmp_path: Path) -> None:
    data = runs.config(steps=4_000, environment={"copies": 8, "members": MEMBERS, "prior": {"small": 3, "large": 1}})
    result = runs.train(data, tmp_path, "--sequential")
    assert result.returncode == 0, result.stderr
    found = agreed(json.loads(result.stdout), 4_000)
    for places in found.values():
        assert places["small"]["episodes"] > places["large"]["episodes"] > 0


def test_worlds_that_do_not_fit_end_the_run_before_it_begins_I9(tmp_path: Path) -> None:
    wide = {"id": "treasure_hunt", "settings": {**HUNT, "radius": 3}}
    data = runs.config(environment={"copies": 8, "members": {**MEMBERS, "wide": wide}, "adversarial": {}})
    result = runs.train(data, tmp_path)
    assert result.returncode == 2
    assert kinds_in(result.stderr) == ["member_spaces_differ"]
    assert {"'wide'", "'agent_0'", "observation"} <= words_in(result.stderr)
