"""k8s/Dockerfile as hadolint sees it; what is in it is seen by `make test-cluster`."""

from __future__ import annotations

import subprocess

from tests.tools import ROOT, require


def test_dockerfile_is_clean() -> None:
    path = str(ROOT / "k8s" / "Dockerfile")
    made = subprocess.run([require("hadolint"), path], capture_output=True, text=True, timeout=200, check=False)
    assert made.returncode == 0, made.stdout
