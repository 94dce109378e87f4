"""A run that is told to stop makes no further turn."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from workers.environments.base import Turn
from workers.environments.worlds.treasure_hunt import TreasureHunt
from workers.runtime.sole_process import SoleProcess
from workers.sequential import Sequential

TURNS = 7


def test_stop_is_obeyed_within_a_turn_D8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told in the middle of a step, as a signal is: that step is the last, long before the run's end."""
    made: list[int] = []
    life = SoleProcess()
    step = TreasureHunt.step

    def watched(self: TreasureHunt, actions: Sequence[Any]) -> Turn:
        made.append(1)
        if len(made) == TURNS:
            life.stop()
        return step(self, actions)

    monkeypatch.setattr(TreasureHunt, "step", watched)
    run = parse_run({"environment": {"copies": 4}, "steps": 1_000_000})
    (tmp_path / "counters").mkdir()
    sequential = Sequential(run, tmp_path, life)
    assert sequential.run() is False
    assert len(made) == TURNS
    sequential.finish(False)
    capsys.readouterr()
    del sequential
    gc.collect()  # its pages of counters
