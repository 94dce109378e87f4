"""The wheel: built, installed into a fresh virtual environment, and used there."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import protocol
from tests.tools import ROOT

EXTRAS = {
    "dashboard",
    "gym",
    "pettingzoo",
    "export",
    "pictures",
    "compress",
    "minari",
    "mlflow",
    "wandb",
    "all",
    "test",
}


def command(*arguments: object, cwd: Path) -> str:
    done = subprocess.run([*map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_has_its_metadata_and_trains_where_it_is_installed(tmp_path: Path) -> None:
    """What it depends on is lent by this environment; the package itself comes from the wheel alone."""
    command(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        names = held.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        told = Parser().parsestr(held.read(metadata).decode())
    assert told["Version"] == protocol.RELEASE
    assert {*told.get_all("Provides-Extra", [])} >= EXTRAS
    assert told["License-Expression"] == "Apache-2.0"
    assert "launch/presets/cartpole.yaml" in names
    assert "launch/templates/single.py.txt" in names
    assert {"protocol/golden/hello.json", "protocol/clients/python/cartpole.py"} <= {*names}
    assert not any("node_modules" in name for name in names)
    assert not any(name.startswith("tests/") for name in names)
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True)
    python = fresh / "bin" / "python"
    command(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (place,) = fresh.glob("lib/python*/site-packages")
    (place / "lent.pth").write_text("".join(f"{path}\n" for path in lent))
    found = command(
        python, "-c", "import launch, workers; print(launch.__file__, workers.__file__, sep=chr(10))", cwd=tmp_path
    )
    assert all(path.startswith(str(fresh)) for path in found.splitlines())
    rookery = fresh / "bin" / "rookery"
    assert protocol.RELEASE in command(rookery, "--version", cwd=tmp_path)
    assert "cartpole" in command(rookery, "presets", cwd=tmp_path)
    command(rookery, "new", "my_env", cwd=tmp_path)
    command(rookery, "train", "train.yaml", "--steps", 2000, "--run-dir", tmp_path / "run", cwd=tmp_path / "my_env")
    assert (tmp_path / "run" / "summary.json").is_file()
