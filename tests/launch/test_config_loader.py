"""From preset, file and `--set` to a run; every fault is one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.config_loader import load
from launch.presets import preset_names, sentence
from protocol.config.run import IQN
from protocol.errors import ConfigurationError
from tests.faults import raises


def file(folder: Path, data: Any) -> str:
    """A file of `data`."""
    path = folder / "some.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(path)


def test_every_preset_is_valid_and_says_in_a_sentence_how_long_it_takes() -> None:
    for name in preset_names():
        load(name)
        assert re.search(r"\b(seconds|minutes?|as long as)\b.*\.$", sentence(name)), name


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


@pytest.mark.parametrize("content", ["", "# environment: nothing yet", "---", "{}"])
def test_an_empty_file_is_no_run(tmp_path: Path, content: str) -> None:
    source = file(tmp_path, content)
    with raises(ConfigurationError, "document_empty", file=Path(source)):
        load(source)


def test_numbers_and_algorithms_may_be_written_as_people_write_them(tmp_path: Path) -> None:
    source = file(tmp_path, "policy: {algorithm: sac}\npolicies: {one: {algorithm: dqn}}\nsteps: 1e5\nseed: 2.0E+3")
    run = load(source, ["policy.segment_length=3.2e1", "policy.learning_rate=1e-3"])
    assert (run.policy.algorithm.name, run.policy_config("one").algorithm.name) == ("sac", "dqn")
    assert (run.steps, run.seed, run.policy.segment_length, run.policy.learning_rate) == (100_000, 2_000, 32, 0.001)
    changed = load(source, ["policy.algorithm=ppo", "policy.algorithm.epochs=3", "policies.one.algorithm=iqn"])
    assert (changed.policy.algorithm.name, changed.policy_config("one").algorithm.name) == ("ppo", "iqn")
    kept = load("cartpole", ["policy.algorithm=ppo"])
    assert kept == load("cartpole")  # what the preset says of its algorithm stays
    for wrong in ("steps=1.5e0", "seed=1e-1"):
        with raises(ConfigurationError, "value_invalid", key=wrong.partition("=")[0]):
            load(source, [wrong])


@pytest.mark.parametrize(("source", "hint"), [("tresure-hunt", " (is treasure-hunt meant?)"), ("./none.yaml", "")])
def test_what_is_no_preset_and_no_file_is_told_with_what_may_be_meant_F1(source: str, hint: str) -> None:
    with raises(ConfigurationError, "run_source_unknown", value=source, hint=hint, choices=preset_names()) as told:
        load(source)
    assert_sentence_with_remedy(told.value)


@pytest.mark.parametrize(
    ("word", "what", "meant"),
    [
        ("restarts=3", "a setting", "--set restarts=3"),
        ("w:World", "an environment", "--env w:World"),
        ("gymnasium:CartPole-v1", "an environment", "--env gymnasium:CartPole-v1"),
        ("ALE/Pong-v5", "an environment", "--env gymnasium:ALE/Pong-v5"),
        ("inner/w.py", "code", "--env inner.w:FUNCTION"),
        ("./w", "code", "--env w:FUNCTION"),
        ("../w.py", "code", "--env w:FUNCTION"),
        ("inner", "a folder, and no run's", "that of a run"),
    ],
)
def test_a_word_that_is_something_else_of_a_run_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, what: str, meant: str
) -> None:
    for name in ("inner/w.py", "w.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as told:
        load(word)
    assert (told.value.kind, told.value.value, told.value.what) == ("word_misplaced", word, what)
    assert told.value.meant.startswith(meant)
    assert_sentence_with_remedy(told.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rat", ""),
        ("enviroment.id", "environment"),
        ("learning_rate", "policy.learning_rate"),
        ("policy.network.hiden", "policy.network.hidden"),
        ("policies.a.segment_lenght", "policies.a.segment_length"),
        ("policy.algorithm.entropy_coeficient", "policy.algorithm.entropy_coefficient"),
        ("policy.algorithm.learning_rate", "policy.learning_rate"),
        ("policy.algorithm.seed", "seed"),
        ("gae_lambda", "policy.algorithm.gae_lambda"),
        ("policies.a.hidden", "policies.a.network.hidden"),
        ("policy.LEARNING_RATE", "policy.learning_rate"),
        ("environment.name", "environment.settings.name"),
    ],
)
def test_a_key_that_is_none_is_told_with_the_one_that_may_be_meant_F1(key: str, meant: str) -> None:
    question = f" (is {meant} meant?)" if meant else ""
    with raises(ConfigurationError, "unknown_key", key=key.removesuffix(".id"), meant=question) as told:
        load("cartpole", [f"{key}=1"])
    assert_sentence_with_remedy(told.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("algo", "here that is policy.algorithm"),
        ("policy.entropy_coef", "here that is policy.algorithm.entropy_coefficient"),
        ("policies.a.lr", "here that is policies.a.learning_rate"),
        ("policies.a.num_timesteps", "here that is steps"),
        ("wandb", "here that is loggers: [wandb]"),
        ("policy.algorithm.tau", "that is a key of c51, dqn, iqn, qmix, sac, vdn"),
        ("policy.algorithm.learn_temperature", "that is a key of sac"),
    ],
)
def test_a_key_of_another_library_or_algorithm_is_told_as_that(key: str, meant: str) -> None:
    with raises(ConfigurationError, "unknown_key", key=key, meant=f" ({meant})"):
        load("cartpole", [f"{key}=1"])


@pytest.mark.parametrize(
    ("setting", "key", "meant"),
    [
        ("policy.algorithm=PPO", "policy.algorithm.name", "ppo"),
        ("policies.a.algorithm=DQN", "policies.a.algorithm.name", "dqn"),
        ("policy.network.activation=ReLU", "policy.network.activation", "relu"),
        ("device=gpu", "device", "cuda"),
        ("device=cuda:0", "device", "cuda"),
        ("device=CPU", "device", "cpu"),
        ("environment=CartPole-v1", "environment", "environment.id"),
        ("policy=ppo", "policy", "policy.algorithm"),
        ("policy.network=[64, 64]", "policy.network", "policy.network.hidden"),
    ],
)
def test_a_value_that_is_none_is_told_with_what_may_be_meant(setting: str, key: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        load("cartpole", [setting])
    facts = told.value.facts
    assert told.value.kind in ("choice_unknown", "value_invalid")
    assert facts["key"] == key
    assert f"(is {meant} meant?" in facts.get("hint", "") + facts.get("reason", "")
    assert ("CUDA_VISIBLE_DEVICES" in facts.get("reason", "")) == (":0" in setting)
    assert_sentence_with_remedy(told.value)


@pytest.mark.parametrize(
    ("setting", "kind", "facts"),
    [
        ("steps=1M", "value_invalid", {"key": "steps", "reason": "should be a whole number and no text, as 7 or 1e6"}),
        (
            "steps=-3",
            "value_invalid",
            {"key": "steps", "reason": "should be greater than or equal to 1", "value": "-3"},
        ),
        ("steps", "setting_not_key_value", {"value": "steps"}),
        ("=3", "setting_not_key_value", {"value": "=3"}),
        ("policy.start=", "setting_without_value", {"value": "policy.start=", "key": "policy.start"}),
        ("steps= ", "setting_without_value", {"value": "steps= ", "key": "steps"}),
        ("steps.deep=3", "setting_of_no_section", {"key": "steps"}),
        ("seed=[1", "setting_value_unreadable", {"value": "[1"}),
    ],
)
def test_a_setting_that_cannot_be_is_one_sentence_with_the_remedy_F1(
    setting: str, kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts) as told:
        load("cartpole", [setting])
    assert_sentence_with_remedy(told.value)


@pytest.mark.parametrize(("content", "kind"), [("a: [1", "document_not_yaml"), ("- 1\n- 2", "document_not_a_mapping")])
def test_files_that_hold_no_configuration_are_told(tmp_path: Path, content: str, kind: str) -> None:
    source = file(tmp_path, content)
    with raises(ConfigurationError, kind, file=Path(source)) as told:
        load(source)
    assert_sentence_with_remedy(told.value)


def assert_sentence_with_remedy(fault: Exception) -> None:
    """What is wrong, a semicolon, what to do."""
    wrong, _, remedy = str(fault).rpartition("; ")
    assert wrong
    assert remedy
    assert "\n" not in str(fault)


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
