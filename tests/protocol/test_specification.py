"""The tables of protocol/README.md and the classes of core.py say the same, name by name and type by type; the
bytes shown there are those of the golden files."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from protocol.config.run import Run
from protocol.experience.ring_buffer import RECORD
from protocol.messages import codec
from protocol.messages.core import CommonRows, PolicySpec, Route
from protocol.messages.simulator import Column, PlaceFacts
from tests.protocol.conformance.test_golden import GOLDEN
from tests.protocol.strategies import CLASSES
from tests.tools import ROOT

TEXT = (ROOT / "protocol" / "README.md").read_text()
_MAPS: dict[str, type[BaseModel]] = {
    "route": Route,
    "specs": PolicySpec,
    "common": CommonRows,
    "place": PlaceFacts,
    "column": Column,
}
TABLED: dict[str, type[BaseModel]] = {**{cls.type: cls for cls in CLASSES}, **_MAPS}
_LABEL = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
_WORDS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 128},
    "label": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": f"^{_LABEL}$"},
    "label or empty": {"type": "string", "maxLength": 128, "pattern": f"^({_LABEL})?$"},
    "path": {"type": "string", "maxLength": 4096, "pattern": r"^[^\x00]*$"},
    "nonce": {"type": "string", "maxLength": 64},
    "checksum": {"type": "string", "maxLength": 32, "pattern": "^[0-9a-f]{32}$"},
    "digest": {"type": "string", "maxLength": 64, "pattern": "^[0-9a-f]{64}$"},
    "text": {"type": "string", "maxLength": 65_536},
    "document": {"type": "string", "maxLength": 1_000_000},
    "count": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**63},
    "ordinal": {"type": "integer", "minimum": 1, "exclusiveMaximum": 2**63},
    "incarnation": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**24},
    "incarnation from 1": {"type": "integer", "minimum": 1, "exclusiveMaximum": 2**24},
    "version": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**40},
    "1 to 2^32 - 1": {"type": "integer", "minimum": 1, "exclusiveMaximum": 2**32},
    "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9},
    "number": {"type": "number"},
    "info": {
        "type": "object",
        "propertyNames": {"minLength": 1, "maxLength": 48},
        "additionalProperties": {"anyOf": [{"type": "boolean"}, {"type": "number"}]},
        "maxProperties": 30,
    },
    "truth": {"type": "boolean"},
    "map": {"type": "object", "additionalProperties": True},
    "route": {"$ref": "#/$defs/Route"},
    "specs": {"$ref": "#/$defs/PolicySpec"},
    "place": {"$ref": "#/$defs/PlaceFacts"},
    "column": {"$ref": "#/$defs/Column"},
    "common or null": {"anyOf": [{"$ref": "#/$defs/CommonRows"}, {"type": "null"}]},
}


def word(schema: dict[str, Any]) -> str:
    """How the document calls a type."""
    plain = {key: value for key, value in schema.items() if key not in ("title", "default", "description")}
    for name, meaning in _WORDS.items():
        if plain == meaning:
            return name
    if "enum" in plain:
        return " or ".join(f"`{choice}`" for choice in plain["enum"])
    if "prefixItems" in plain:
        return f"[{', '.join(word(item) for item in plain['prefixItems'])}]"
    if plain.get("type") == "array":
        return f"list of {word(plain['items'])}"
    if plain.get("type") == "object":
        return f"map of {word({'type': 'string', **plain['propertyNames']})} to {word(plain['additionalProperties'])}"
    raise AssertionError(f"{plain} has no name in the document")


def rows_of(cls: type[BaseModel]) -> list[tuple[str, str, str]]:
    """(field, type, default) as the table of `cls` must say."""
    schema = cls.model_json_schema()
    rows = []
    for name, field in cls.model_fields.items():
        if name == "schema_number":
            continue
        default = "" if field.is_required() else _said(field.get_default(call_default_factory=True))
        rows.append((name, word(schema["properties"][name]), default))
    return rows


def _said(value: Any) -> str:
    return "empty" if value in ("", [], {}) and not isinstance(value, bool | int) else json.dumps(value)


def table_after(heading: str, which: int = 0) -> list[list[str]]:
    """The cells of table number `which` after the line `heading`."""
    assert f"\n{heading}\n" in TEXT, f"no heading {heading!r} in protocol/README.md"
    lines = TEXT.split(f"\n{heading}\n", 1)[1].splitlines()
    for _ in range(which):
        start = next(i for i, line in enumerate(lines) if line.startswith("|"))
        lines = lines[next(i for i, line in enumerate(lines) if i > start and not line.startswith("|")) :]
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next((i for i, line in enumerate(lines) if i > start and not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 : end]]


@pytest.mark.parametrize("name", TABLED)
def test_the_table_of_a_message_is_its_class(name: str) -> None:
    table = [(cells[0].strip("`"), cells[1], cells[2].strip("`")) for cells in table_after(f"### `{name}`")]
    assert table == rows_of(TABLED[name])


def test_every_type_in_the_tables_is_explained() -> None:
    explained = {cells[0].strip("`") for cells in table_after("## Types")}
    maps = {"route", "specs", "map", "common or null", "place", "column"}
    assert explained == set(_WORDS) - maps - {"1 to 2^32 - 1", "incarnation from 1", "label or empty"}


def test_the_limits_of_a_header_are_said() -> None:
    said = {cells[0]: cells[1].replace(",", "") for cells in table_after("### Limits of a header")}
    assert said == {
        "bytes": str(codec.MAX_HEADER),
        "bytes of one text": str(codec.MAX_TEXT),
        "elements of all lists and maps together, and one more for each of them": str(codec.MAX_ELEMENTS),
        "keys of one map": str(codec.MAX_ELEMENTS // 4),
        "nesting of lists and maps, the header itself being 1": str(codec.MAX_DEPTH),
    }


def test_the_record_is_where_the_table_says() -> None:
    fields, kinds = RECORD.fields, {8: "u64", 4: "u32", 3: "u24", 2: "u16", 1: "u8"}
    assert fields is not None
    expected = {name: (str(place[1]), kinds[place[0].itemsize]) for name, place in fields.items()}
    said = {}
    for offset, bits, meaning in table_after("## Records"):
        name = re.match(r"`(\w+)`", meaning)
        assert name is not None
        said[name[1]] = (offset, bits)
    assert said == expected


def network_keys(kind: str) -> set[str]:
    """What the document says that `specs.network` of a kind has."""
    keys = [(cells[0], cells[2]) for cells in table_after("## Acting")]
    return {
        key for cell, kinds in keys if kinds == "all" or f"`{kind}`" in kinds for key in re.findall(r"`(\w+)`", cell)
    }


def test_the_network_of_the_golden_welcome_has_the_keys_that_are_said() -> None:
    for specs in GOLDEN["welcome"]["fields"]["specs"]:
        network = json.loads(specs["network"])
        assert network.keys() == network_keys(network["kind"])


def test_the_configuration_has_the_keys_and_defaults_that_are_said() -> None:
    config = json.loads(Run().model_dump_json())
    for key, default, _ in table_after("### Configuration"):
        value = config
        for part in key.strip("`").split("."):
            value = value[part]
        assert json.loads(default.strip("`")) == value, key


def test_what_the_text_refers_to_is_there() -> None:
    """Sections by their names, the rules of membership by their numbers."""
    headings = set(re.findall(r"^#+ `?(.+?)`?$", TEXT, re.MULTILINE))
    named = set(re.findall(r"[Ss]ee ([A-Z][a-z]+(?: [a-z]+)*?)(?=[,.;)]| \||\n)", TEXT))
    assert {"Common observations", "Configuration", "Membership"} <= named <= headings
    rules = re.findall(r"^(\d+)\. ", TEXT.split("\n## Membership\n")[1].split("\n## ")[0], re.MULTILINE)
    assert rules == [str(number) for number in range(1, len(rules) + 1)]
    assert set(re.findall(r"\(Membership, (\d+)\)", TEXT)) <= set(rules)


def test_the_bytes_shown_are_the_golden_ones() -> None:
    shown = re.findall(r"```hex ([\w-]+) (\d+)\n(.*?)```", TEXT, re.DOTALL)
    assert len(shown) >= 5
    for name, frame, text in shown:
        assert "".join(text.split()) == GOLDEN[name]["frames"][int(frame)], f"frame {frame} of {name}"
