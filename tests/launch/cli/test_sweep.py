"""`rookery sweep`: which runs, how many at once, what is done again, and what they come to together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from launch.cli.main import main
from launch.local import process
from launch.sweeps import runs as module
from launch.sweeps.executors import Machines
from launch.sweeps.grid import Trial, read_sweep, trials_of
from launch.sweeps.runs import aggregate, run_all
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises, words_in
from tests.tools import ROOT


def sweep_file(folder: Path, **keys: Any) -> Path:
    path = folder / "rates.yaml"
    path.write_text(yaml.safe_dump({"run": "cartpole", **keys}, sort_keys=False))
    return path


def trials(folder: Path, **keys: Any) -> list[Trial]:
    return trials_of(read_sweep(sweep_file(folder, **keys)), folder / "out")


def test_every_combination_is_run_with_every_seed(tmp_path: Path) -> None:
    settings = {"policy.learning_rate": [0.1, 0.2], "policy.algorithm.epochs": [1, 2, 3]}
    found = trials(tmp_path, seeds=[4, 5], settings=settings, steps=100)
    assert len(found) == 12
    assert len({trial.folder for trial in found}) == 12
    told = {(t.run.policy.learning_rate, t.run.policy.algorithm.epochs, t.run.seed) for t in found}  # type: ignore[union-attr]
    assert told == {(rate, epochs, seed) for rate in (0.1, 0.2) for epochs in (1, 2, 3) for seed in (4, 5)}
    assert {trial.run.steps for trial in found} == {100}
    assert found[0].folder == tmp_path / "out" / "policy.learning_rate=0.1,policy.algorithm.epochs=1" / "seed-4"
    (one,) = trials(tmp_path, seeds=[4], settings={"policy.learning_rate": 0.1})  # one value needs no list
    assert one.run.policy.learning_rate == 0.1


@pytest.mark.parametrize(
    ("keys", "kind", "named"),
    [
        ({"seeds": [1, 1]}, "seed_repeated", ["1"]),
        ({"settings": {"seed": [1]}}, "sweep_key_in_settings", ["'seed'"]),
        ({"cores": 1}, "run_needs_more_cores", ["2", "sweep", "1"]),
        ({"speed": 1}, "settings_file_unknown_key", ["'speed'", "run", "seeds"]),
        ({"seed": 1}, "settings_file_unknown_key", ["'seed'", "seeds"]),
        ({"lr": 1}, "settings_file_unknown_key", ["'lr'", "settings.policy.learning_rate"]),
        ({"seeds": 3}, "value_invalid", ["seeds", "3"]),
        ({"seeds": ["a"]}, "value_invalid", ["seeds.0", "'a'"]),
        ({"cores": "many"}, "value_invalid", ["cores", "'many'"]),
        ({"steps": 1.5}, "value_invalid", ["steps", "1.5"]),
        ({"sequential": "maybe"}, "value_invalid", ["sequential", "'maybe'"]),
        ({"settings": {"policy.learning_rate": []}}, "value_invalid", ["settings.policy.learning_rate"]),
        ({"hosts": {"a": {"cors": 2}}}, "unknown_key", ["'hosts.a.cors'", "hosts.a.cores"]),
        ({"run": "tresure"}, "run_source_unknown", ["treasure-hunt"]),
        (
            {"settings": {"actors": 0, "policy.algorithm": "bc", "policy.dataset.path": "."}},
            "sweep_without_scores",
            ["evaluation.every_steps"],
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path, keys: dict[str, Any], kind: str, named: list[str]
) -> None:
    told = CliRunner().invoke(main, ["sweep", str(sweep_file(tmp_path, **keys)), "--out", str(tmp_path / "out")])
    assert told.exit_code == 2
    assert kinds_in(told.output) == [kind]
    assert {*named} <= words_in(told.output)
    assert not re.search("Input should|valid (tuple|dict|int|bool)|validation|permitted", told.output), (
        "nothing of pydantic's"
    )
    assert not (tmp_path / "out").exists()


class Runs:
    """In place of processes: each run takes three looks, and earns what `earned` says, or fails where that is None."""

    def __init__(self, earned: dict[str, float | None]) -> None:
        self.earned, self.started, self.at_once, self.alive = earned, list[str](), 0, 0

    def begin(self, _role: str, command: list[str], output: Path) -> Any:
        folder = Path(command[command.index("--run-dir") + 1])
        self.started.append(f"{folder.parent.name} {folder.name}")
        self.alive += 1
        self.at_once = max(self.at_once, self.alive)
        return Fake(self, folder, Path(command[2]), self.earned[self.started[-1]])


class Fake:
    def __init__(self, runs: Runs, folder: Path, config: Path, earned: float | None) -> None:
        self._runs, self._looks, self._ended = runs, self._count(), False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(config.read_text())
        self._folder, self._earned = folder, earned

    def _count(self) -> Iterator[int | None]:
        yield from (None, None)
        self._runs.alive -= 1
        if self._earned is not None:
            summary = {"complete": True, "returns": {"agent": {"last": self._earned}}}
            (self._folder / "summary.json").write_text(json.dumps(summary))
        while True:
            yield 0 if self._earned is not None else 1

    @property
    def code(self) -> int | None:
        return next(self._looks)

    def last_words(self, _lines: int) -> str:
        return "the floor gave way"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.0)


def test_runs_go_side_by_side_within_the_cores_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    found = trials(tmp_path, seeds=[0, 1, 2], cores=4, cores_per_run=2)
    runs = Runs({"runs seed-0": 1.0, "runs seed-1": None, "runs seed-2": 3.0})
    monkeypatch.setattr(process, "start_process", runs.begin)
    told: list[str] = []
    failed = run_all(found, Machines(None, 4), False, told.append)
    assert runs.at_once == 2
    assert [trial.name for trial in failed] == ["runs seed-1"]
    assert "runs seed-1: failed: the floor gave way" in told
    runs.started, runs.earned = [], {"runs seed-1": 2.0}
    assert run_all(found, Machines(None, 4), False, told.append) == []
    assert runs.started == ["runs seed-1"]
    (score,) = aggregate(found)
    assert (score["policy"], score["score"], score["runs"], score["of"], score["iqm"]) == ("agent", "return", 3, 3, 2.0)
    assert 1 <= score["low"] < 2 < score["high"] <= 3
    other = trials(tmp_path, seeds=[0], steps=7)
    with raises(ConfigurationError, "sweep_run_differs", file=other[0].folder):
        run_all(other, Machines(None, 4), False, told.append)


def test_a_run_that_was_told_to_stop_begins_again_and_one_that_was_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    found = trials(tmp_path, seeds=[0, 1])
    for trial in found:
        trial.folder.mkdir(parents=True)
        (trial.folder / "left").write_text("")
    (found[0].folder / "summary.json").write_text('{"complete": false}')
    runs = Runs({"runs seed-0": 1.0, "runs seed-1": 1.0})
    monkeypatch.setattr(process, "start_process", runs.begin)
    assert run_all(found, Machines(None, 2), False, lambda _line: None) == []
    assert runs.at_once == 1
    assert [(trial.folder / "left").exists() for trial in found] == [False, True]


def test_settings_are_told_apart_by_the_interquartile_means_of_their_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    found = trials(tmp_path, seeds=[*range(8)], settings={"policy.learning_rate": [0.1, 0.2]}, cores=100)
    earned = {f"policy.learning_rate=0.1 seed-{seed}": float(seed) for seed in range(8)}
    earned |= {f"policy.learning_rate=0.2 seed-{seed}": 100.0 if seed == 7 else 1.0 for seed in range(8)}
    monkeypatch.setattr(process, "start_process", Runs({**earned}).begin)
    run_all(found, Machines(None, 100), True, lambda _line: None)
    slow, fast = aggregate(found)
    assert slow["settings"] == {"policy.learning_rate": 0.1}
    assert slow["iqm"] == pytest.approx(np.mean([2, 3, 4, 5]))
    assert fast["iqm"] == 1.0, "one lucky run of eight does not lead it"


def test_the_line_for_rliable_gives_an_array_of_runs_and_tasks_for_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """The line is read from the document; its arrays have the interquartile means that the sweep tells."""
    found = trials(tmp_path, seeds=[*range(4)], settings={"policy.learning_rate": [0.1, 0.2]}, cores=100)
    earned = {f"policy.learning_rate={rate} seed-{s}": s + 10 * rate for rate in (0.1, 0.2) for s in range(4)}
    monkeypatch.setattr(process, "start_process", Runs({**earned}).begin)
    run_all(found, Machines(None, 100), True, lambda _line: None)
    lines = aggregate(found)
    (tmp_path / "sweeps" / "rates").mkdir(parents=True)
    (tmp_path / "sweeps" / "rates" / "sweep.json").write_text(json.dumps(lines))
    monkeypatch.chdir(tmp_path)
    document = ROOT.joinpath("launch/docs/guides/sweeps.md").read_text()
    (line,) = re.findall(r"`(\{str\(one\[\"settings\"\]\).*?\})`", document)
    scores = eval(line, {"np": np, "json": json})
    assert [one.shape for one in scores.values()] == [(4, 1), (4, 1)]
    assert {name: np.sort(one[:, 0])[1:3].mean() for name, one in scores.items()} == pytest.approx(
        {str(one["settings"]): one["iqm"] for one in lines}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_of_real_runs_ends_with_scores_and_a_picture(tmp_path: Path) -> None:
    file = sweep_file(
        tmp_path,
        seeds=[0, 1],
        settings={"policy.learning_rate": [0.001, 0.002], "evaluation": [{"every_steps": 2_000, "episodes": 4}]},
        steps=4_000,
        sequential=True,
    )
    command = ["sweep", str(file), "--out", str(tmp_path / "out"), "--json"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    scores = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [(one["score"], one["runs"]) for one in scores] == [("evaluation", 2), ("return", 2)] * 2
    assert (tmp_path / "out" / "curves.png").stat().st_size > 10_000
    again = CliRunner().invoke(main, command)
    assert "4 runs, 4 of them done" in again.output
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == scores
