"""Pictures of encoders and cores for the reference of all keys, each made of a real network.

In flow: what a policy sees and the section of its network, of the user's own ones those of the pages. Out flow:
a Mermaid block with its caption.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from protocol.config.run import parse_run
from protocol.spaces import Agent, Box, Dict, Discrete, MultiDiscrete, Text, World
from protocol.spaces.composite import Space
from tests.tools import ROOT
from workers.planning.policy_plan import plan_policies
from workers.tools.picture import chart

__all__ = ["PICTURES", "picture"]

_NUMBERS = Box(shape=(4,))
_IMAGE, _BOARD = Box(shape=(84, 84, 4), dtype="uint8"), Box(shape=(10, 10, 4), dtype="bool")
_SENTENCE = Text(max_length=24, charset="abcdefghijklmnopqrstuvwxyz ")


class Example(NamedTuple):
    """A policy's network, and what it sees and does."""

    network: Mapping[str, Any]
    sees: Space
    algorithm: str = "dqn"
    acts: Space = Discrete(n=3)


def _encoder(encoder: Any, sees: Space) -> Example:
    return Example({"encoder": encoder, "hidden": []}, sees)


def _core(core: Any) -> Example:
    return Example({"core": core, "hidden": [64]}, _NUMBERS)


PICTURES: Mapping[str, tuple[Example, ...]] = {
    "policy.network": (
        Example({"core": "none"}, _NUMBERS, "ppo"),
        _core("none"),
        _encoder({"image": "cnn", "said": "tokens"}, Dict(spaces={"image": _BOARD, "said": _SENTENCE})),
    ),
    "policy.network.encoder, name: mlp": (_encoder({"name": "mlp", "hidden": [64]}, _NUMBERS),),
    "policy.network.encoder, name: cnn": (_encoder("cnn", _IMAGE), _encoder("cnn", _BOARD)),
    "policy.network.encoder, name: impala": (_encoder("impala", _IMAGE),),
    "policy.network.encoder, name: tokens": (
        _encoder("tokens", _SENTENCE),
        _encoder({"name": "tokens", "by": "gru"}, _SENTENCE),
    ),
    "policy.network.encoder, name: entities": (_encoder("entities", Box(shape=(8, 5))),),
    "policy.network, of your own": (Example({"entry": "aim:Aim"}, _NUMBERS, "ppo", MultiDiscrete(nvec=(2, 3))),),
    "policy.network.encoder, of your own": (_encoder({"entry": "grid:Grid"}, Dict(spaces={"image": _BOARD})),),
    "policy.network.core, name: lstm or gru": (_core("lstm"), _core("gru")),
    "policy.network.core, name: attention": (_core("attention"),),
    "policy.network.core, of your own": (_core({"entry": "traces:Traces"}),),
}
"""Section -> what stands behind its keys."""


def picture(example: Example) -> str:
    """The block."""
    policy = {"algorithm": {"name": example.algorithm}, "network": dict(example.network)}
    agent = Agent(name="one", observation=example.sees, action=example.acts)
    with patch.dict(sys.modules, {name: _module(name) for name in ("aim", "grid", "traces")}):
        (plan,) = plan_policies(parse_run({"policy": policy}), World(id="pictures", agents=(agent,))).values()
        drawn = chart(plan)
    section = json.dumps(policy).replace('"', "")
    return f"`policy: {section}`\n\n```mermaid\n{drawn}\n```"


def _module(name: str) -> ModuleType:
    """The one that a page has."""
    pages = sorted((ROOT / "launch" / "docs" / "networks").glob("*.md"))
    document = "".join(page.read_text(encoding="utf-8") for page in pages)
    (source,) = re.findall(rf"^```python\n(# {name}\.py\n.*?)^```", document, re.M | re.S)
    module = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module
