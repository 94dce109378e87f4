"""What the coordinator's executable does besides coordinating."""

from __future__ import annotations

import json
from pathlib import Path

from workers.coordinator import _announce


def test_a_half_written_announcement_of_one_that_died_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".coordinator").write_text('{"addr')
    _announce(tmp_path, "tcp://127.0.0.1:5600", "http://127.0.0.1:5602")
    assert [path.name for path in tmp_path.iterdir()] == ["coordinator.json"]
    assert json.loads((tmp_path / "coordinator.json").read_text())["address"] == "tcp://127.0.0.1:5600"
