"""Every accepted configuration key is read by code that acts on it; `tests/protocol` checks what is accepted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from protocol.config.base import ConfigModel
from protocol.config.environment import Split
from protocol.config.off_policy import ValueBased
from protocol.config.run import Multiprocessing, Run
from tests.tools import ROOT

RESOLVED: set[tuple[type[ConfigModel], str]] = {
    (Run, "policy"),
    (Run, "policies"),
    (Run, "agents"),
    (Run, "schedule"),
    (Run, "until"),
    (Run, "schedule_steps"),
    (Multiprocessing, "mode"),
    (Multiprocessing, "num_agents"),
    (Split, "test"),
    (ValueBased, "exploration_steps"),
}
"""What configuration itself turns into policies, the agents' map, `lockstep`, `end`, `horizon`, `publish_mode`,
a check, what is evaluated and `exploration_fraction`."""

CONFIGURATION = ROOT / "protocol/config"


def models(of: type[ConfigModel] = ConfigModel) -> Iterator[type[ConfigModel]]:
    """All sections of a configuration."""
    for model in of.__subclasses__():
        if model.__module__.startswith("protocol."):
            yield model
            yield from models(model)


def test_no_accepted_key_is_ignored_F1_U5() -> None:
    """Each is read as an attribute of something, outside the configuration's own modules."""
    resolved = {name for model, name in RESOLVED if model is ValueBased}  # of what all of its kind have
    unread = {name for model in models() for name in model.model_fields if (model, name) not in RESOLVED}
    unread -= {"name", *resolved}
    assert len(unread) > 100
    for room in ("protocol", "workers", "launch"):
        for path in (ROOT / room).rglob("*.py"):
            text = "" if path.is_relative_to(CONFIGURATION) else path.read_text()
            if any(f".{name}" in text for name in unread):
                unread -= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    assert unread == set()
