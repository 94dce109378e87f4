"""The run's configuration: documented defaults, aliases, overrides, the round trip, and sentences for every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.config.run import (
    DQN,
    IMPALA,
    IQN,
    PPO,
    Dataset,
    EnvironmentConfig,
    FrozenPolicy,
    PolicyConfig,
    Run,
    parse_run,
)
from protocol.config.yaml_file import read_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete, World
from tests.faults import raises
from tests.tools import ROOT

IQN_POLICY = {"algorithm": {"name": "iqn"}}


def _world(*names: str, actions: int = 5) -> World:
    agents = tuple(Agent(name=n, observation=Box(shape=(3,)), action=Discrete(n=actions)) for n in names)
    return World(id="w", agents=agents)


def test_every_key_of_the_source_documents_is_accepted_where_it_is_documented() -> None:
    run = parse_run(
        {
            "num_learner_processes": 2,
            "device_per_agent": True,
            "actor_timeout": 5,
            "learner_timeout": 6,
            "logging": False,
            "log_interval": 7,
            "log_dir": "l",
            "monitor_period": 2.0,
            "starvation_sleep": 0.001,
            "multiprocessing": {"enabled": False, "mode": "double_buffer", "num_agents": 3},
            "policy": {
                "train_interval": 4,
                "sync_interval": 20,
                "model_config": {"hidden": [8]},
                "learning_rate": 0.1,
                "algorithm": {
                    "name": "iqn",
                    "buffer_capacity": 5_000,
                    "batch_size": 32,
                    "target_update_freq": 3,
                    "epsilon_decay_freq": 10,
                    "epsilon_decay": 1e-3,
                    "epsilon_min": 0.1,
                },
            },
        }
    )
    assert run.policy.publish_interval == 4
    assert run.policy.network.hidden == (8,)
    assert run.policy.publish_mode == "double_buffer"
    assert run.policy_config("any").publish_mode == "double_buffer"


def test_model_config_none_means_the_default_network() -> None:
    assert parse_run({"policy": {"model_config": None}}).policy.network == PolicyConfig().network


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"stepz": 1}, "stepz", "unknown_key"),
    ({"policy": {"learning_rat": 1}}, "policy.learning_rat", "unknown_key"),
    ({"policy": {"algorithm": {"name": "iqn", "gama": 1}}}, "policy.algorithm.gama", "unknown_key"),
    ({"policies": {"gem": {"foo": 1}}}, "policies.gem.foo", "unknown_key"),
    ({"policies": {"iqn": {"foo": 1}}}, "policies.iqn.foo", "unknown_key"),
    ({"policies": {"gem": {"algorithm": {"name": "iqn", "x": 1}}}}, "policies.gem.algorithm.x", "unknown_key"),
    ({"environment": {"copeis": 1}}, "environment.copeis", "unknown_key"),
    ({"steps": "many"}, "steps", "value_invalid 'many'"),
    ({"steps": 0}, "steps", "value_invalid 0"),
    ({"policy": {"learning_rate": -1}}, "policy.learning_rate", "value_invalid -1"),
    ({"policies": {"gem": {"learning_rate": -1}}}, "policies.gem.learning_rate", "value_invalid -1"),
    ({"policies": {"gem": 3}}, "policies.gem", "value_invalid 3"),
    ({"policies": {"gem/../..": {}}}, "policies.gem/../..", "value_invalid 'gem/../..'"),
    ({"agents": {"gem": "../x"}}, "agents.gem", "value_invalid '../x'"),
    ({"policy": {"algorithm": {"name": "a2c"}}}, "policy.algorithm.name", "choice_unknown 'a2c'"),
    ({"policies": {"gem": {"algorithm": "trpo"}}}, "policies.gem.algorithm.name", "choice_unknown 'trpo'"),
    ({"policy": {"algorithm": "reinforce"}}, "policy.algorithm.name", "choice_unknown impala"),
    ({"policy": {"algorithm": {"name": ["dqn"]}}}, "policy.algorithm.name", "choice_unknown dqn"),
    ({"policy": {"algorithm": "mappo"}}, "policy.algorithm.name", "choice_unknown central_critic"),
    ({"policy": {"algorithm": 3}}, "policy.algorithm", "value_invalid 3"),
    ({"learners": 2}, "learners", "value_invalid cohort"),
    ({"learners": {"a": 3}}, "learners", "value_invalid 3"),
    ({"policy": {"network": {"hidden": 64}}}, "policy.network.hidden", "value_invalid list"),
    ({"policy": {"lr": 1}}, "policy.lr", "unknown_key policy.learning_rate"),
    ({"total_timesteps": 1}, "total_timesteps", "unknown_key steps"),
    ({"policies": {"gem": {"clip_range": 1}}}, "policies.gem.clip_range", "unknown_key policies.gem.algorithm.clip"),
    ({"policy": {"algorithm": {"n_epochs": 1}}}, "policy.algorithm.n_epochs", "unknown_key policy.algorithm.epochs"),
    ({"num_envs": 1}, "num_envs", "unknown_key environment.copies"),
    ({"policy": None}, "policy", "value_invalid None"),
    ({"actor_timeout": float("inf")}, "actor_timeout", "value_invalid inf"),
    ({"policy": {"learning_rate": float("nan")}}, "policy.learning_rate", "value_invalid nan"),
    ({"lock_timeout": 0}, "lock_timeout", "value_invalid 0"),
    ({1: 2}, "1", "value_invalid 1"),  # type: ignore[dict-item]
    ({"policy": {"train_interval": 4, "publish_interval": 5}}, "policy.train_interval", "publish_interval_ambiguous"),
    (
        {"policies": {"gem": {"train_interval": 4, "publish_interval": 5}}},
        "policies.gem.train_interval",
        "publish_interval_ambiguous",
    ),
    ({"policy": {"model_config": {}, "network": {}}}, "policy.model_config", "network_ambiguous"),
    (
        {"multiprocessing": {"mode": "snapshot"}, "policy": {"publish_mode": "double_buffer"}},
        "multiprocessing.mode",
        "publish_mode_conflict",
    ),
    (
        {"policy": {"algorithm": {"name": "iqn", "learning_starts": 200_000}}},
        "policy.algorithm.learning_starts",
        "learning_starts_unreachable",
    ),
    (
        {"policy": {"network": {"core": "lstm"}, "algorithm": {"name": "sac"}}},
        "policy.network.core",
        "algorithm_not_recurrent",
    ),
    *(
        (
            {"policy": {"segment_length": 8, "network": {"core": "lstm"}, "algorithm": {"name": "dqn", **keys}}},
            f"policy.algorithm.{key}",
            kind,
        )
        for key, keys, kind in (
            ("frames", {"frames": 2}, "memory_on_replay_conflict"),
            ("noisy", {"noisy": True}, "memory_on_replay_conflict"),
            ("priority_alpha", {"priority_alpha": 0.6}, "memory_on_replay_conflict"),
            ("entry", {"entry": "own:Loss"}, "memory_on_replay_conflict"),
            ("burn_in", {"burn_in": 8}, "burn_in_too_long"),
        )
    ),
    ({"policy": {"algorithm": {"name": "dqn", "burn_in": 4}}}, "policy.algorithm.burn_in", "burn_in_without_core"),
    (
        {"policy": {"network": {"share_layers": True}, **IQN_POLICY}},
        "policy.network.share_layers",
        "layers_not_shareable",
    ),
    (
        {"policy": {"algorithm": {"central_critic": True}, "network": {"share_layers": True}}},
        "policy.network.share_layers",
        "layers_not_shareable",
    ),
    ({"policy": {"algorithm": {"zero_start": True}}}, "policy.algorithm.zero_start", "zero_start_without_recurrence"),
    ({"policy": {"flow": "drop_newest", **IQN_POLICY}}, "policy.flow", "drop_newest_with_replay"),
    ({"policies": {"gem": {"flow": "drop_newest", **IQN_POLICY}}}, "policies.gem.flow", "drop_newest_with_replay"),
    ({"policy": {"compile": True, "algorithm": {"name": "sac"}}}, "policy.compile", "compile_not_supported sac"),
    (
        {"policy": {"compile": True, "algorithm": {"central_critic": True}}},
        "policy.compile",
        "compile_conflict central_critic",
    ),
    (
        {"policies": {"gem": {"compile": True, "algorithm": {"priority_alpha": 0.5}}}},
        "policies.gem.compile",
        "compile_conflict priority_alpha",
    ),
    ({"policy": {"compile": True, "algorithm": {"entry": "mine:Mine"}}}, "policy.compile", "compile_conflict entry"),
    ({"policy": {"algorithm": {"mine": 3}}}, "policy.algorithm.mine", "unknown_key mine"),
    (
        {"policy": {"algorithm": {"name": "sac"}, "network": {"autoregressive": True}}},
        "policy.network.autoregressive",
        "autoregressive_refused sac",
    ),
    (
        {"auxiliaries": {"new": {"algorithm": {"name": "rnd"}, "network": {"autoregressive": ["a"]}}}},
        "auxiliaries.new.network.autoregressive",
        "autoregressive_refused rnd",
    ),
    ({"policy": {"algorithm": {"name": "bc", "entry": "mine:Mine"}}}, "policy.algorithm.entry", "unknown_key dqn"),
    ({"policy": {"compile": True, "ranks": 2}}, "policy.compile", "compile_conflict ranks"),
    (
        {"environment": {"observe": {"add": ["agent", "last_action", "agent"]}}},
        "environment.observe.add",
        "observe_adds_twice 'agent'",
    ),
    ({"policy": {"compile": True, "record": True}}, "policy.compile", "compile_conflict record"),
]
"""Keys, the one at fault, and the kind with a word that must be in its sentence."""


@pytest.mark.parametrize(("data", "key", "fault"), FAULTS, ids=[f"{key} {fault}" for _, key, fault in FAULTS])
def test_F1_every_fault_is_one_sentence_with_place_and_remedy(data: dict[str, Any], key: str, fault: str) -> None:
    kind, _, word = fault.partition(" ")
    with raises(ConfigurationError, kind, key=key) as caught:
        parse_run(data)
    told = str(caught.value)
    assert word in told
    assert key.partition(".")[0] in told or key == "multiprocessing.mode"
    assert "\n" not in told
    assert "validation error" not in told


REMEMBERING: dict[str, Any] = {"network": {"core": "gru"}}
OVERRIDES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"learning_rate": 0.5}),
    ({}, {"train_interval": 4}),
    ({"train_interval": 6}, {"train_interval": 4}),
    ({}, {"model_config": {"hidden": [3]}}),
    ({"network": {"hidden": [9], "activation": "relu"}}, {"network": {"hidden": [3]}}),
    ({}, IQN_POLICY),
    ({"algorithm": {"name": "ppo", "gamma": 0.5}}, {"algorithm": {"clip": 0.3}}),
    ({"algorithm": {"gamma": 0.5}}, {"algorithm": {"name": "iqn", "frames": 4}}),
    ({"algorithm": {"name": "iqn", "frames": 3}}, {"algorithm": {"n_step": 1}, "flow": "drop_oldest"}),
    ({"algorithm": {"name": "iqn", "frames": 3}}, {"algorithm": {"name": "ppo"}}),
]


@pytest.mark.parametrize(("common", "override"), OVERRIDES)
def test_a_run_is_the_same_after_travelling(common: dict[str, Any], override: dict[str, Any]) -> None:
    run = parse_run(
        {
            "policy": common,
            "policies": {"gem": override},
            "multiprocessing": {"mode": "double_buffer"},
            "environment": {"settings": {"size": 5, "reach": float("inf")}},
        }
    )
    again = Run.model_validate_json(run.model_dump_json())
    assert again == parse_run(yaml.safe_load(yaml.safe_dump(run.model_dump(mode="json")))) == run
    for policy in ("gem", "bone"):
        assert again.policy_config(policy) == run.policy_config(policy)


def test_keys_of_a_class_of_ones_own_travel_and_go_with_it() -> None:
    of_class = {"entry": "mine:Mine", "mine": [1, {"a": None}]}
    others = {"b": {"mine": 2}, "c": {"entry": "other:Class", "own": 1}, "d": {"entry": None}, "e": {"name": "dqn"}}
    policies = {name: {"algorithm": algorithm} for name, algorithm in others.items()}
    run = parse_run({"policy": {"algorithm": of_class}, "policies": policies})
    assert parse_run(run.model_dump()) == Run.model_validate_json(run.model_dump_json()) == run
    assert (run.policy.algorithm.name, run.policy.algorithm.model_extra) == ("ppo", {"mine": of_class["mine"]})
    found = {name: run.policy_config(name).algorithm.model_extra for name in others}
    assert found == {"b": {"mine": 2}, "c": {"own": 1}, "d": {}, "e": {}}


def test_an_override_keeps_what_it_does_not_name() -> None:
    run = parse_run(
        {
            "policy": {
                "sync_interval": 7,
                "network": {"hidden": [9], "activation": "relu"},
                "algorithm": {"name": "ppo", "gamma": 0.5},
            },
            "policies": {
                "gem": {"network": {"hidden": [3]}, "algorithm": {"clip": 0.3}},
                "bone": {"algorithm": {"name": "iqn", "frames": 4}, "train_interval": 2},
            },
        }
    )
    gem, bone, other = (run.policy_config(name) for name in ("gem", "bone", "other"))
    assert (gem.network.hidden, gem.network.activation) == ((3,), "relu")
    assert isinstance(gem.algorithm, PPO)
    assert (gem.algorithm.discount, gem.algorithm.clip) == (0.5, 0.3)
    assert isinstance(bone.algorithm, IQN)
    assert (bone.algorithm.discount, bone.algorithm.before) == (0.99, 3)  # of IQN's defaults, not of the common PPO
    assert (bone.publish_interval, bone.sync_interval) == (2, 7)
    assert other == run.policy


@pytest.mark.parametrize(
    ("common", "override", "pace"),
    [
        ({}, {}, (64, 50)),
        ({"algorithm": {"name": "dqn"}}, {}, (8, 8)),
        ({}, {"algorithm": {"name": "dqn"}}, (8, 8)),
        ({"algorithm": {"name": "dqn"}}, {"algorithm": {"name": "ppo"}}, (64, 50)),
        ({"segment_length": 5}, {"algorithm": {"name": "sac"}}, (5, 8)),
        ({"algorithm": {"name": "dqn"}, "sync_interval": 3}, {"algorithm": {"name": "ppo"}}, (64, 3)),
        ({"algorithm": {"name": "dqn"}}, {"segment_length": 5}, (5, 8)),
        ({"algorithm": {"name": "dqn"}}, {"algorithm": {"name": "impala"}}, (50, 10)),
        ({"algorithm": {"name": "dqn"}, "network": {"core": {"name": "none"}}}, {}, (8, 8)),
        ({"algorithm": {"name": "dqn"}, **REMEMBERING}, {}, (32, 8)),
        ({"algorithm": {"name": "dqn"}, **REMEMBERING}, {"network": {"core": None}}, (8, 8)),
        ({"algorithm": {"name": "dqn"}}, REMEMBERING, (32, 8)),
        ({"algorithm": {"name": "dqn"}}, {"segment_length": 8, **REMEMBERING}, (8, 8)),
        ({}, {"algorithm": {"name": "dqn"}, **REMEMBERING}, (32, 8)),
        ({}, {"segment_length": 64, "algorithm": {"name": "dqn"}}, (64, 8)),
        ({"algorithm": {"name": "dqn", "frames": 4}}, {}, (64, 8)),
        ({"algorithm": {"name": "dqn"}}, {"algorithm": {"frames": 4}}, (64, 8)),
        ({"algorithm": {"name": "dqn", "frames": 4}}, {"algorithm": {"frames": 1}}, (8, 8)),
    ],
)
def test_segments_are_short_and_weights_new_by_default_on_replay_alone(
    common: dict[str, Any], override: dict[str, Any], pace: tuple[int, int]
) -> None:
    config = parse_run({"policy": common, "policies": {"gem": override}}).policy_config("gem")
    assert (config.segment_length, config.sync_interval) == pace


@pytest.mark.parametrize(
    ("common", "override", "expected"),
    [
        ({}, {}, (0.0005, (64, 64), "tanh")),
        ({"algorithm": {"name": "sac"}}, {}, (0.0003, (256, 256), "relu")),
        ({}, {"algorithm": {"name": "sac"}}, (0.0003, (256, 256), "relu")),
        ({"algorithm": {"name": "sac"}}, {"algorithm": {"name": "ppo"}}, (0.0005, (64, 64), "tanh")),
        ({"algorithm": {"name": "sac"}, "network": {"hidden": [32]}}, {}, (0.0003, (32,), "relu")),
        ({"learning_rate": 0.01}, {"algorithm": {"name": "sac"}}, (0.01, (256, 256), "relu")),
        ({"algorithm": {"name": "dqn"}}, {"algorithm": {"name": "iqn"}}, (0.00025, (120, 84), "relu")),
    ],
)
def test_rate_and_network_are_by_default_those_of_the_algorithm(
    common: dict[str, Any], override: dict[str, Any], expected: tuple[float, tuple[int, ...], str]
) -> None:
    config = parse_run({"policy": common, "policies": {"gem": override}}).policy_config("gem")
    assert (config.learning_rate, config.network.hidden, config.network.activation) == expected


def test_an_anchored_run_has_the_paths_of_the_folder_it_was_anchored_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    learned = {"algorithm": {"name": "bc"}, "dataset": {"path": "/data"}}
    frozen = {"algorithm": {"name": "frozen", "path": "old.safetensors"}}
    scripted = {"algorithm": {"name": "scripted", "settings": {"path": "as it is"}}}
    common = {"algorithm": {"name": "iqn"}, "dataset": {"path": "mine/datasets"}}
    run = parse_run({"policy": common, "policies": {"a": learned, "b": frozen, "c": scripted}, "replay": "runs/first"})
    anchored = run.anchored()
    monkeypatch.chdir("/")
    assert anchored.replay == str(tmp_path / "runs/first")
    assert anchored.policy.dataset == Dataset(path=str(tmp_path / "mine/datasets"))
    assert {name: anchored.policies[name] for name in "ac"} == {name: run.policies[name] for name in "ac"}
    assert anchored.fixed("b") == FrozenPolicy(path=str(tmp_path / "old.safetensors"))
    assert parse_run({}).anchored() == parse_run({})


@pytest.mark.parametrize(
    ("id", "policy", "expected"),
    [
        ("openspiel:kuhn_poker", {}, 0.1),
        ("openspiel:kuhn_poker", {"algorithm": "ppo"}, 0.1),
        ("openspiel:kuhn_poker", {"algorithm": {"name": "ppo", "entropy_coefficient": 0.3}}, 0.3),
        ("openspiel:kuhn_poker", {"algorithm": "impala"}, 0.01),
        ("spread", {}, 0.01),
    ],
    ids=["bare", "named", "given", "impala", "no-game"],
)
def test_ppo_stays_unsure_by_default_where_it_plays_a_game(id: str, policy: dict[str, Any], expected: float) -> None:
    algorithm = parse_run({"environment": {"id": id}, "policy": policy}).policy.algorithm
    assert isinstance(algorithm, PPO | IMPALA)
    assert algorithm.entropy_weight == expected


def test_an_algorithm_without_a_name_is_the_default_one() -> None:
    assert parse_run({"policy": {"algorithm": {"gamma": 0.5}}}).policy.algorithm == PPO(gamma=0.5)


def test_runs_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Run().steps = 5


def test_every_agent_has_a_policy_of_its_own_by_default() -> None:
    assert parse_run({}).policy_of(_world("a", "b")) == {"a": "a", "b": "b"}
    assert parse_run({"agents": {"b": "a"}}).policy_of(_world("a", "b")) == {"a": "a", "b": "a"}


@pytest.mark.parametrize(
    ("data", "kind", "facts"),
    [
        ({"agents": {"c": "a"}}, "agents_key_unknown", {"agent": "c", "environment": "w", "choices": ["a", "b"]}),
        (
            {"multiprocessing": {"num_agents": 3}},
            "agent_count_differs",
            {"key": "multiprocessing.num_agents", "expected": 3, "environment": "w", "count": 2},
        ),
        ({"policies": {"c": {}}}, "policy_not_used", {"policy": "c", "choices": ["a", "b"]}),
    ],
)
def test_a_configuration_that_does_not_fit_the_world_is_refused(
    data: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts):
        parse_run(data).policy_of(_world("a", "b"))


def test_agents_and_policies_whose_names_are_digits_may_be_written_as_numbers() -> None:
    data = {"agents": {0: "red", 1: 7}, "policies": {7: {"learning_rate": 0.01}}, "learners": {"pair": ["red", 7]}}
    run = parse_run(data)
    assert run.agents == {"0": "red", "1": "7"}
    assert [*run.policies] == ["7"]
    assert run.learners == {"pair": ("red", "7")}
    assert EnvironmentConfig.model_validate({"teams": {1: [0, 2]}}).teams == {"1": ("0", "2")}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"steps": 1_000}, 0.25),
        ({"steps": 1_000, "until": 500}, 0.25),
        ({"steps": 1_000, "schedule_steps": 500}, 0.5),
        ({"steps": 100}, 1.0),
    ],
)
def test_exploration_in_steps_is_part_of_the_whole_run(data: dict[str, int], part: float) -> None:
    run = parse_run({**data, "policy": {"algorithm": {"name": "dqn", "exploration_steps": 250}}})
    algorithm = run.policy_config("any").algorithm
    assert isinstance(algorithm, DQN)
    assert algorithm.exploration_fraction == part


def test_table_F_is_the_preset_source() -> None:
    """E4, F: of the documents that this was built from."""
    run = read_run(ROOT / "launch/presets/source.yaml")
    policy = run.policy_config("agent_0")
    wanted = {
        "batch_size": 64,
        "buffer_capacity": 10_000,
        "target_update_freq": 4,
        "target_update": "soft",
        "tau": 1e-3,
        "epsilon": 1.0,
        "epsilon_decay": 1e-4,
        "epsilon_decay_freq": 100,
        "epsilon_min": 0.01,
    }
    assert policy.algorithm.model_dump(include={*wanted}) == wanted
    assert (policy.publish_mode, policy.publish_interval, policy.sync_interval) == ("snapshot", 10, 50)
    assert (policy.learning_rate, run.actor_timeout, run.learner_timeout) == (0.00025, 10.0, 10.0)
    assert (run.monitor_period, run.lock_timeout, run.starvation_sleep) == (1.0, 1.0, 0.01)
    assert (run.logging, run.log_interval, run.log_dir, run.device_per_agent) == (True, 100, "./logs", False)


@pytest.mark.parametrize("key", ["steps", "until", "schedule_steps"])
def test_more_steps_than_can_be_counted_are_refused(key: str) -> None:
    parse_run({"steps": 10**15, key: 10**15})
    with raises(ConfigurationError, "value_invalid", key=key):
        parse_run({"steps": 10**15, key: 10**15 + 1})
