"""A run of any preset is interrupted, gone on with by the same command, evaluated, watched, exported, made longer, and
started from."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.presets import preset_names
from tests.flows.sequence import ended_well, extended, sequence


def test_a_run_is_interrupted_gone_on_with_evaluated_watched_and_exported(tmp_path: Path) -> None:
    sequence("treasure-hunt", tmp_path, 5_000, "environment.copies=4")


@pytest.mark.parametrize(
    ("preset", "steps", "setting"),
    [
        ("treasure-hunt", 4_000, "environment.copies=4"),
        pytest.param("cartpole-iqn", 1_600, "policy.algorithm.replay_ratio=0.5", marks=pytest.mark.slow),
    ],
)
def test_a_finished_run_is_made_longer_and_started_from(tmp_path: Path, preset: str, steps: int, setting: str) -> None:
    """On a stream and on replay."""
    settings = setting, "baseline_episodes=0"
    command = ["train", preset, "--run-dir", "run", "--steps", str(steps), "--no-progress"]
    ended_well([*command, *(word for one in settings for word in ("--set", one))], preset, tmp_path)
    extended(preset, tmp_path, steps, *settings)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", preset_names())
def test_a_run_of_every_preset_is_too(tmp_path: Path, preset: str) -> None:
    place, steps = sequence(preset, tmp_path)
    extended(preset, place, steps)
