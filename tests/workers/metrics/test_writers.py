"""The files that measurements go to stay small, however long a run lasts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from protocol.config.run import Run
from workers.metrics import writers
from workers.metrics.writers import MetricWriters
from workers.runtime.files import SafeWriter

SIZE, MOMENTS = 4_096, 20_000


def told(folder: Path, begin: int, end: int) -> list[int]:
    """The steps of which `metrics.jsonl` has a line, once a coordinator has measured from `begin` to `end`."""
    folder.mkdir(exist_ok=True)
    written = MetricWriters(Run(), folder, SafeWriter())
    for step in range(begin, end):
        written.write({"one": {"return": 1.5, "length": 9}}, {"rate": 3.0}, step, step, step)
    written.close(True)
    return [json.loads(line)["agent_steps"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_moments_are_written_ever_more_rarely_and_the_last_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as many of each next so many bytes, also after the coordinator came back; until then all are."""
    assert told(tmp_path / "whole", 0, 200) == list(range(200))
    monkeypatch.setattr(writers, "_SIZE", SIZE)
    told(tmp_path / "run", 0, MOMENTS // 2 + 1)
    steps = told(tmp_path / "run", MOMENTS // 2 + 1, MOMENTS)
    assert steps[:10] == list(range(10))
    assert {MOMENTS // 2, MOMENTS - 1} <= {*steps}
    assert max(after - before for before, after in pairwise(steps)) < MOMENTS / 8
    assert 8 * SIZE < (tmp_path / "run" / "metrics.jsonl").stat().st_size < 14 * SIZE
    events = [path.stat().st_size for path in (tmp_path / "run" / "tensorboard").iterdir()]
    assert sum(events) < 14 * SIZE
