"""Configurations in files: what differs between two is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from protocol.config.run import parse_run
from protocol.config.yaml_file import check_same_run
from protocol.errors import ConfigurationError
from tests.faults import raises, words_in


@pytest.mark.parametrize(
    ("change", "key", "values"),
    [
        ({"policy": {"learning_rate": 0.5}}, "policy.learning_rate", {"0.5"}),
        ({"policy": {"algorithm": {"name": "ppo", "epochs": 9}}}, "policy.algorithm.epochs", {"9"}),
        (
            {"environment": {"id": "treasure_hunt", "settings": {"width": 9}}},
            "environment.settings.width",
            {"null", "9"},
        ),
        ({"policies": {"one": {"segment_length": 8}}}, "policies.one", {"null"}),
    ],
)
def test_the_first_key_that_differs_is_named_with_both_values(
    tmp_path: Path, change: dict[str, object], key: str, values: set[str]
) -> None:
    run = parse_run({})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run.model_dump(mode="json")))
    assert not check_same_run(parse_run(change), tmp_path)  # nothing has begun
    (tmp_path / "state.json").write_text("{}")
    assert check_same_run(run, tmp_path)
    with raises(ConfigurationError, "run_configuration_differs", file=tmp_path, key=key) as fault:
        check_same_run(parse_run(change), tmp_path)
    assert values <= words_in(str(fault.value))
