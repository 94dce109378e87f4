"""What mypy says comes of as many processes as could be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import typed

MYPY = """
import os, sys

if os.environ["MYPY_NUM_WORKERS"] in {late}:
    sys.exit("Failed to establish connection with worker: No status file found")
print(os.environ["MYPY_NUM_WORKERS"], *sys.argv[1:])
sys.exit(7)
"""


@pytest.mark.parametrize(("late", "processes"), [((), 2), (("2",), 0)])
def test_where_two_processes_do_not_begin_in_time_one_does_all(
    late: tuple[str, ...],
    processes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mypy.py").write_text(MYPY.format(late=late))
    monkeypatch.chdir(tmp_path)
    assert typed.main(["workers"]) == 7
    assert capfd.readouterr().out == f"{processes} --no-error-summary workers\n"
