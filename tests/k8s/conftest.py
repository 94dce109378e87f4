"""The manifests in a folder of their own, with keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from protocol.security import new_keys
from tests.tools import ROOT


@pytest.fixture(scope="session")
def k8s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of k8s/ as it is after `rookery keys new k8s/components/keys`."""
    folder = tmp_path_factory.mktemp("manifests") / "k8s"
    shutil.copytree(ROOT / "k8s", folder, ignore=shutil.ignore_patterns("*.secret", "*.public"))
    new_keys(folder / "components" / "keys")
    return folder
