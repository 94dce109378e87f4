"""A run in the hands of a notebook: a kernel makes it, looks at it while it goes on, and waits with its picture."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runs import PATIENCE, environment

CELLS = """
import rookery
kept = {"baseline_episodes": 0}
run = rookery.train("cartpole", steps=100_000, settings=kept, run_dir="run", wait=False)
run.status()["stage"]

run.wait()

import numpy as np
run.complete, run.policy()(np.zeros(4, np.float32)) in (0, 1), "return" in run.curves()["agent"]

rookery.train("run")
"""

EXECUTE = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(source) for source in json.loads(sys.argv[1])]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=float(sys.argv[2]), kernel_name="python3", allow_errors=True).execute()
print(json.dumps([cell.outputs for cell in cells]))
"""
"""Runs all cells in a kernel, and prints what each of them put out."""


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="ipykernel and nbclient are not installed"
)
def test_a_kernel_makes_a_run_and_shows_it(tmp_path: Path) -> None:
    """The picture is an output of the cell that waits; a refusal is the last line of the cell that is refused."""
    (tmp_path / "execute.py").write_text(EXECUTE)
    source = json.dumps(CELLS.strip().split("\n\n"))
    done = subprocess.run(
        [sys.executable, "execute.py", source, str(PATIENCE)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    begun, waited, asked, refused = json.loads(done.stdout)
    assert said(begun) in ("'starting'", "'running'")
    assert said(waited) == "True"
    assert any("of=100000 " in str(one) or "of 100,000 agent steps" in str(one) for one in waited)
    assert said(asked) == "(True, True, True)"
    assert refused[-1]["ename"] == "ConfigurationError"
    assert "has reached its end" in refused[-1]["evalue"]


def said(outputs: list[Any]) -> str:
    """The value of the cell's last line."""
    (told,) = (one["data"]["text/plain"] for one in outputs if one["output_type"] == "execute_result")
    return str(told)
