"""A sweep that searches: trials drawn by Optuna, pruned, gone on with after any death, refused in one sentence."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from click.testing import CliRunner, Result
from optuna.trial import TrialState

from launch.cli.main import main
from launch.local import process
from launch.sweeps import runs as module
from launch.sweeps import search
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, words_in
from tests.launch.cluster.test_plan import SSH
from tests.tools import PYTHON_PATH
from tests.waiting import until

RATE = "policy.learning_rate"
EVALUATED = {"evaluation": {"every_steps": 100, "episodes": 1}}


def search_file(folder: Path, search: Any = None, settings: Any = None, **keys: Any) -> Path:
    path = folder / "rates.yaml"
    told = {"run": "cartpole", "seeds": [0], "steps": 300, "search": {"trials": 4, "score": "return"}, **keys}
    told["settings"] = {RATE: {"low": 1e-4, "high": 1e-1, "scale": "log"}, **(settings or {})}
    told["search"] |= search or {}
    path.write_text(yaml.safe_dump(told, sort_keys=False))
    return path


def sweep(file: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["sweep", str(file), "--out", str(file.parent / "out"), *more])


def study(folder: Path) -> optuna.Study:
    """As the page on sweeps has it."""
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder}/out/study.db")


class Run:
    """In place of a process. What `earned` makes of the configuration is earned at each of three evaluations and at the
    end; None: it fails. One that is `stuck` ends only when it is told to."""

    def __init__(self, folder: Path, config: Path, earned: float | None, stuck: bool) -> None:
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config.read_text())
        self.folder, self.earned, self.popen, self.code = folder, earned, self, None if stuck else int(earned is None)
        lines = [
            {"source": "run", "policy": "agent", "environment": "world", "agent_steps": steps + 7, "mean": earned}
            for steps in ((100,) if stuck else (100, 200, 300))
        ]
        (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if self.code is not None:
            self._sum_up(complete=earned is not None)

    def send_signal(self, _number: int) -> None:
        self.code = 9
        self._sum_up(complete=False)

    def last_words(self, _lines: int) -> str:
        return "the floor gave way"

    def _sum_up(self, complete: bool) -> None:
        summary = {"complete": complete, "returns": {"agent": {"last": self.earned}}}
        (self.folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Configurations of the runs that began."""
    return earning(monkeypatch, lambda config: config["policy"]["learning_rate"])


