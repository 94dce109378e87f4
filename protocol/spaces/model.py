"""What all nodes of the tree share: frozen models, safe names, limits, and one sentence for each fault.

In flow: whatever pydantic found wrong. Out flow: the error whose sentence a user reads.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import ConfigurationError

Label = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""The name of an agent, population or policy: it becomes part of file names and topics."""
Key = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")]
"""The name of an element of a Dict space or of a component: it becomes part of a field's name, which dots divide."""

DEPTH = 16
"""Nodes from the root of a tree to its deepest leaf, both counted."""
NODES = 10_000
"""Nodes of a tree."""
ELEMENTS = 2**31
"""Numbers in one leaf."""
LEAVES = 100_000
"""Leaves of all agents of a tree, common ones counted for each agent that sees them."""
LEAF_NAME = 100
"""Characters of a leaf's dotted name."""


class Node(BaseModel):
    """A node of the tree: plain data that nobody changes, equal where its JSON is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


def fault_of(fault: ValidationError) -> ConfigurationError:
    """The first thing that pydantic found wrong, in one line, with its place."""
    first = fault.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    told = first.get("ctx", {}).get("error")
    if isinstance(told, ConfigurationError):
        return told.within(place) if place else told
    reason = " ".join(first["msg"].removeprefix("Value error, ").split())
    given = repr(first["input"])
    value = given if len(given) <= 80 else given[:77] + "..."
    return ConfigurationError("value_invalid", key=place or "its text", reason=reason, value=value)
