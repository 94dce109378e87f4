"""Configurations in files: what differs between two is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.config.run import parse_run
from protocol.config.yaml_file import Change, fixed_part, going_on
from protocol.errors import ConfigurationError
from tests.faults import raises, words_in


@pytest.mark.parametrize(
    ("change", "key", "values"),
    [
        ({"policy": {"segment_length": 9}}, "policy.segment_length", {"9"}),
        ({"policy": {"algorithm": {"name": "ppo", "frames": 9}}}, "policy.algorithm.frames", {"9"}),
        (
            {"environment": {"id": "treasure_hunt", "copies": 9}},
            "environment.copies",
            {"64", "9"},
        ),
        ({"policies": {"one": {"segment_length": 8}}}, "policies.one.segment_length", {"null"}),
    ],
)
def test_the_first_key_that_differs_is_named_with_both_values(
    tmp_path: Path, change: dict[str, object], key: str, values: set[str]
) -> None:
    run = parse_run({})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run.model_dump(mode="json")))
    assert going_on(parse_run(change), tmp_path)[1] is None  # nothing has begun
    (tmp_path / "state.json").write_text("{}")
    assert going_on(run, tmp_path) == (run, [])
    with raises(ConfigurationError, "run_configuration_differs", file=tmp_path, key=key) as fault:
        going_on(parse_run(change), tmp_path)
    assert values <= words_in(str(fault.value))


def begun(folder: Path, **keys: object) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(parse_run(keys).model_dump(mode="json")))
    (folder / "state.json").write_text("{}")


def test_a_longer_run_keeps_the_steps_that_its_schedules_ran_over(tmp_path: Path) -> None:
    begun(tmp_path, steps=100)
    run, changes = going_on(parse_run({"steps": 200}), tmp_path)
    assert (run.end, run.horizon) == (200, 100)
    assert changes == [Change("steps", 100, 200), Change("schedule_steps", None, 100)]
    begun(tmp_path, steps=200, schedule_steps=100)
    assert going_on(parse_run({"steps": 300}), tmp_path)[0].horizon == 100
    assert going_on(parse_run({"steps": 300, "schedule_steps": 300}), tmp_path)[0].horizon == 300


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"policies": {"one": {"learning_rate": 0.5}}}, "policies.one.learning_rate"),
        ({"evaluation": {"every_steps": 9}}, "evaluation.every_steps"),
        ({"actors": 2}, "actors"),
        ({"environment": {"settings": {"width": 9}}}, "environment.settings.width"),
    ],
)
def test_a_run_may_go_on_with_another_value_of_what_is_no_part_of_what_it_learned(
    tmp_path: Path, change: dict[str, object], key: str
) -> None:
    begun(tmp_path)
    run, changes = going_on(parse_run(change), tmp_path)
    assert key in [one.key for one in changes or []]
    assert fixed_part(run) == fixed_part(parse_run({}))


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("actors", {"actors": 2}),
        ("policy.learning_rate", {"policy": {"learning_rate": 0.5}}),
        ("environment.settings.width", {"environment": {"copies": 8, "settings": {"width": 9}}}),
    ],
)
def test_in_lock_step_what_is_made_again_stays_what_it_was(tmp_path: Path, key: str, change: dict[str, Any]) -> None:
    step = {"schedule": "lockstep", "act_block": 4, "environment": {"copies": 8}}
    begun(tmp_path, **step)
    with raises(ConfigurationError, "run_configuration_differs", file=tmp_path, key=key):
        going_on(parse_run({**step, **change}), tmp_path)
