"""YAML files that people write, and what a run's folder holds. In flow: a path. Out flow: plain data or a run, with
what changes where a run goes on, or a sentence on what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from protocol.config.base import complaint, known_as
from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError

Model = TypeVar("Model", bound=BaseModel)
_BYTES = 16 * 2**20
_SAID = 500
_DIFFERENCES = 3
"""Keys that are named where two configurations differ."""
WORLD = "environment.settings"
"""Of which the coordinator sees whether they leave the world's agents and spaces what they are."""
CHANGEABLE = (
    *("steps", "until", "schedule_steps", "seconds", "target_return"),
    *("actors", "learners", "num_learner_processes", "device", "restarts"),
    *("environment.processes", "environment.step_timeout", "environment.restarts", WORLD),
    *("learning_rate", "max_grad_norm", "publish_interval", "sync_interval", "largest_number"),
    *("algorithm.anneal_learning_rate", "algorithm.entropy_coefficient", "algorithm.anneal_entropy"),
    *("algorithm.value_coefficient", "algorithm.clip", "algorithm.value_clip", "algorithm.epochs", "algorithm.max_lag"),
    *("algorithm.curiosity.coefficient", "algorithm.target_update_freq", "algorithm.tau", "algorithm.priority_beta"),
    *("algorithm.epsilon", "algorithm.epsilon_min", "algorithm.exploration_fraction", "algorithm.exploration_steps"),
    *("algorithm.epsilon_decay", "algorithm.epsilon_decay_freq", "algorithm.checkpoint_replay"),
    *("evaluation", "baseline_episodes", "hooks", "checkpoint_interval", "checkpoint_steps"),
    *("keep_checkpoints", "keep_checkpoint_every"),
    *("lockstep_checkpoint_rounds", "logging", "log_interval", "log_format", "log_mebibytes", "loggers"),
    *("actor_timeout", "learner_timeout", "monitor_period", "stall_timeout", "lock_timeout", "starvation_sleep"),
)
"""Keys with which a run may go on with another value, and all that stands below them; keys of a policy stand for those
of `policy`, of each of `policies`, and of `auxiliaries`."""
_LEARNERS_OWN = re.compile(r"^(policy|policies\.[^.]+|auxiliaries\.[^.]+)\.")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e6 for text; it is a number here, as it is in YAML 1.2 and wherever else people write it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """What a person wrote; raises yaml.YAMLError, ValueError or RecursionError where that is none."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_mapping(path: Path) -> dict[str, Any]:
    """What the file holds, nothing in it being {}; ConfigurationError if it cannot be read or is no mapping."""
    try:
        if path.stat().st_size > _BYTES:
            raise ConfigurationError("document_too_large", file=path, limit=_BYTES)
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except ConfigurationError:
        raise
    except OSError as fault:
        raise ConfigurationError("document_unreadable", file=path, reason=fault.strerror) from None
    except (yaml.YAMLError, ValueError, RecursionError) as fault:  # ValueError: no UTF-8, a date that is none
        raise _not_yaml(path, fault) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigurationError("document_not_a_mapping", file=path)
    return data


def _not_yaml(path: Path, fault: Exception) -> ConfigurationError:
    """What is wrong with a file that is no YAML, and where."""
    mark = getattr(fault, "problem_mark", None)
    problem = " ".join((getattr(fault, "problem", None) or str(fault)).split())[:_SAID]
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return ConfigurationError("document_not_yaml", file=path, reason=problem, line=line, column=column)


def parsed(path: Path, data: dict[str, Any], model: type[Model]) -> Model:
    """What the file holds, as a `model`; ConfigurationError in one sentence."""
    try:
        return model.model_validate(data)
    except ValidationError as fault:
        first = fault.errors()[0]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            key, known = str(first["loc"][0]), list(model.model_fields)
            hint = _key_meant(key, known)
            raise ConfigurationError(
                "settings_file_unknown_key", file=path, key=key, hint=hint, choices=known
            ) from None
        raise complaint(fault, model, data).within(path, file=path) from None


def _key_meant(key: str, known: list[str]) -> str:
    """A question, where a key is spelled much alike, or is one of a run, which stand under `settings`."""
    near = get_close_matches(key, known, 1)
    if not near and "settings" in known:
        ours, _ = known_as(key, Run)
        near = [f"settings.{ours}"] if ours else []
    return f" (is {near[0]} meant?)" if near else ""


def read_run(path: Path) -> Run:
    """The run in a file; ConfigurationError in one sentence."""
    return parse_run(read_mapping(path))


def read_run_in(folder: Path) -> Run:
    """The run whose folder this is; ConfigurationError, in one sentence, if it is none's."""
    check_run_folder(folder)
    return read_run(folder / "config.yaml")


def check_run_folder(folder: Path) -> None:
    """ConfigurationError if it is none."""
    if not (folder / "config.yaml").is_file():
        raise ConfigurationError("folder_without_config", file=folder)


@dataclass(frozen=True, slots=True)
class Change:
    """A key that a run goes on with another value of."""

    key: str
    old: Any
    new: Any


def may_change(key: str, run: Run) -> bool:
    """Whether `run` may go on with another value of `key`, which is one of launch/docs/guides/resume.md. In lock-step,
    where what came after the last cut is made again, nothing may change what that was; the cut holds how many act."""
    if run.lockstep and (key == "actors" or key.startswith(WORLD) or _LEARNERS_OWN.match(key)):
        return False
    key = _LEARNERS_OWN.sub("", key)
    return any(key == one or key.startswith(f"{one}.") for one in CHANGEABLE)


def fixed_part(run: Run) -> dict[str, Any]:
    """The keys that stay what they are for as long as the run lives, with their values."""
    every = _differences({}, run.model_dump(mode="json"), "")
    return {key: value for key, _, value in every if not may_change(key, run)}


def going_on(run: Run, folder: Path) -> tuple[Run, list[Change] | None]:
    """`run` as it goes on with the one in `folder`, and what is another value then: its schedules keep the steps that
    they ran over, unless `run` names others. No list where nothing has begun in `folder`. ConfigurationError with the
    keys that may not change."""
    path = folder / "config.yaml"
    if not ((folder / "state.json").exists() and path.exists()):
        return run, None
    before = read_run(path)
    if run.schedule_steps is None and (before.schedule_steps, before.steps) != (None, run.steps):
        run = run.model_copy(update={"schedule_steps": before.horizon})
    changes = [Change(*one) for one in _differences(before.model_dump(mode="json"), run.model_dump(mode="json"), "")]
    if refused := [one for one in changes if not may_change(one.key, run)]:
        raise differs(folder, refused)
    return run, changes


def differs(folder: Path, refused: Sequence[Change], why: str = "") -> ConfigurationError:
    """That the run in `folder` cannot go on with what of these is another value, and why not."""
    said = [f"{one.key} is {json.dumps(one.old)} there and {json.dumps(one.new)} here" for one in refused]
    more = f", and {len(said) - _DIFFERENCES} more" * (len(said) > _DIFFERENCES)
    facts = {"file": folder, "expected": folder / "config.yaml", "key": refused[0].key}
    return ConfigurationError("run_configuration_differs", **facts, reason="; ".join(said[:_DIFFERENCES]) + more + why)


def _differences(there: Any, here: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """(key, value there, value here) of what differs in two documents, as deep as either has it."""
    if there != here and all(isinstance(one, dict | None) for one in (there, here)):
        old, new = there or {}, here or {}
        for name in old | new:
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
    elif there != here:
        yield key, there, here
