"""From a preset or a YAML file, and `--set key=value`, to a validated configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from launch.presets import PRESETS, nearest, preset_names
from protocol.config.run import Run, parse_run
from protocol.config.source_names import with_named_algorithms
from protocol.config.yaml_file import parse_yaml, read_mapping
from protocol.errors import ConfigurationError

DEFAULT, DEFAULT_OF_ENV = "treasure-hunt", "cartpole"
"""The preset that is meant where none is named, and where an environment is named alone."""
_POLICY = re.compile(r"policy|policies\.[^.]+")
_ALGORITHM = re.compile(rf"({_POLICY.pattern})\.algorithm")
_SETTING, _GYMNASIUM = re.compile(r"[\w.]+="), re.compile(r"[\w./-]+-v\d+")
"""How a setting and an id of Gymnasium look."""
_ANYWHERE = ("copies", "processes", "async_factor", "step_timeout", "restarts")
"""Keys of an environment that mean the same in any other."""
_ALIASES = {"train_interval": "publish_interval", "model_config": "network"}


def is_run_folder(word: str) -> bool:
    """Whether `word` means a run's folder; a preset that is called so is meant first."""
    return (Path(word) / "config.yaml").is_file() and word not in preset_names()


def check_word(word: str) -> None:
    """ConfigurationError where a word that is no preset and no configuration's file is something else of a run."""
    path = Path(word)
    if _SETTING.match(word):
        what, meant = "a setting", f"--set {word}"
    elif (path / "config.yaml").is_file():
        what, meant = "a run's folder", "it as first word, to go on with it"
    elif path.is_dir():
        what, meant = "a folder, and no run's", "that of a run, which has a config.yaml, or a file that ends in .yaml"
    elif path.suffix == ".py" or Path(f"{word}.py").is_file():
        inside = os.path.relpath(word).removesuffix(".py")
        module = path.stem if inside.startswith(os.pardir) else inside.replace(os.sep, ".")
        what, meant = "code", f"--env {module}:FUNCTION, with what makes the environment"
    elif ":" in word:
        what, meant = "an environment", f"--env {word}, or environment.id"
    elif _GYMNASIUM.fullmatch(word):
        what, meant = "an environment", f"--env gymnasium:{word}, or environment.id"
    else:
        return
    raise ConfigurationError("word_misplaced", value=word, what=what, meant=meant)


def load(source: str | None, settings: Iterable[str] = (), *, env: str | None = None, **overrides: Any) -> Run:
    """The run that `source` (a preset's name, a file, or a run's folder) describes, changed by `settings` ("a.b=c")
    and `overrides` (None: as it is). `env`: the id of an environment that is played instead of its own.
    Raises ConfigurationError."""
    data = _read(source or (DEFAULT_OF_ENV if env else DEFAULT))
    if env is not None:
        where = data.get("environment")
        kept = where.items() if isinstance(where, dict) else ()
        data["environment"] = {"id": env, **{key: value for key, value in kept if key in _ANYWHERE}}
    given: set[str] = set()
    for setting in settings:
        _set(data, setting, given)
    data.update({key: value for key, value in overrides.items() if value is not None})
    return parse_run(data)


def _read(source: str) -> dict[str, Any]:
    path = PRESETS / f"{source}.yaml"
    if "/" in source or source.endswith((".yaml", ".yml")) or not path.exists():
        path = Path(source, "config.yaml") if is_run_folder(source) else Path(source)
    if not path.is_file() or path.suffix == ".py":
        check_word(source)
        raise ConfigurationError("run_source_unknown", value=source, hint=nearest(source), choices=preset_names())
    if not (data := read_mapping(path)):
        raise ConfigurationError("document_empty", file=path)
    return with_named_algorithms(data)


def _set(data: dict[str, Any], setting: str, given: set[str]) -> None:
    """Changes one key. `given`: the keys of earlier settings, which outlive a change of the algorithm."""
    key, sign, text = setting.partition("=")
    if not sign or not key:
        raise ConfigurationError("setting_not_key_value", value=setting)
    if not text.strip():  # of a shell's variable that is not set, say: nobody is to train from nothing by that
        raise ConfigurationError("setting_without_value", value=setting, key=key)
    *parents, last = key.split(".")
    place, path = data, ""
    for parent in parents:
        parent = _one_name(place, path, parent)
        path = f"{path}.{parent}".lstrip(".")
        if place.get(parent) is None:
            place[parent] = {}
        inner = place[parent]
        if not isinstance(inner, dict):
            raise ConfigurationError("setting_of_no_section", value=setting, key=parent)
        place = inner
    last = _one_name(place, path, last)
    if _ALGORITHM.fullmatch(f"{path}.{last}") and "{" not in text:
        _set(data, f"{key}.name={text}", given)
        return
    try:
        value = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigurationError("setting_value_unreadable", setting=setting, value=text) from None
    if last == "name" and _ALGORITHM.fullmatch(path) and value != _algorithm(data, place) and path not in given:
        for other in [key for key in place if f"{path}.{key}" not in given]:
            del place[other]
    place[last] = value
    given.add(f"{path}.{last}".lstrip("."))


def _one_name(place: dict[str, Any], path: str, key: str) -> str:
    """The name under which `key` of the section `path` is kept; one that stands there under its alias is renamed."""
    if not _POLICY.fullmatch(path):
        return key
    key = _ALIASES.get(key, key)
    for alias, name in _ALIASES.items():
        if name == key and alias in place:
            value = place.pop(alias)
            place.setdefault(name, value)
    return key


def _algorithm(data: dict[str, Any], section: dict[str, Any]) -> object:
    """The algorithm that `section` means: its own, or the one all policies have in common."""
    if "name" in section:
        return section["name"]
    policy = data.get("policy")
    common = policy.get("algorithm") if isinstance(policy, dict) else None
    return common.get("name", "ppo") if isinstance(common, dict) else "ppo"
