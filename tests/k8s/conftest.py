"""The manifests in a folder of their own, with keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.k8s.manifests import with_keys


@pytest.fixture(scope="session")
def k8s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of k8s/ as it is after `rookery keys new k8s/components/keys`."""
    return with_keys(tmp_path_factory.mktemp("manifests") / "k8s")
