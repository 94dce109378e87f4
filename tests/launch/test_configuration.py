"""From preset, file and `--set` to a run; every fault is one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.configuration import load, preset_names, sentence
from protocol.config import IQN, Run
from protocol.errors import ConfigurationError

PROMISED = {"treasure-hunt", "treasure-hunt-iqn", "treasure-hunt-ppo", "cartpole", "cartpole-iqn", "spread", "herd"}


def file(folder: Path, data: Any) -> str:
    """A file of `data`."""
    path = folder / "some.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(path)


def test_the_promised_presets_are_there() -> None:
    assert set(preset_names()) >= PROMISED


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_and_says_in_a_sentence_what_it_is(name: str) -> None:
    assert isinstance(load(name), Run)
    said = sentence(name)
    assert said.endswith(".")
    assert len(said) > 20
    assert re.search(r"\b(seconds|minutes?|as long as)\b", said), "how long it takes"


def test_settings_reach_any_depth_and_are_typed_as_in_yaml() -> None:
    run = load(
        "treasure-hunt-iqn",
        [
            "policy.algorithm.gamma=0.5",
            "policy.algorithm.dueling=true",
            "policies.agent_1.learning_rate=1e-3",
            "policies.agent_1.network={hidden: [8, 9]}",
            "seconds=null",
            "environment.settings.turns=7",
        ],
    )
    algorithm = run.policy.algorithm
    assert isinstance(algorithm, IQN)
    assert (algorithm.gamma, algorithm.dueling, run.seconds) == (0.5, True, None)
    assert run.policy_config("agent_1").network.hidden == (8, 9)
    assert run.policy_config("agent_1").learning_rate == 0.001
    assert run.environment.settings["turns"] == 7


def test_later_settings_win_and_options_win_over_them() -> None:
    assert load("cartpole", ["steps=5", "steps=6"]).steps == 6
    assert load("cartpole", ["steps=5"], steps=9, seed=None).steps == 9


def test_an_empty_file_is_the_default_run(tmp_path: Path) -> None:
    assert load(file(tmp_path, "")) == Run()


@pytest.mark.parametrize(
    ("source", "settings", "said"),
    [
        (
            "tresure-hunt",
            [],
            r"neither a preset nor a file \(is treasure-hunt meant\?\); the presets are .*treasure-hunt",
        ),
        ("./none.yaml", [], "'./none.yaml' is neither a preset nor a file"),
        ("cartpole", ["learning_rat=1"], "unknown configuration key 'learning_rat'; remove it or correct"),
        ("cartpole", ["enviroment.id=x"], r"key 'enviroment' \(is environment meant\?\); remove it or correct"),
        ("cartpole", ["learning_rate=1"], r"key 'learning_rate' \(is policy.learning_rate meant\?\); remove"),
        ("cartpole", ["policy.network.hiden=1"], r"\(is policy.network.hidden meant\?\)"),
        ("cartpole", ["policies.a.segment_lenght=1"], r"\(is policies.a.segment_length meant\?\)"),
        ("cartpole", ["policy.algorithm.entropy_coeficient=1"], r"\(is policy.algorithm.entropy_coefficient meant\?\)"),
        ("cartpole", ["policy.learning_rate=fast"], r"policy.learning_rate: .*number.*got 'fast'; correct it"),
        ("cartpole", ["steps=-3"], r"steps: .*greater than or equal to 1.*got -3"),
        ("cartpole", ["steps"], "--set 'steps' is not of the form key.key=value"),
        ("cartpole", ["=3"], "is not of the form"),
        ("cartpole", ["steps.deep=3"], "'steps' is a value, not a section; set it as a whole"),
        ("cartpole", ["seed=[1"], r"'\[1' is no value; quote it"),
        ("cartpole", ["policy.algorithm.name=sarsa"], "sarsa"),
    ],
)
def test_faults_are_one_sentence_with_the_remedy_F1(source: str, settings: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as told:
        load(source, settings)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "said"), [("a: [1", "is no YAML: .*; correct it"), ("- 1\n- 2", "holds no mapping of keys")]
)
def test_files_that_hold_no_configuration_are_told(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as told:
        load(file(tmp_path, content))
    assert "\n" not in str(told.value)


def test_another_algorithm_leaves_the_keys_of_the_old_one_behind_but_not_those_that_were_set(tmp_path: Path) -> None:
    run = load("treasure-hunt", ["policy.algorithm.batch_size=32", "policy.algorithm.name=iqn"])
    assert run.policy.algorithm == IQN(batch_size=32)
    source = file(tmp_path, {"policies": {"a": {"algorithm": {"epochs": 2}}}})
    assert load(source, ["policies.a.algorithm.name=iqn"]).policy_config("a").algorithm == IQN()
    same = load("treasure-hunt", ["policy.algorithm.name=ppo"])
    assert same == load("treasure-hunt")


def test_a_setting_replaces_what_stands_there_under_its_other_name(tmp_path: Path) -> None:
    assert load("treasure-hunt", ["policy.train_interval=7"]).policy.publish_interval == 7
    old = {"policy": {"train_interval": 5, "model_config": {"activation": "relu"}}, "policies": {"a": {"network": {}}}}
    source = file(tmp_path, old)
    run = load(source, ["policy.publish_interval=7", "policy.network.hidden=[8]", "policies.a.model_config.hidden=[9]"])
    assert run.policy.publish_interval == 7
    assert (run.policy.network.hidden, run.policy.network.activation) == ((8,), "relu")
    assert run.policy_config("a").network.hidden == (9,)
