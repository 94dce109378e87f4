"""What worlds tell of their episodes, from `info` to the curves, in whole runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.flows import runs
from workers.metrics.history import History


def drawn(folder: Path) -> dict[str, dict[str, float]]:
    """policy -> `info/NAME` -> its last point, of the run in `folder/run`."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    policies = {name: one for line in lines for name, one in line.items() if isinstance(one, dict)}
    return {
        policy: {name: value for name, value in one.items() if name.startswith("info/")}
        for policy, one in policies.items()
    }


def test_rates_and_means_of_each_policys_agents_come_from_processes_to_the_curves(
    tmp_path: Path, memory_dir: Path
) -> None:
    """`far` of two agents that share a policy is the mean of 4 and -1, a number that is none is left out and found, and
    of 35 names the last five are cut."""
    environment = {"id": "tests.flows.telling:match", "copies": 8, "processes": 1}
    agents = {"keeper": "goal", "left": "field", "right": "field"}
    result = runs.train(runs.config(steps=6_000, environment=environment, agents=agents), tmp_path)
    assert result.returncode == 0, result.stderr
    summary, curves = runs.summary_of(tmp_path), drawn(tmp_path)
    assert curves["goal"] == {"info/won": 1.0, "info/far": -2.5}
    assert len(curves["field"]) == 30
    assert {name: curves["field"][name] for name in ("info/won", "info/far", "info/n27")} == {
        "info/won": 0.5,
        "info/far": 1.5,
        "info/n27": 27.0,
    }
    ended = summary["infos"]["goal"]["won"]["episodes"]
    assert ended > 100
    assert summary["infos"]["goal"]["far"] == {"episodes": ended, "mean": -2.5}
    assert summary["infos"]["field"]["won"] == {"episodes": 2 * ended, "mean": 0.5}
    found: dict[str, Any] = {one["finding"]: one for one in summary["health"]["findings"] if "infos" in one["finding"]}
    assert [(name, one["policy"]) for name, one in found.items()] == [
        ("infos_not_finite", "goal"),
        ("infos_cut", "field"),
    ]
    assert found["infos_cut"]["names"] == [f"n{number}" for number in range(28, 33)]
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert {b"goal/info/won", b"field/info/n27"} <= {*re.findall(rb"\w+/info/\w+", events.read_bytes())}
    history = History()
    history.read(tmp_path / "run" / "metrics.jsonl")
    assert {*history.curves("info/far")} == {"goal", "field"}, "as the page finds them"
    assert runs.files(memory_dir) == []


def test_lock_step_in_one_process_draws_what_a_world_of_our_own_form_tells(tmp_path: Path, memory_dir: Path) -> None:
    environment = {"id": "tests.flows.telling:batched", "copies": 8}
    data = runs.config(steps=3_200, environment=environment, schedule="lockstep", act_block=4)
    result = runs.train(data, tmp_path, "--sequential")
    assert result.returncode == 0, result.stderr
    summary, curves = runs.summary_of(tmp_path), drawn(tmp_path)
    assert [one["info/debt"] for one in curves.values()] == [-3.0, -6.0]
    ended = {"episodes": 3_200 // 2 // 5}
    assert [one["debt"] for one in summary["infos"].values()] == [{**ended, "mean": -3.0}, {**ended, "mean": -6.0}]
    assert 0 < summary["infos"]["agent_0"]["last"]["mean"] < 1
    assert runs.files(memory_dir) == []