def earning(
    patch: pytest.MonkeyPatch, earned: Callable[[Any], float | None], stuck: Callable[[Any], bool] = lambda _: False
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def begin(_role: str, command: list[str], _output: Path) -> Run:
        config = yaml.safe_load(Path(command[2]).read_text())
        found.append(config)
        return Run(Path(command[command.index("--run-dir") + 1]), Path(command[2]), earned(config), stuck(config))

    patch.setattr(process, "start_process", begin)
    patch.setattr(search, "draw_study", lambda *_: None)  # it takes a second
    patch.setattr(module, "_LOOK_EVERY", 0.0)
    return found


def test_settings_are_drawn_from_their_ranges_and_the_mean_of_the_seeds_is_the_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = earning(monkeypatch, lambda config: config["policy"]["learning_rate"] + (config["seed"] or -1))
    settings = {
        "policy.algorithm.epochs": {"low": 2, "high": 6, "step": 2},
        "policy.algorithm.entropy_coefficient": {"low": 0.0, "high": 0.3, "step": 0.1},
        "policy.network.hidden": [[16], [32, 32]],
        "policy.algorithm.gamma": 0.9,
    }
    told = sweep(search_file(tmp_path, {"trials": 12}, settings, seeds=[0, 1]), "--json")
    assert told.exit_code == 0, told.output
    assert len(started) == 24
    assert all(1e-4 <= one["policy"]["learning_rate"] <= 1e-1 for one in started)
    of_algorithm = {key: {one["policy"]["algorithm"][key] for one in started} for key in ("epochs", "gamma")}
    assert of_algorithm == {"epochs": {2, 4, 6}, "gamma": {0.9}}
    entropies = {round(10 * one["policy"]["algorithm"]["entropy_coefficient"], 9) for one in started}
    assert entropies <= {0, 1, 2, 3}
    assert {tuple(one["policy"]["network"]["hidden"]) for one in started} == {(16,), (32, 32)}
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [one["score"] for one in found] == pytest.approx([one["settings"][RATE] for one in found])
    assert {len(one["values"]) for one in found} == {2}
    assert {one["settings"]["policy.algorithm.gamma"] for one in found} == {0.9}
    best = study(tmp_path).best_trial
    assert best.value == max(one["score"] for one in found)
    assert set(best.params) == {RATE, *settings} - {"policy.algorithm.gamma"}


def test_there_are_pictures_of_the_study(tmp_path: Path) -> None:
    found = optuna.create_study(direction="maximize")
    for number in range(3):
        trial = found.ask()
        found.tell(trial, trial.suggest_float(RATE, 0.1, 0.2) + number)
        search.draw_study(found, tmp_path)  # of one trial it is too early to tell what matters
        assert (tmp_path / "importance.png").exists() == (number > 0)
    assert {"history.png", "parallel.png"} <= {one.name for one in tmp_path.iterdir()}


def test_more_trials_go_on_and_a_number_draws_the_same_however_often_it_is_interrupted(
    tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    for trials in (2, 5, 5):
        assert sweep(search_file(tmp_path, {"trials": trials, "sampler": "random"})).exit_code == 0
    assert len(started) == 5
    (tmp_path / "whole").mkdir()
    assert sweep(search_file(tmp_path / "whole", {"trials": 5, "sampler": "random"})).exit_code == 0
    rates = [one["policy"]["learning_rate"] for one in started]
    assert rates[:5] == rates[5:]
    assert len({*rates}) == 5


@pytest.mark.parametrize("pruner", ["halving", pytest.param("median", marks=pytest.mark.slow)])
def test_a_trial_that_is_behind_is_told_to_end_and_marked_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruner: str
) -> None:
    """One that earns less than the first is stuck after its first evaluation: the sweep ends since it is pruned."""
    first: list[float] = []

    def behind(config: Any) -> bool:
        first.append(config["policy"]["learning_rate"])
        return len(first) > 5 and first[-1] < min(first[:5])

    earning(monkeypatch, lambda config: config["policy"]["learning_rate"], behind)
    keys = {"trials": 16, "score": "evaluation", "pruner": pruner, "sampler": "random"}
    told = sweep(search_file(tmp_path, keys, EVALUATED, cores=2, cores_per_run=2))
    assert told.exit_code == 0, told.output
    pruned = study(tmp_path).get_trials(states=[TrialState.PRUNED])
    assert len(study(tmp_path).trials) == 16
    assert [one.last_step for one in pruned if one.params[RATE] < min(first[:5])]
    stopped = tmp_path / "out" / f"trial-{pruned[0].number:04}" / "seed-0"
    assert not json.loads((stopped / "summary.json").read_text())["complete"]
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert {one["trial"]: one["pruned_at"] for one in found if one["state"] == "pruned"} == {
        one.number: one.last_step for one in pruned
    }


def test_a_trial_of_several_seeds_is_pruned_by_their_mean_and_ends_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second trial one seed earns more than the first trial did, the other far less."""
    begun: list[int] = []

    def earned(config: Any) -> float:
        begun.append(config["seed"])
        return 10.0 if len(begun) <= 2 else 11.0 if config["seed"] else 1.0

    earning(monkeypatch, earned, lambda _config: len(begun) > 2)
    keys = {"trials": 2, "score": "evaluation", "pruner": "halving"}
    told = sweep(search_file(tmp_path, keys, EVALUATED, seeds=[0, 1], cores=4, cores_per_run=2))
    assert told.exit_code == 0, told.output
    assert [(one.state, one.value) for one in study(tmp_path).trials] == [
        (TrialState.COMPLETE, 10.0),
        (TrialState.PRUNED, 6.0),
    ]
    for seed in (0, 1):
        assert not json.loads((tmp_path / "out" / f"trial-0001/seed-{seed}/summary.json").read_text())["complete"]


def test_a_trial_that_fails_has_no_score_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.0, None, float("nan"), 2.0])
    earning(monkeypatch, lambda _config: next(scores))
    assert sweep(search_file(tmp_path)).exit_code == 0
    states = [one.state.name for one in study(tmp_path).trials]
    assert states == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    faults = [one["fault"] for one in json.loads((tmp_path / "out" / "sweep.json").read_text())]
    assert [fault is None for fault in faults] == [True, False, False, True]


def test_where_all_trials_fail_the_search_ends_after_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = earning(monkeypatch, lambda _config: None)
    told = sweep(search_file(tmp_path, {"trials": 50}))
    assert (told.exit_code, kinds_in(told.output)) == (ConfigurationError.exit_code, ["search_trials_fail"])
    assert len(begun) == 3


def test_a_policy_that_does_not_exist_is_told_after_the_first_trial_which_counts_when_it_is_corrected(
    tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    told = sweep(search_file(tmp_path, {"policy": "hunter"}, cores_per_run=2))
    assert kinds_in(told.output) == ["score_of_policy_missing"]
    assert len(started) == 1
    assert sweep(search_file(tmp_path, {"policy": "agent"}, cores_per_run=2)).exit_code == 0
    assert len(started) == 4
    assert len(study(tmp_path).get_trials(states=[TrialState.COMPLETE])) == 4


def test_a_search_goes_on_with_no_other_meaning(tmp_path: Path, started: list[dict[str, Any]]) -> None:
    assert sweep(search_file(tmp_path, {"trials": 1})).exit_code == 0
    for key, changes in {
        "direction": {"search": {"direction": "minimize"}},
        "settings": {"settings": {RATE: [0.1, 0.2]}},
        "seeds": {"seeds": [1]},
        "run": {"steps": 301},
    }.items():
        told = sweep(search_file(tmp_path, **changes))  # type: ignore[arg-type]
        assert (told.exit_code, kinds_in(told.output)) == (2, ["search_differs"])
        assert key in words_in(told.output)
    assert len(started) == 1


def test_a_run_that_is_still_alive_in_a_folder_is_waited_for(
    tmp_path: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that outlived its sweep: it has ended by the second look."""
    looks: list[int] = []

    def in_use(_folder: Path) -> bool:
        looks.append(len(started))
        return len(looks) < 2

    monkeypatch.setattr(module, "in_use", in_use)
    told = sweep(search_file(tmp_path, {"trials": 1}))
    assert told.exit_code == 0, told.output
    assert looks == [0, 0]
    assert len(started) == 1


def test_a_folder_in_which_another_sweep_runs_and_a_study_that_is_none_are_refused(
    tmp_path: Path, started: list[dict[str, Any]]
) -> None:
    file = search_file(tmp_path)
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kinds_in(sweep(file).output) == ["sweep_folder_in_use"]
    (tmp_path / "out" / "study.db").write_text("no database, but longer than the header of one" * 9)
    assert kinds_in(sweep(file).output) == ["study_unusable"]
    assert started == []


@pytest.mark.parametrize(
    ("keys", "kind", "named"),
    [
        ({"search": {"trials": 0}}, "value_invalid", ["search.trials", "0"]),
        ({"search": {"sampler": "best"}}, "value_invalid", ["search.sampler", "'best'"]),
        ({"search": {"pruner": "early"}}, "value_invalid", ["search.pruner", "'early'"]),
        ({"search": {"pruner": "median"}}, "pruner_without_evaluation", ["search: pruner median"]),
        ({"search": {"score": "evaluation"}}, "search_without_evaluation", ["evaluation.every_steps"]),
        ({"search": {"sampler_": "tpe"}}, "unknown_key", ["'search.sampler_'"]),
        ({"settings": {RATE: {"low": 2, "high": 1}}}, "range_bounds_reversed", [f"settings.{RATE}: low 2"]),
        ({"settings": {RATE: {"low": 1}}}, "key_missing", [f"settings.{RATE}.high"]),
        ({"settings": {RATE: {"low": 1, "high": 2, "step": 3}}}, "range_step_impossible", [f"settings.{RATE}: step"]),
        (
            {"settings": {RATE: {"low": 1, "high": 9, "step": 2, "scale": "log"}}},
            "range_step_impossible",
            [f"settings.{RATE}: step"],
        ),
        ({"settings": {"policy.algorithm.epochs": {"low": 0, "high": 2}}}, "value_invalid", ["epochs"]),
        ({"settings": {"policy.rate": [1, 2]}}, "unknown_key", ["'policy.rate'"]),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path, keys: dict[str, Any], kind: str, named: list[str]
) -> None:
    told = sweep(search_file(tmp_path, **keys))
    assert told.exit_code == 2, told.output
    assert kinds_in(told.output) == [kind]
    assert all(name in told.output for name in named), told.output
    assert not (tmp_path / "out").exists()


def test_a_range_needs_a_search(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(yaml.safe_dump({"settings": {RATE: {"low": 1, "high": 2}}}))
    told = sweep(path)
    assert kinds_in(told.output) == ["range_without_search"]
    assert f"settings.{RATE}" in told.output


def test_without_optuna_a_search_says_how_to_install_it_and_a_grid_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    told = sweep(search_file(tmp_path))
    assert kinds_in(told.output) == ["optuna_missing"]
    assert "[search]" in told.output
    path = search_file(tmp_path)
    path.write_text(yaml.safe_dump({"run": "cartpole", "settings": {RATE: [0.1, 0.2]}}))
    assert sweep(path, "--dry-run").exit_code == 0


def test_a_dry_run_tells_where_the_first_runs_would_be_and_makes_no_study(tmp_path: Path) -> None:
    told = sweep(search_file(tmp_path, cores=4, cores_per_run=2), "--dry-run")
    assert told.exit_code == 0, told.output
    assert [line.partition(":")[0] for line in told.output.splitlines()[:2]] == ["localhost", "localhost"]
    assert not (tmp_path / "out").exists()


ROOKERY = f"""#!/bin/sh
'''exec' "{sys.executable}" -S "$0" "$@"
' '''
# a stand-in for `rookery train CONFIG --run-dir DIR ...`: says that it began; the second one there is waits for `go`
import fcntl, json, pathlib, shutil, signal, sys, time
config, folder = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
folder.mkdir()
lock = (folder / ".lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
shutil.copy(config, folder / "config.yaml")
out = folder.parent.parent
with (out / "begun").open("a") as begun:
    begun.write(folder.parent.name + "\\n")
while folder.parent.name == "trial-0001" and not (out / "go").exists() and not told:
    time.sleep(0.01)
(folder / "summary.json").write_text(
    json.dumps({{"complete": not told, "returns": {{"agent": {{"last": 1.0}}}}}})
)
sys.exit(9 if told else 0)
"""


def test_a_sweep_that_was_killed_goes_on_and_no_trial_is_lost_or_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the sweep while the second trial of four goes on."""
    for name in ("bin", "machines/a"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in (("ssh", SSH), ("rookery-there", ROOKERY)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_HOSTS", str(tmp_path / "machines"))
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.02)
    file = search_file(tmp_path, hosts={"a": {"cores": 1, "rookery": "rookery-there"}}, sequential=True)
    begun, out = tmp_path / "out" / "begun", tmp_path / "out"
    command = [sys.executable, "-P", "-m", "launch", "sweep", str(file), "--out", str(out)]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": PYTHON_PATH}, stderr=subprocess.DEVNULL, start_new_session=True
    ) as first:
        try:
            until(lambda: begun.exists() and "trial-0001" in begun.read_text(), what="the second trial began")
        finally:
            first.kill()
    before = [one.params for one in study(tmp_path).trials]
    assert [one.state for one in study(tmp_path).trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    (out / "go").touch()
    told = sweep(file)
    assert told.exit_code == 0, told.output
    after = study(tmp_path).trials
    assert [one.state for one in after] == [TrialState.COMPLETE] * 4
    assert [one.params for one in after[:2]] == before
    again = begun.read_text().split()
    assert [again.count(f"trial-{number:04}") for number in (0, 2, 3)] == [1, 1, 1]
    assert again.count("trial-0001") <= 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_of_real_runs_scores_what_they_evaluated(tmp_path: Path) -> None:
    keys = {"trials": 2, "score": "evaluation", "pruner": "halving"}
    evaluated = {"evaluation": {"every_steps": 1000, "episodes": 4}}
    told = sweep(search_file(tmp_path, keys, evaluated, steps=3000, sequential=True))
    assert told.exit_code == 0, told.output
    for one in study(tmp_path).get_trials(states=[TrialState.COMPLETE]):
        lines = (tmp_path / "out" / f"trial-{one.number:04}" / "seed-0" / "evaluations.jsonl").read_text().splitlines()
        assert one.value == json.loads(lines[-1])["mean"]
    assert (tmp_path / "out" / "curves.png").exists()
