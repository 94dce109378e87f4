"""A run of any preset is interrupted, gone on with by the same command, evaluated, watched and exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config_loader import preset_names
from tests.flows.sequence import sequence


def test_a_run_is_interrupted_gone_on_with_evaluated_watched_and_exported(tmp_path: Path) -> None:
    sequence("treasure-hunt", tmp_path, 5_000, "environment.copies=4")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", preset_names())
def test_a_run_of_every_preset_is_too(tmp_path: Path, preset: str) -> None:
    sequence(preset, tmp_path)
