"""What `make check` finds to have changed, and near to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import check
from tests.tools import require

FILES = {
    "workers/a/b.py": "",
    "workers/a/c.py": "",
    "workers/d.py": "",
    "tests/workers/a/test_b.py": "",
    "tests/workers/test_uses.py": "import os\nfrom workers.a import (b, c)\n",
    "tests/flows/test_runs.py": "from workers.a.b import thing\n",
    "tests/launch/test_documents.py": "",
    "tests/launch/test_site.py": "",
    "README.md": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of `FILES`."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_mirrors_come_first_then_what_imports_it_and_whole_runs_last(tree: Path) -> None:
    found = ["tests/workers/a/test_b.py", "tests/workers/test_uses.py", "tests/flows/test_runs.py"]
    assert check.near(["workers/a/b.py"], tree) == (found, [])
    assert check.near(["workers/a/c.py", "workers/d.py"], tree) == (["tests/workers/test_uses.py"], ["workers/d.py"])
    assert check.near(["README.md", found[2]], tree) == ([*check.DOCUMENTS, found[2]], [])


def test_changed_is_what_differs_from_a_commit_or_else_what_it_changed(tree: Path) -> None:
    def git(*arguments: str) -> None:
        named = ["-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run([require("git"), *named], cwd=tree, check=True, capture_output=True)

    with pytest.raises(SystemExit, match="git"):
        check.changed("", tree)
    for name in ("first", "second"):
        if name == "first":
            git("init")
        (tree / "workers" / "d.py").write_text(name)
        git("add", "-A")
        git("commit", "-m", name)
    assert check.changed("", tree) == ["workers/d.py"]
    (tree / "workers" / "e.py").touch()
    (tree / "README.md").write_text("more")
    assert check.changed("", tree) == ["README.md", "workers/e.py"]
    assert check.changed("HEAD~1", tree) == ["README.md", "workers/d.py", "workers/e.py"]


@pytest.mark.parametrize("code", [0, 1])
def test_what_a_linter_finds_is_found_wrong(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "changed", lambda _since: [])
    monkeypatch.setattr(check, "LINTERS", {"lint": [sys.executable, "-c", f"raise SystemExit({code})"]})
    assert check.main([]) == code
