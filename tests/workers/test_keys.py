"""Every accepted configuration key is read by code that acts on it; `tests/protocol` checks what is accepted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from protocol.config.base import ConfigModel
from protocol.config.environment import Split
from protocol.config.run import Multiprocessing, Run
from tests.tools import ROOT

RESOLVED: set[tuple[type[ConfigModel], str]] = {
    (Run, "policy"),
    (Run, "policies"),
    (Run, "agents"),
    (Run, "schedule"),
    (Run, "until"),
    (Multiprocessing, "mode"),
    (Multiprocessing, "num_agents"),
    (Split, "test"),
}
"""What configuration itself turns into policies, the agents' map, `lockstep`, `end`, `publish_mode`, a check and what
is evaluated."""

CONFIGURATION = ROOT / "protocol/config"


def attributes(folder: Path) -> set[str]:
    """All names that are read as an attribute of something, outside the configuration's own modules."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        if not path.is_relative_to(CONFIGURATION):
            tree = ast.parse(path.read_text())
            found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found


def models(of: type[ConfigModel] = ConfigModel) -> Iterator[type[ConfigModel]]:
    """All sections of a configuration."""
    for model in of.__subclasses__():
        if model.__module__.startswith("protocol."):
            yield model
            yield from models(model)


def test_no_accepted_key_is_ignored_F1_U5() -> None:
    read = set.union(*(attributes(ROOT / room) for room in ("protocol", "workers", "launch")))
    found = {(model, name) for model in models() for name in model.model_fields}
    assert len(found) > 150, len(found)
    assert {(model, name) for model, name in found - RESOLVED if name not in read | {"name"}} == set()
