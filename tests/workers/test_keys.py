"""Every accepted configuration key is read by code that acts on it; `tests/protocol` checks what is accepted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

from protocol.config.environment import Adversarial, CollectionMember, Curriculum, Split
from protocol.config.run import (
    C51,
    DQN,
    IMPALA,
    IQN,
    PPO,
    SAC,
    EnvironmentConfig,
    Multiprocessing,
    Network,
    PolicyConfig,
    Run,
)
from tests.tools import ROOT

RESOLVED = {
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


READ = attributes(ROOT / "protocol") | attributes(ROOT / "workers") | attributes(ROOT / "launch")


@pytest.mark.parametrize(
    "model",
    [
        Run,
        EnvironmentConfig,
        PolicyConfig,
        Network,
        PPO,
        IMPALA,
        IQN,
        DQN,
        C51,
        SAC,
        Multiprocessing,
        CollectionMember,
        Split,
        Curriculum,
        Adversarial,
    ],
)
def test_no_accepted_key_is_ignored_F1_U5(model: type[BaseModel]) -> None:
    unread = {
        name for name in model.model_fields if name not in READ and name != "name" and (model, name) not in RESOLVED
    }
    assert unread == set()
