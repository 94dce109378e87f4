"""The manifests in a folder of their own, with keys, and what is built from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.k8s.manifests import Built, build, with_keys

EXTRA = {
    "elastic": ["keda", "monitoring"],
    "finite": ["jobset"],
    "played": ["simulator"],
    "queued": ["gpu", "spot", "shared-volume", "jobset", "kueue"],
    "relayed": ["relay"],
    "trusting": ["insecure-ranks"],
    "wide": ["shared-volume"],
    "workstation": ["gpu"],
}
"""Overlays of the tests' own: the base with keys and these components."""


@pytest.fixture(scope="session")
def k8s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of k8s/ as it is after `rookery keys new k8s/components/keys`."""
    return with_keys(tmp_path_factory.mktemp("manifests") / "k8s")


@pytest.fixture(scope="session")
def built(k8s: Path) -> Built:
    """All overlays there are, and those of `EXTRA`."""
    overlays = {folder.name: folder for folder in sorted((k8s / "overlays").iterdir())}
    for name, components in EXTRA.items():
        overlays[name] = k8s / "tests" / name
        overlays[name].mkdir(parents=True)
        parts = [f"../../components/{component}" for component in ("keys", *components)]
        text = {"namespace": "rookery", "resources": ["../../base"], "components": parts}
        (overlays[name] / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return {name: build(folder) for name, folder in overlays.items()}
