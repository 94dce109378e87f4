"""What pip installs: the wheel, and the repository as it lies; both in a virtual environment of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

import protocol
from launch.presets import preset_names
from protocol.errors.distribution import DISTRIBUTION
from tests.flows import runs
from tests.flows.sequence import sequence
from tests.tools import ROOT, build_site

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
PLACES = (
    "import rookery; rookery.train; import launch, workers; print(rookery.__file__, launch.__file__, workers.__file__)"
)


def own_environment(forked: bool = False) -> dict[str, str]:
    """In which Python finds what is installed and nothing else."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def command(*arguments: object, cwd: Path) -> str:
    own = own_environment()
    done = subprocess.run([*map(str, arguments)], cwd=cwd, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fresh(folder: Path) -> Path:
    """Python of a new environment: what ours depends on is lent by this one, itself it has to be installed."""
    venv.create(folder, with_pip=True)
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (place,) = folder.glob("lib/python*/site-packages")
    (place / "lent.pth").write_text("".join(f"{path}\n" for path in lent))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the repository, with the documents, as `make wheel` does."""
    build_site(ROOT / "build" / "site" / "rookery_docs")
    folder = tmp_path_factory.mktemp("wheel")
    command(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel."""
    python = fresh(tmp_path_factory.mktemp("installed"))
    command(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    return python


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_has_its_metadata_and_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as held:
        names = held.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        told = Parser().parsestr(held.read(metadata).decode())
    assert (told["Name"], told["Version"]) == (DISTRIBUTION, protocol.RELEASE)
    assert {*told.get_all("Provides-Extra", [])} >= EXTRAS
    assert told["License-Expression"] == "Apache-2.0"
    assert "launch/presets/cartpole.yaml" in names
    assert "launch/templates/single.py.txt" in names
    assert {f"{package}/py.typed" for package in ("launch", "protocol", "rookery", "workers")} <= {*names}
    assert {"protocol/README.md", "protocol/golden/hello.json", "protocol/clients/python/cartpole.py"} <= {*names}
    assert not any("node_modules" in name for name in names)
    assert not any(name.startswith(("tests/", "launch/face/")) for name in names)
    assert not any(name.endswith(".gif") for name in names)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_documents_open_where_the_wheel_is_installed_and_cost_it_at_most_3_megabytes(
    wheel: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel) as held:
        assert sum(one.compress_size for one in held.infolist() if one.filename.startswith("rookery_docs/")) < 3e6
    (tmp_path / "browser").write_text('#!/bin/sh\necho "$1" > opened\n')
    (tmp_path / "browser").chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{tmp_path / 'browser'} %s")
    said = command(installed.parent / "rookery", "docs", cwd=tmp_path)
    opened = Path(unquote(urlparse((tmp_path / "opened").read_text().strip()).path))
    assert opened.as_uri() == said.strip()
    assert opened.is_relative_to(installed.parents[1])
    places = re.findall(r'<(?:a|link|img|script)\b[^>]*? (?:href|src)="(?!https?:)([^"#?]+)', opened.read_text("utf-8"))
    assert [place for place in places if not (opened.parent / place).is_file()] == []
    assert places


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_project_trains_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    found = command(installed, "-c", PLACES, cwd=tmp_path)
    assert all(path.startswith(str(installed.parents[1])) for path in found.split())
    rookery = installed.parent / "rookery"
    assert protocol.RELEASE in command(rookery, "--version", cwd=tmp_path)
    assert "cartpole" in command(rookery, "presets", cwd=tmp_path)
    command(rookery, "new", "my_env", cwd=tmp_path)
    command(rookery, "train", "train.yaml", "--steps", 5000, "--run-dir", tmp_path / "run", cwd=tmp_path / "my_env")
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", preset_names())
def test_a_run_goes_on_and_is_evaluated_watched_and_exported_where_the_wheel_is_installed(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.setattr(runs, "require", lambda tool: str(installed.parent / tool))
    monkeypatch.setattr(runs, "environment", own_environment)
    sequence(preset, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_repository_installed_as_it_lies_has_the_same_packages(tmp_path: Path) -> None:
    python = fresh(tmp_path / "editable")
    command(python, "-m", "pip", "install", "--no-deps", "-e", ROOT, cwd=tmp_path)
    assert command(python, "-c", PLACES, cwd=tmp_path).split() == [
        str(ROOT / "launch" / "face" / "rookery" / "__init__.py"),
        str(ROOT / "launch" / "__init__.py"),
        str(ROOT / "workers" / "__init__.py"),
    ]
