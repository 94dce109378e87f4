"""The run's configuration: documented defaults, aliases, overrides, the round trip, and sentences for every fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from protocol.config import IQN, PPO, PolicyConfig, Run, parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, ArrayPopulation, Box, DictPopulation, Discrete, World

IQN_POLICY = {"algorithm": {"name": "iqn"}}


def _world(*names: str, actions: int = 5) -> World:
    agents = tuple(Agent(name=n, observation=Box(shape=(3,)), action=Discrete(n=actions)) for n in names)
    return World(id="w", agents=agents)


def test_defaults_are_those_of_the_source_documents() -> None:
    run, policy, iqn = Run(), PolicyConfig(), IQN()
    assert policy.publish_mode == "snapshot"
    assert (iqn.buffer_capacity, iqn.batch_size, policy.learning_rate) == (10_000, 64, 0.00025)
    assert (policy.publish_interval, policy.sync_interval) == (10, 50)
    assert (iqn.target_update_freq, iqn.epsilon_decay_freq, iqn.epsilon_decay, iqn.epsilon_min) == (4, 100, 1e-4, 0.01)
    assert run.num_learner_processes is None
    assert run.device_per_agent is False
    assert (run.actor_timeout, run.learner_timeout) == (10.0, 10.0)
    assert (run.logging, run.log_interval, run.log_dir) == (True, 100, "./logs")
    assert (run.monitor_period, run.starvation_sleep) == (1.0, 0.01)
    assert run.multiprocessing.enabled is None  # absent means distributed
    assert policy.max_grad_norm == 1.0
    assert policy.segment_length == 64


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
    ({"stepz": 1}, "'stepz'", "remove it or correct its spelling"),
    ({"policy": {"learning_rat": 1}}, "'policy.learning_rat'", "correct its spelling"),
    ({"policy": {"algorithm": {"name": "iqn", "gama": 1}}}, "'policy.algorithm.gama'", "correct its spelling"),
    ({"policies": {"gem": {"foo": 1}}}, "'policies.gem.foo'", "correct its spelling"),
    ({"policies": {"iqn": {"foo": 1}}}, "'policies.iqn.foo'", "correct its spelling"),
    ({"policies": {"gem": {"algorithm": {"name": "iqn", "x": 1}}}}, "'policies.gem.algorithm.x'", "correct its"),
    ({"environment": {"copeis": 1}}, "'environment.copeis'", "correct its spelling"),
    ({"steps": "many"}, "steps: ", "got 'many'; correct it"),
    ({"steps": 0}, "steps: ", "got 0; correct it"),
    ({"policy": {"learning_rate": -1}}, "policy.learning_rate: ", "got -1; correct it"),
    ({"policies": {"gem": {"learning_rate": -1}}}, "policies.gem.learning_rate: ", "got -1; correct it"),
    ({"policies": {"gem": 3}}, "policies.gem: ", "correct it"),
    ({"policies": {"gem/../..": {}}}, "policies.gem/../..: ", "correct it"),
    ({"agents": {"gem": "../x"}}, "agents.gem: ", "correct it"),
    (
        {"policy": {"algorithm": {"name": "a2c"}}},
        "policy.algorithm: ",
        "'ppo', 'impala', 'iqn', 'dqn', 'c51', 'vdn', 'qmix', 'sac'",
    ),
    ({"policy": {"algorithm": "iqn"}}, "policy.algorithm: ", "got 'iqn'; correct it"),
    ({"policy": None}, "policy: ", "got None; correct it"),
    ({"actor_timeout": float("inf")}, "actor_timeout: ", "got inf; correct it"),
    ({"policy": {"learning_rate": float("nan")}}, "policy.learning_rate: ", "got nan; correct it"),
    ({"lock_timeout": 0}, "lock_timeout: ", "got 0; correct it"),
    ({"policy": {"train_interval": 4, "publish_interval": 5}}, "policy: train_interval", "keep publish_interval"),
    ({"policies": {"gem": {"train_interval": 4, "publish_interval": 5}}}, "policies.gem: train_", "keep publish_inter"),
    ({"policy": {"model_config": {}, "network": {}}}, "policy: model_config", "keep network"),
    ({"multiprocessing": {"mode": "snapshot"}, "policy": {"publish_mode": "double_buffer"}}, "mode", "keep policy.pub"),
    ({"policy": {"algorithm": {"name": "iqn", "learning_starts": 20_000}}}, "learning_starts", "lower learning_starts"),
    (
        {"policy": {"network": {"recurrent": "lstm"}, **IQN_POLICY}},
        "iqn has no recurrent networks; leave network.recurrent out",
        "use the algorithm ppo",
    ),
    (
        {"policy": {"network": {"share_layers": True}, **IQN_POLICY}},
        "share_layers is for ppo and impala without a central critic",
        "leave network.share_layers out",
    ),
    (
        {"policy": {"algorithm": {"central_critic": True}, "network": {"share_layers": True}}},
        "share_layers is for ppo and impala without a central critic",
        "leave network.share_layers out",
    ),
    ({"policy": {"algorithm": {"zero_start": True}}}, "zero_start is for recurrent networks", "set network.recurrent"),
    ({"policy": {"flow": "drop_newest", **IQN_POLICY}}, "flow drop_newest", "use block or drop_oldest"),
    ({"policies": {"gem": {"flow": "drop_newest", **IQN_POLICY}}}, "policies.gem: flow drop_newest", "use block"),
    ({"policy": {"algorithm": {"name": "ppo", "segments": 6}}}, "minibatches", "make segments a multiple"),
    ({"policy": {"compile": True, "algorithm": {"name": "sac"}}}, "this is sac", "leave compile out"),
    ({"policy": {"compile": True, "algorithm": {"central_critic": True}}}, "so is central_critic", "remove one"),
    ({"policies": {"gem": {"compile": True, "algorithm": {"priority_alpha": 0.5}}}}, "so is priority_alpha", "remove"),
    ({"policy": {"compile": True, "ranks": 2}}, "so is ranks", "remove one of the two"),
    ({"policy": {"compile": True, "record": True}}, "so is record", "remove one of the two"),
    ({1: 2}, "1: ", "correct it"),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("data", "place", "remedy"), FAULTS, ids=[place for _, place, _ in FAULTS])
def test_F1_every_fault_is_one_sentence_with_place_and_remedy(data: dict[str, Any], place: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_run(data)
    told = str(caught.value)
    assert place in told
    assert remedy in told
    assert "\n" not in told
    assert "validation error" not in told


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
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_run_is_the_same_after_travelling(common: dict[str, Any], override: dict[str, Any], form: str) -> None:
    run = parse_run(
        {
            "policy": common,
            "policies": {"gem": override},
            "multiprocessing": {"mode": "double_buffer"},
            "environment": {"settings": {"size": 5, "reach": float("inf")}},
        }
    )
    if form == "json":
        again = Run.model_validate_json(run.model_dump_json())
    else:
        again = parse_run(yaml.safe_load(yaml.safe_dump(run.model_dump(mode="json"))))
    assert again == run
    for policy in ("gem", "bone"):
        assert again.policy_config(policy) == run.policy_config(policy)


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
    assert (gem.algorithm.gamma, gem.algorithm.clip) == (0.5, 0.3)
    assert isinstance(bone.algorithm, IQN)
    assert (bone.algorithm.gamma, bone.algorithm.before) == (0.99, 3)  # of IQN's defaults, not of the common PPO
    assert (bone.publish_interval, bone.sync_interval) == (2, 7)
    assert other == run.policy


def test_an_algorithm_without_a_name_is_the_default_one() -> None:
    assert parse_run({"policy": {"algorithm": {"gamma": 0.5}}}).policy.algorithm == PPO(gamma=0.5)


def test_runs_are_frozen_and_plain_data() -> None:
    run = Run()
    with pytest.raises(ValueError, match="frozen"):
        run.steps = 5
    assert isinstance(json.loads(run.model_dump_json()), dict)


def test_every_agent_has_a_policy_of_its_own_by_default() -> None:
    assert parse_run({}).policy_of(_world("a", "b")) == {"a": "a", "b": "b"}
    assert parse_run({"agents": {"b": "a"}}).policy_of(_world("a", "b")) == {"a": "a", "b": "a"}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"agents": {"c": "a"}}, "agents names 'c', which w does not have; its agents are a, b"),
        ({"multiprocessing": {"num_agents": 3}}, "num_agents is 3 but w has 2 agents"),
        ({"policies": {"c": {}}}, "policies names 'c', which no agent uses; the policies are a, b"),
    ],
)
def test_a_configuration_that_does_not_fit_the_world_is_refused(data: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_run(data).policy_of(_world("a", "b"))
    assert told in str(caught.value)


def test_agents_with_different_spaces_cannot_share_a_policy() -> None:
    world = World(id="w", agents=(*_world("a").agents, *_world("b", actions=6).agents))
    with pytest.raises(ConfigurationError, match="give them policies of their own"):
        parse_run({"agents": {"a": "x", "b": "x"}}).policy_of(world)


def test_all_who_stand_in_for_a_template_share_one_policy() -> None:
    """Agents of the tree go by their dotted names; the policy of a template is called like it."""
    sheep, dog = (Agent(name=n, observation=Box(shape=(3,)), action=Discrete(n=5)) for n in ("sheep", "dog"))
    field = DictPopulation(agents=(ArrayPopulation(name="flock", template=sheep, capacity=7), dog))
    world = World(id="w", population=field)
    assert parse_run({}).policy_of(world) == {"flock.sheep": "flock.sheep", "dog": "dog"}
    shared = parse_run({"agents": {"flock.sheep": "x", "dog": "x"}, "policies": {"x": {"learning_rate": 0.1}}})
    assert shared.policy_of(world) == {"flock.sheep": "x", "dog": "x"}
    with pytest.raises(
        ConfigurationError, match=r"agents names 'flock.sheep.0', which w does not have; its agents are"
    ):
        parse_run({"agents": {"flock.sheep.0": "x"}}).policy_of(world)
