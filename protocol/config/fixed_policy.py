"""Policies that do not learn: one that was exported and stays as it is, and one that is a program.

In flow: `policies.NAME` whose `algorithm.name` is one of `FIXED`. Out flow: their keys. Such a policy has no learner,
no ring, no weights on the wire and no checkpoint, and so none of the other keys of a policy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.config.base import ConfigModel, Settings


class FrozenPolicy(ConfigModel):
    """A policy of an earlier run, which acts and never changes."""

    name: Literal["frozen"] = "frozen"
    path: str = Field(min_length=1)
    """A file that `rookery export` wrote (safetensors), or the folder of a checkpoint; from the working directory."""
    greedy: bool = False
    """Always the likeliest action; otherwise drawn, as while it was trained."""


class ScriptedPolicy(ConfigModel):
    """A player that is a program."""

    name: Literal["scripted"] = "scripted"
    entry: str = "random"
    """`random`, `constant`, `world` (the world's own scripted player) or the user's own `module:class`, found as
    `environment.id` is."""
    settings: Settings = Field(default_factory=dict)
    """Its keyword arguments."""


Fixed = FrozenPolicy | ScriptedPolicy
FIXED = ("frozen", "scripted")


class FixedConfig(ConfigModel):
    """All there is to say of a policy that does not learn."""

    algorithm: Annotated[Fixed, Field(discriminator="name")]
