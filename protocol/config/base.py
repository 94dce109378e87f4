"""What all sections of a configuration share: they are typed and frozen, an unknown key is an error, and what was
written is read again as it was. What pydantic finds wrong becomes an error with the key at fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, ValidationError

from protocol.config.synonyms import SYNONYMS
from protocol.errors import ConfigurationError
from protocol.spaces import Label

__all__ = ["AgentName", "ConfigModel", "Name", "Settings", "complaint"]


class ConfigModel(BaseModel):
    """A part of a run's configuration, with its keys as fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


def _stays(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        again = json.loads(json.dumps(settings))
    except (TypeError, RecursionError):
        again = None
    if again != settings:
        raise ConfigurationError("settings_not_plain_data")
    return settings


Settings = Annotated[dict[str, Any], AfterValidator(_stays)]
"""Keys and values that somebody else gives a meaning: what JSON can say, and infinite numbers."""

_Text = BeforeValidator(lambda value: str(value) if type(value) is int else value)
AgentName = Annotated[str, _Text]
"""An agent by its name in the world; YAML takes what is only digits for a number."""
Name = Annotated[Label, _Text]
"""Of a policy, a team, or whatever else is named here; the same holds."""

_SAID = 500
_NEAR = 0.75
"""How alike a key and what is probably meant are (difflib's ratio)."""
_WORDS = {
    "Value error, ": "",
    "Input should be a valid dictionary or object to extract fields from": "should be a section with keys",
    "Input should be a valid dictionary": "should be keys with values",
    "Input should be a valid tuple": "should be a list, as in [64]",
    "Input should be ": "should be ",
}
Sections = frozenset[type[BaseModel]]


def complaint(fault: ValidationError, model: type[BaseModel], data: Any, prefix: str = "") -> ConfigurationError:
    """The first fault of `data` for `model`. `prefix`: the place of that data in the whole."""
    first = fault.errors()[0]
    place = ".".join(filter(None, (prefix, _place(first["loc"], model, data))))
    if first["type"] == "extra_forbidden":
        meant = _synonym(place) or _meant(first["loc"], model, place.rpartition(".")[0])
        return ConfigurationError("unknown_key", key=place[:_SAID], meant=meant)
    if first["type"] == "union_tag_invalid":
        tag, known = first["ctx"]["tag"], [one.strip("'") for one in first["ctx"]["expected_tags"].split(", ")]
        return ConfigurationError("choice_unknown", key=f"{place}.name"[:_SAID], value=tag[:_SAID], choices=known)
    told = first.get("ctx", {}).get("error")
    if isinstance(told, ConfigurationError):
        inner = told.facts.get("key", "")
        key = inner if inner.startswith(place) else f"{place}.{inner}".rstrip(".")
        return told.within(place, key=key) if place else told
    of_same = [one["msg"] for one in fault.errors() if one["input"] is first["input"]]  # one for each form it may have
    reason = " or ".join(dict.fromkeys(_in_words(said) for said in of_same))[:_SAID]
    return ConfigurationError("value_invalid", key=place[:_SAID], reason=reason, value=repr(first["input"])[:_SAID])


def _in_words(said: str) -> str:
    """Pydantic's sentence as one about YAML."""
    for theirs, ours in _WORDS.items():
        said = said.replace(theirs, ours)
    return said


def _place(loc: tuple[int | str, ...], model: type[BaseModel], data: Any) -> str:
    """The key that `loc` leads to in `data`; what pydantic calls the members of unions is none."""
    known, parts = {name for one in {model, *_below(model)} for name in _keys(one)}, []
    for part in loc:
        given = part in data if isinstance(data, Mapping) else isinstance(part, int) and isinstance(data, list | tuple)
        if given or part in known:
            parts.append(str(part))
            data = data[part] if given else None
    return ".".join(parts)


def _synonym(place: str) -> str:
    """What another library's name is called here."""
    *section, last = place.split(".")
    if last not in SYNONYMS:
        return ""
    key, how = SYNONYMS[last]
    if section[:1] == ["policies"] and key.startswith("policy."):
        key = ".".join((*section[:2], key.removeprefix("policy.")))
    return f" (here that is {key}{f': {how}' if how else ''})" if key != place else ""


def _meant(loc: tuple[int | str, ...], model: type[BaseModel], section: str) -> str:
    """A question, where a key of that section is spelled much alike, or one below it the same."""
    *path, key = map(str, loc)
    sections: Sections = frozenset({model})
    for part in path:
        inner: Sections = frozenset().union(*(_inside(one, part) for one in sections))
        named = frozenset(one for one in sections if part in _tags(one))
        sections = inner or named or sections
    known = sorted({name for one in sections for name in _keys(one)})
    near: list[str] = get_close_matches(key, known, 1, _NEAR)
    if not near:
        near = [
            f"{name}.{key}"
            for one in sections
            for name, field in one.model_fields.items()
            if any(key in _keys(below) for below in _models(field.annotation, 1))
        ]
    return f" (is {section}{'.' if section else ''}{min(near)} meant?)" if near else ""


def _inside(section: type[BaseModel], name: str) -> Sections:
    """The sections that may stand under a field, in a list or mapping perhaps; none where there is no such field."""
    field = section.model_fields.get(name)
    return frozenset(_models(field.annotation)) if field else frozenset()


def _models(annotation: Any, depth: int = 9) -> Iterator[type[BaseModel]]:
    """The sections in an annotation; of depth 1: where a section stands there itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation) if depth > 1 else ():
        yield from _models(argument, depth - 1)


def _below(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All sections that may stand in a section."""
    for field in section.model_fields.values():
        for one in _models(field.annotation):
            yield one
            yield from _below(one)


def _tags(section: type[BaseModel]) -> tuple[Any, ...]:
    """What `name` says in that member of a union."""
    field = section.model_fields.get("name")
    return get_args(field.annotation) if field else ()


def _keys(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        alias = field.validation_alias
        yield from (
            one for one in (alias.choices if isinstance(alias, AliasChoices) else (alias,)) if isinstance(one, str)
        )
