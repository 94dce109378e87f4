"""What another distribution or folder has under our names is said before anything of it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launch import packages
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.tools import ROOT

START = """
import sys
sys.path[:0], sys.argv = {path!r}, ["rookery", "presets"]
from launch.__main__ import main
main()
"""


def installed(home: Path) -> Path:
    """Our wheel as pip leaves it, of one file for each package."""
    lines = []
    for name in ("launch", "protocol", "workers"):
        file = home / name / "__init__.py"
        file.parent.mkdir()
        file.write_text(f"# {name} of ours\n")
        lines.append(f"{name}/__init__.py,sha256=x,{file.stat().st_size}")
    record(home, "rookery_rl-0.1.0", *lines)
    return home


def record(home: Path, name: str, *lines: str) -> None:
    """What a distribution has installed."""
    folder = home / f"{name}.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Python finds it."""
    monkeypatch.setattr(packages, "find_place", lambda name: str(tmp_path / name))
    return installed(tmp_path)


def test_ours_alone_is_nothing_to_speak_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(home, "other-1", "other/__init__.py,,3")
    (home / "launch" / "notes.txt").touch()  # nobody's
    (home / "workers" / "__pycache__").mkdir()
    packages.check(home)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["launch", "protocol", "workers"])
def test_another_distribution_under_our_names_is_said_and_refused_where_it_wrote_over_ours(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / name / "theirs.py").touch()
    record(home, f"{name}-9.1", f"{name}/theirs.py,,0", f"{name}/__init__.py,,0")
    packages.check(home)
    said = capsys.readouterr().err
    assert f"{name}-9.1" in said
    assert str(home / name) in said
    (home / name / "__init__.py").write_text("")
    with raises(ConfigurationError, "package_overwritten", name=name, other=f"{name}-9.1", expected=home):
        packages.check(home)


@pytest.mark.parametrize("place", ["protocol/__init__.py", "protocol.py", "workers/__init__.py"])
def test_a_command_that_would_find_anothers_package_says_so_and_both_paths(place: str, tmp_path: Path) -> None:
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('the wrong package')\n")
    code = START.format(path=[str(tmp_path), str(ROOT)])
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, kinds_in(done.stderr)) == (2, ["package_name_taken"]), done.stderr
    assert str(tmp_path) in done.stderr
    assert str(ROOT) in done.stderr
    assert "Traceback" not in done.stderr
