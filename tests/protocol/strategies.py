"""Hypothesis strategies made of the message classes themselves, so that no field and no limit is left untried."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from protocol.messages import core, simulator
from protocol.messages.core import Message

__all__ = ["CLASSES", "any_message", "message"]

CLASSES: list[type[Message]] = [
    cls
    for module in (core, simulator)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls.__module__ == module.__name__ and cls is not Message
]

_LONG = 300
"""Characters of a text whose limit is far away."""
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


def any_message() -> st.SearchStrategy[Message]:
    """Any message of any class."""
    return st.one_of(*map(message, CLASSES))


def message(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of `cls` in the schema that this release speaks."""
    schema = cls.model_json_schema()
    known = schema.get("$defs", {})
    fields = {name: _field(field, known) for name, field in schema["properties"].items() if name != "schema_number"}
    return st.fixed_dictionaries(fields).map(lambda values: cls.model_validate(values))


def _field(field: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in field:
        return _field(known[field["$ref"].rpartition("/")[2]], known)
    if "anyOf" in field:
        return st.one_of(*(_field(choice, known) for choice in field["anyOf"]))
    if "enum" in field:
        return st.sampled_from(field["enum"])
    match field.get("type"):
        case "string":
            most = field.get("maxLength", _LONG)
            if "pattern" in field:
                return st.from_regex(field["pattern"].replace("$", r"\Z")).filter(lambda text: len(text) <= most)
            return st.text(min_size=field.get("minLength", 0), max_size=min(most, _LONG))
        case "integer":
            return st.integers(field["minimum"], field["exclusiveMaximum"] - 1)
        case "number":
            low, most = field.get("exclusiveMinimum"), field.get("maximum")
            return st.floats(low, most, exclude_min=low is not None, allow_nan=False, allow_infinity=False)
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "array" if "prefixItems" in field:
            return st.tuples(*(_field(item, known) for item in field["prefixItems"]))
        case "array":
            return st.lists(_field(field["items"], known), max_size=3)
        case "object" if "properties" in field:
            return st.fixed_dictionaries({key: _field(value, known) for key, value in field["properties"].items()})
        case "object" if isinstance(field.get("additionalProperties"), dict):
            names = _field({"type": "string", **field.get("propertyNames", {})}, known)
            return st.dictionaries(names, _field(field["additionalProperties"], known), max_size=4)
        case "object":
            return st.dictionaries(st.text(max_size=20), _ANYTHING, max_size=3)
    raise AssertionError(f"no strategy for {field}")
