"""Population-based training: who takes over from whom, what goes on where, and that it is better than chance (J6)."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from launch.cli.main import main
from launch.sweeps.grid import Trial
from launch.sweeps.pbt import Population, Together, Trainer, played, read_population, train
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises, words_in

RATE = "policy.learning_rate"


def population_file(folder: Path, **keys: Any) -> Path:
    path = folder / "rates.yaml"
    told = {"members": 4, "generations": 3, "steps": 300, "settings": {RATE: {"low": 1e-4, "high": 1e-1}}, **keys}
    path.write_text(yaml.safe_dump(told, sort_keys=False))
    return path


class Play:
    """In place of processes: who has the greater learning rate earns more, and more in each generation."""

    def __init__(self) -> None:
        self.played: list[Trial] = []

    def __call__(self, trials: list[Trial]) -> list[Trial]:
        for trial in trials:
            self.played.append(trial)
            trial.folder.mkdir(parents=True)
            (trial.folder / "config.yaml").write_text(yaml.safe_dump(trial.run.model_dump(mode="json")))
            earned = {"returns": {"agent": {"last": trial.run.policy.learning_rate}}, "complete": True}
            (trial.folder / "summary.json").write_text(json.dumps(earned))
        return []


def population(folder: Path, play: Any, seed: int = 0, **keys: Any) -> Population:
    return Population(read_population(population_file(folder, **keys)), seed, folder / "out", play)


def test_the_worst_take_over_settings_and_checkpoints_of_the_best_and_change_them_J6(tmp_path: Path) -> None:
    play = Play()
    trained = population(tmp_path, play, resample=0.0)
    assert train(trained, 3) == 3
    first, second, _ = trained.generations
    best = max(range(4), key=lambda number: first[number].score or 0.0)
    worst = min(range(4), key=lambda number: first[number].score or 0.0)
    assert second[worst].parent == best
    factors = {1.25, 1 / 1.25}
    assert any(second[worst].settings[RATE] == pytest.approx(first[best].settings[RATE] * one) for one in factors)
    assert [second[number].parent for number in range(4) if number != worst] == [n for n in range(4) if n != worst]
    begun = play.played[4 + worst]
    assert begun.begin == tmp_path / "out" / "seed-0" / "generation-0" / f"member-{best}"
    assert {trial.begin for trial in play.played[:4]} == {None}
    assert {(trial.run.steps, trial.run.until) for trial in play.played} == {(300, 100)}
    assert len({trial.run.seed for trial in play.played}) == 12


def test_a_trainer_that_is_made_again_goes_on_where_it_was_J6(tmp_path: Path) -> None:
    whole, first, again = Play(), Play(), Play()
    (tmp_path / "whole").mkdir()
    assert train(population(tmp_path / "whole", whole), 3) == 3
    begun = population(tmp_path, first)
    assert begun.train()
    goes_on = population(tmp_path, again)
    assert train(goes_on, 3) == 3
    assert len(first.played) == 4
    assert [trial.settings for trial in [*first.played, *again.played]] == [trial.settings for trial in whole.played]
    assert goes_on.view()["best"]["settings"] == goes_on.best[1].settings


class Counts(Trainer):
    def __init__(self, name: str, times: int) -> None:
        self.name, self.left = name, times

    def train(self) -> bool:
        self.left -= 1
        return self.left >= 0


def test_trainers_nest_and_an_iteration_of_all_waits_for_each_J6(tmp_path: Path) -> None:
    inner = Together("inner", [Counts("a", 1), Counts("b", 3)])
    outer = Together("outer", [inner, Counts("c", 2)])
    assert outer.train()
    assert inner.train()
    assert train(outer, 5) == 1
    play = Play()
    two = [population(tmp_path, play, seed) for seed in (0, 1)]
    assert train(Together("both", two), 3) == 3
    assert {trial.folder.parts[-3] for trial in play.played[:8]} == {"seed-0", "seed-1"}
    with raises(ConfigurationError, "trainer_names_collide", name="both"):
        Together("both", [Counts("a", 1), Counts("a", 1)])
    with raises(ConfigurationError, "trainer_not_finished", name="endless", limit=5):
        train(Counts("endless", 100), 5)
    with raises(ConfigurationError, "trainer_runs_failed", count=2, total=2):
        played(lambda trials: trials, two[0].trials(0)[:2])


@pytest.mark.parametrize(
    ("keys", "kind", "named"),
    [
        ({"seeds": [1, 1]}, "seed_repeated", ["1"]),
        ({"settings": {"seed": [1, 2]}}, "population_setting_not_allowed", ["'seed'"]),
        ({"settings": {"policy.network": [1, 2]}}, "population_setting_not_allowed", ["'policy.network'"]),
        ({"settings": {RATE: {"low": 2, "high": 1}}}, "range_bounds_reversed", [f"settings.{RATE}", "2", "1"]),
        (
            {"settings": {RATE: {"low": 0, "high": 1, "scale": "log"}}},
            "log_range_not_positive",
            [f"settings.{RATE}", "0"],
        ),
        ({"settings": {"policy.rate": [1, 2]}}, "unknown_key", ["'policy.rate'"]),
        ({"settings": {RATE: 3}}, "value_invalid", [f"settings.{RATE}", "3"]),
        ({"settings": {RATE: {"low": "a", "high": 1}}}, "value_invalid", [f"settings.{RATE}.low", "'a'"]),
        ({"settings": {RATE: {"lo": 1, "high": 2}}}, "key_missing", [f"settings.{RATE}.low"]),
        ({"members": "x"}, "value_invalid", ["members", "'x'"]),
        ({"exploit": 0.1}, "exploit_of_nobody", ["0.1", "4"]),
        ({"generations": 301}, "too_many_generations", ["300", "301"]),
        ({"cores": 1}, "run_needs_more_cores", ["2", "population", "1"]),
        ({"speed": 1}, "settings_file_unknown_key", ["'speed'", "run", "seeds"]),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path, keys: dict[str, Any], kind: str, named: list[str]
) -> None:
    told = CliRunner().invoke(main, ["pbt", str(population_file(tmp_path, **keys)), "--out", str(tmp_path / "out")])
    assert told.exit_code == 2
    assert kinds_in(told.output) == [kind]
    assert {*named} <= words_in(told.output)
    assert not re.search("Input should|permitted", told.output), "nothing of pydantic's"
    assert not (tmp_path / "out").exists()


class Here:
    """Plays each run in this process."""

    def __call__(self, trials: list[Trial]) -> list[Trial]:
        from launch.run_dir import take_checkpoints
        from workers.sequential import Sequential

        for trial in trials:
            if trial.begin is not None:
                take_checkpoints(trial.begin, trial.folder)
            trial.folder.mkdir(parents=True, exist_ok=True)
            (trial.folder / "config.yaml").write_text(yaml.safe_dump(trial.run.model_dump(mode="json")))
            sequential = Sequential(trial.run, trial.folder)
            sequential.finish(sequential.run())
            del sequential
            gc.collect()
        return []


GAME = {
    "environment": {
        "id": "synthetic",
        "copies": 16,
        "settings": {"agents": 1, "episode_steps": 20, "observation": 8, "actions": 4},
    },
    "policy": {
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 2},
        "network": {"hidden": [16]},
        "segment_length": 16,
        "publish_interval": 1,
        "sync_interval": 1,
    },
    "checkpoint_interval": 1000.0,
    "baseline_episodes": 0,
}
"""What is right in each step is to be found out: 20 is the best there is, 5 comes by chance."""


@pytest.mark.learning
def test_a_population_ends_better_than_as_many_fixed_random_settings_J6(tmp_path: Path) -> None:
    """J6: the same members, seeds, runs and steps; only that nobody takes over in the second. The best of those may
    have been lucky with its settings: the population is not worse, and all of it comes up to them."""
    wanted: dict[str, Any] = {
        "run": "game.yaml",
        "generations": 5,
        "steps": 60_000,
        "factor": 2.0,
        "cores_per_run": 1,
        "settings": {RATE: {"low": 1e-5, "high": 1.0, "scale": "log"}},
    }
    best, mean = {}, {}
    for exploit in (0.25, 0.0):
        (tmp_path / str(exploit)).mkdir()
        (tmp_path / str(exploit) / "game.yaml").write_text(yaml.safe_dump(GAME))
        trained = population(tmp_path / str(exploit), Here(), **wanted, exploit=exploit)
        assert train(trained, 5) == 5
        scores = [one.score or 0.0 for one in trained.generations[-1]]
        best[exploit], mean[exploit] = max(scores), sum(scores) / len(scores)
    assert best[0.25] > best[0.0] - 1
    assert mean[0.25] > mean[0.0] + 2
