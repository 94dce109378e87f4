"""Evaluations: which environments, which episodes, one number an episode and policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.evaluation.episodes import environments_of
from workers.evaluation.evaluation import Evaluation
from workers.evaluation.scores import FILE, Score, append, score

SMALL = {"width": 7, "height": 7, "turns": 10}
RANDOM = {"algorithm": {"name": "scripted", "entry": "random"}}


def run(**keys: Any) -> Run:
    """Two random players of a small treasure hunt, so that no weights are needed."""
    world = {"copies": 4, "settings": {**SMALL, "desynchronize": True}}
    return parse_run({"environment": world, "policies": {"agent_0": RANDOM, "agent_1": RANDOM}, **keys})


def evaluate(of: Run, episodes: int = 8, seed: int = 0) -> list[Score]:
    evaluator = Evaluation(of, episodes, seed)
    try:
        first = evaluator.play({})
        assert evaluator.play({}) == first, "the same episodes once more"
        return first
    finally:
        evaluator.close()


def test_the_same_seed_plays_the_same_episodes_and_another_one_others() -> None:
    first = evaluate(run())
    assert [(one.environment, one.policy, one.episodes) for one in first] == [
        ("treasure_hunt", "agent_0", 8),
        ("treasure_hunt", "agent_1", 8),
    ]
    assert evaluate(run(seed=5)) == first, "whatever the run's own seed is"
    assert [one.mean for one in evaluate(run(), seed=1)] != [one.mean for one in first]
    for one in first:
        assert one.low is not None
        assert one.high is not None
        assert one.least <= one.low <= one.mean <= one.high <= one.greatest


def test_only_the_test_side_of_a_split_is_played_and_each_environment_by_itself_I9() -> None:
    members = {name: {"id": "treasure_hunt", "settings": {**SMALL, "turns": 5 + n}} for n, name in enumerate("abc")}
    of = run(environment={"copies": 4, "members": members, "split": {"train": ["b"], "test": ["a", "c"]}})
    assert [(one.environment, one.policy) for one in evaluate(of, 4)] == [
        (name, f"agent_{agent}") for name in ("a", "c") for agent in (0, 1)
    ]


def test_episodes_are_whole_and_stepped_here() -> None:
    of = run(environment={"copies": 8, "processes": 2, "async_factor": 2, "settings": {**SMALL, "desynchronize": True}})
    (where,) = environments_of(of.environment, 4).values()
    assert (where.copies, where.processes, where.async_factor, where.settings) == (4, 0, 1, SMALL)


def test_simulators_from_outside_are_refused_with_the_reason() -> None:
    with raises(ConfigurationError, "external_simulators_not_evaluable"):
        Evaluation(run(environment={"id": "external", "settings": {"world": "treasure_hunt"}}), 1, 0)


def test_what_agents_of_one_policy_earn_in_an_episode_is_one_number() -> None:
    """Two agents who are each other's opposite have a mean that is known for certain."""
    left = np.random.default_rng(0).normal(size=(4, 25))
    pooled = score("w", "p", {"a": left, "b": 2 - left}, 4, 0)
    assert (pooled.episodes, pooled.mean, pooled.low, pooled.high) == (100, 1, 1, 1)
    many = score("w", "p", {"a": np.stack([left, 2 - left], 1).reshape(8, 25)}, 4, 0)
    assert (many.episodes, many.mean, many.low) == (100, 1, 1)
    alone = score("w", "p", {"a": np.array([[3.0]])}, 1, 0)
    assert (alone.mean, alone.low, alone.high) == (3, None, None)


def test_lines_are_added_to_the_runs_folder(tmp_path: Path) -> None:
    one = score("w", "p", {"a": np.array([[3.0]])}, 1, 0)
    append(tmp_path, [one.line(time=1.0)])
    append(tmp_path, [one.line(time=2.0)])
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(line["time"], line["mean"], line["low"]) for line in lines] == [(1.0, 3.0, None), (2.0, 3.0, None)]
