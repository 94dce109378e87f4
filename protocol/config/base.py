"""What all sections of a configuration share: they are typed and frozen, an unknown key is an error, and what was
written is read again as it was. What pydantic finds wrong becomes an error with the key at fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, ValidationError

from protocol.config.synonyms import SYNONYMS, VARIANTS
from protocol.errors import ConfigurationError
from protocol.spaces import Label


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
    "a valid integer, unable to parse string as an integer": "a whole number and no text, as 7 or 1e6",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid number, unable to parse string as a number": "a number and no text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean, unable to interpret input": "true or false",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "Tuple should": "should",
    "Dictionary should": "should",
    "Value should": "should",
    "Input should be a valid dictionary or object to extract fields from": "should be a section with keys",
    "Input should be a valid dictionary": "should be keys with values",
    "Input should be a valid tuple": "should be a list, as in [64]",
    "Input should be ": "should be ",
}
_MAIN = {"environment": "id", "network": "hidden", "policy": "algorithm"}
"""The key of a section that is meant where the section is given as one value."""
_INSTEAD = re.compile(r" or instance of \w+$| after validation, not \d+$")
"""What pydantic adds and nobody needs."""
Sections = frozenset[type[BaseModel]]


def complaint(fault: ValidationError, model: type[BaseModel], data: Any, prefix: str = "") -> ConfigurationError:
    """The first fault of `data` for `model`. `prefix`: the place of that data in the whole."""
    first = fault.errors()[0]
    place = ".".join(filter(None, (prefix, _place(first["loc"], model, data))))
    if first["type"] == "extra_forbidden":
        meant = _elsewhere(place, model, prefix) or _meant(first["loc"], model, place.rpartition(".")[0])
        return ConfigurationError("unknown_key", key=place[:_SAID], meant=meant)
    if first["type"] == "union_tag_invalid":
        tag, known = first["ctx"]["tag"], [one.strip("'") for one in first["ctx"]["expected_tags"].split(", ")]
        key, hint = f"{place}.name"[:_SAID], _value_meant(tag, known)
        return ConfigurationError("choice_unknown", key=key, value=tag[:_SAID], hint=hint, choices=known)
    if first["type"] == "missing":
        return ConfigurationError("key_missing", key=place[:_SAID])
    told = first.get("ctx", {}).get("error")
    if isinstance(told, ConfigurationError):
        inner = told.facts.get("key", "")
        key = inner if inner.startswith(place) else f"{place}.{inner}".rstrip(".")
        return told.within(place, key=key) if place else told
    of_same = [  # one for each form that it may have
        one["msg"] for one in fault.errors() if one["input"] is first["input"] and one["type"] != "extra_forbidden"
    ]
    reason = " or ".join(dict.fromkeys(_in_words(said) for said in of_same))[:_SAID]
    if first["type"] == "literal_error":
        reason += _value_meant(first["input"], re.findall(r"'(\w+)'", first["ctx"]["expected"]))
    elif first["type"] == "model_type" and (main := _MAIN.get(place.rpartition(".")[2])):
        reason += f" (is {place}.{main} meant?)"
    return ConfigurationError("value_invalid", key=place[:_SAID], reason=reason, value=repr(first["input"])[:_SAID])


def _in_words(said: str) -> str:
    """Pydantic's sentence as one about YAML."""
    for theirs, ours in _WORDS.items():
        said = said.replace(theirs, ours)
    return _INSTEAD.sub("", said)


def _place(loc: tuple[int | str, ...], model: type[BaseModel], data: Any) -> str:
    """The key that `loc` leads to in `data`; what pydantic calls the members of unions is none."""
    known, parts = {name for one in {model, *_below(model)} for name in _keys(one)}, []
    for part in loc:
        given = part in data if isinstance(data, Mapping) else isinstance(part, int) and isinstance(data, list | tuple)
        if given or part in known:
            parts.append(str(part))
            data = data[part] if given else None
    return ".".join(parts)


def known_as(name: str, model: type[BaseModel]) -> tuple[str, str]:
    """The key that another library calls `name`, or that is called so in another section; empty where there is none.
    And what to write for its value where that is another one, or why there is none."""
    if name in SYNONYMS:
        return SYNONYMS[name]
    return min((path for path, _ in _paths(name, model)), key=lambda path: path.count("."), default=""), ""


def _elsewhere(place: str, model: type[BaseModel], prefix: str) -> str:
    """What the key at `place` is called here, or who has it, in words. `prefix`: the place of `model` in the whole."""
    last, inner = place.rpartition(".")[2], place.removeprefix(f"{prefix}.")
    key, how = known_as(last, model)
    if not key:
        return how and f" (there is none here: {how})"
    if key == inner:
        tags = sorted({tag for path, section in _paths(last, model) if path == inner for tag in _tags(section)})
        return f" (that is a key of {', '.join(tags)})" if tags else ""
    if last not in SYNONYMS:
        return f" (is {f'{prefix}.{key}'.lstrip('.')} meant?)"
    if place.startswith("policies.") and key.startswith("policy."):
        key = ".".join((*place.split(".")[:2], key.removeprefix("policy.")))
    return f" (here that is {key}{f': {how}' if how else ''})"


def _value_meant(value: object, choices: list[str]) -> str:
    """A question, where one of `choices` is spelled much like `value`."""
    word, numbered, _ = str(value).lower().partition(":")
    if VARIANTS.get(word, ("",))[0] in choices:
        return f" (here that is {' with '.join(VARIANTS[word])})"
    near = get_close_matches("cuda" if word == "gpu" else word, choices, 1, _NEAR)
    which = " CUDA_VISIBLE_DEVICES says which one" * (near == ["cuda"] and bool(numbered))
    return f" (is {near[0]} meant?{which})" if near else ""


def _paths(name: str, section: type[BaseModel], before: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """(key from `section` on, section that it stands in) of all that are called `name`, names that the user gives
    aside. What is called `name` itself says only which kind of section it is."""
    for own, field in section.model_fields.items():
        if own == name != "name":
            yield f"{before}{own}", section
        if get_origin(field.annotation) not in (dict, tuple):
            for below in _models(field.annotation, 2):
                yield from _paths(name, below, f"{before}{own}.")


def _meant(loc: tuple[int | str, ...], model: type[BaseModel], section: str) -> str:
    """A question, where a key of that section is spelled much alike."""
    *path, key = map(str, loc)
    sections: Sections = frozenset({model})
    for part in path:
        inner: Sections = frozenset().union(*(_inside(one, part) for one in sections))
        named = frozenset(one for one in sections if part in _tags(one))
        sections = inner or named or sections
    known = sorted({name for one in sections for name in _keys(one)})
    near = get_close_matches(key.lower(), known, 1, _NEAR)
    if not near and section == "environment":
        near = [f"settings.{key}"]  # where the world's own arguments stand
    return f" (is {section}{'.' if section else ''}{near[0]} meant?)" if near else ""


def _inside(section: type[BaseModel], name: str) -> Sections:
    """The sections that may stand under a field, in a list or mapping perhaps; none where there is no such field."""
    field = section.model_fields.get(name)
    return frozenset(_models(field.annotation)) if field else frozenset()


def _models(annotation: Any, depth: int = 9) -> Iterator[type[BaseModel]]:
    """The sections in an annotation; of depth 1: where a section stands there itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0], depth)
        return
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
