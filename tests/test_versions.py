"""Every file is Python to the other interpreters that `requires-python` allows, where there are any on the machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tools import ROOT, skip_or_fail

COMPILE = """
import pathlib, sys, warnings
warnings.simplefilter("error")
for folder in ("protocol", "workers", "launch"):
    for path in pathlib.Path(folder).rglob("*.py"):
        compile(path.read_bytes(), str(path), "exec")
print("%d.%d" % sys.version_info[:2])
"""


def interpreters() -> dict[str, str]:
    """Version -> an interpreter of it that starts, later than 3.10 and none that this one is; also those of pyenv."""
    named = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    kept = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    found = {}
    for path in (*filter(None, named), *map(str, kept)):
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"Python 3\.(\d+)\.", asked)
        if version and int(version[1]) >= 11 and int(version[1]) != sys.version_info.minor:
            found[f"3.{version[1]}"] = path
    return found


def test_later_interpreters_compile_every_file_without_a_warning() -> None:
    found = interpreters()
    if not found:
        skip_or_fail("no later Python")
    for version, path in found.items():
        done = subprocess.run([path, "-c", COMPILE], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, version), done.stderr
