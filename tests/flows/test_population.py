"""`rookery pbt` with real processes: members that learn side by side, are interrupted, go on, and take over (J6)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults import kinds_in
from tests.flows import runs

RATE = "policy.learning_rate"


def population(folder: Path, **keys: Any) -> list[str]:
    """The command that trains one of two members in two generations, the worse of which takes over."""
    runs.write(runs.config(steps=3_200, checkpoint_interval=1000.0), folder)
    told = {
        "run": "tiny.yaml",
        "members": 2,
        "generations": 2,
        "exploit": 0.5,
        "resample": 0.0,
        "settings": {RATE: {"low": 1e-4, "high": 1e-2, "scale": "log"}},
        **keys,
    }
    (folder / "rates.yaml").write_text(yaml.safe_dump(told))
    return ["pbt", str(folder / "rates.yaml"), "--out", str(folder / "out"), "--json"]


def place(folder: Path, generation: int, member: int) -> Path:
    return folder / "out" / "seed-0" / f"generation-{generation}" / f"member-{member}"


def ended(folder: Path, generation: int) -> dict[int, float]:
    """Members of a generation whose summary is there -> when it was written."""
    paths = {member: place(folder, generation, member) / "summary.json" for member in range(2)}
    return {member: path.stat().st_mtime for member, path in paths.items() if path.exists()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_population_of_real_runs_is_interrupted_goes_on_and_the_worse_goes_on_from_the_better_J6(
    tmp_path: Path, memory_dir: Path
) -> None:
    command = population(tmp_path, cores=2 + 2)
    with runs.started(command, tmp_path, "first") as worker:
        runs.until(lambda: len(ended(tmp_path, 0)) == 2, 600, "the first generation is over")
        runs.until(lambda: (place(tmp_path, 1, 0).with_suffix(".out")).exists(), 300, "the second has begun")
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait(300) == 2, worker.said
        assert "sweep_interrupted" in kinds_in(worker.said)
    before = ended(tmp_path, 0)
    again = runs.rookery(*command, cwd=tmp_path, seconds=600)
    assert again.returncode == 0, again.stderr
    assert ended(tmp_path, 0) == before  # what is done is not done again
    (told,) = json.loads((tmp_path / "out" / "population.json").read_text())
    assert json.loads(again.stdout) == [told]
    first, second = told["generations"]
    better, worse = sorted(range(2), key=lambda member: -first[member]["score"])
    assert [second[better]["parent"], second[worse]["parent"]] == [better, better]
    assert second[better]["settings"] == first[better]["settings"]
    changed = second[worse]["settings"][RATE] / first[better]["settings"][RATE]
    assert changed in (pytest.approx(1.25), pytest.approx(1 / 1.25))
    for member in range(2):
        folder = place(tmp_path, 1, member)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["complete"] is True
        log = "".join(path.read_text() for path in (folder / "logs").iterdir())
        assert "event=resumed policy=agent_0 from=checkpoint" in log
        config = yaml.safe_load((folder / "config.yaml").read_text())
        assert (config["steps"], config["until"]) == (3_200, 1_600)
        assert config["policy"]["learning_rate"] == pytest.approx(second[member]["settings"][RATE])
    assert told["best"]["folder"] == str(place(tmp_path, 1, max(range(2), key=lambda one: second[one]["score"])))
    assert runs.files(memory_dir) == []
