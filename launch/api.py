"""Behind `import rookery`: the run that `rookery train` makes, by the same workers, from a script or a notebook.

In flow: a preset's name or a file, and what to change. Out flow: a handle of the run.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, Never

from rich.console import Console

from launch import config_loader, packages
from launch.cli.display import display
from launch.local import supervisor
from launch.local.run_handle import RunHandle
from launch.run_dir import folder_for
from protocol.config.base import known_as
from protocol.config.run import Run
from protocol.config.yaml_file import check_run_folder
from protocol.control.run_summary import read_summary
from protocol.errors import ConfigurationError, RookeryError
from protocol.errors.origin import is_ours

_NAME = re.compile(r"[^.=\s]+").fullmatch
_SAID = 80
"""Characters of what was given that a sentence repeats."""


class _Trimmed:
    """Whoever is refused sees his own line and the sentence, and none of our frames."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, fault: BaseException | None, _trace: object) -> None:
        if isinstance(fault, RookeryError):
            fault.__traceback__ = None


def load(folder: Path | str) -> RunHandle:
    """The run in `folder`, which goes on or is over; ConfigurationError where there is none."""
    with _Trimmed():
        folder = _path("folder", folder).resolve()
        if read_summary(folder) is None:
            check_run_folder(folder)
        return RunHandle(folder)


def train(
    source: Path | str | None = None,
    *,
    env: str | None = None,
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    run_dir: Path | str | None = None,
    sequential: bool = False,
    progress: bool = True,
    wait: bool = True,
    **unknown: Never,
) -> RunHandle:
    """Trains on this machine until the run ends, and shows its progress; without `wait` the run goes on beside the
    program, and `wait` of what is returned shows it.

    `source`: a preset, a YAML file, or the folder of a run that is to go on; `env`: an environment in place of its own,
    as `package.module:function`, which workers import from the working directory or what is installed, never from a
    notebook; `settings`: keys and values, as in {"policy.learning_rate": 0.001}, or sections of such, as in
    {"policy": {"learning_rate": 0.001}}. Raises
    ConfigurationError, or RunFailed, in one sentence.
    """
    with _Trimmed():
        _check_outside_of_workers(sys._getframe(1))
        logging.getLogger().addHandler(logging.NullHandler())  # what the supervisor says is told with the progress
        for name in unknown:
            raise _unknown(name)
        source = str(_path("source", source)) if source else None
        if not isinstance(env, str | None):
            raise ConfigurationError("environment_not_by_name", value=repr(env)[:_SAID], hint=_importable(env))
        changes = _changes({} if settings is None else settings)
        packages.check()
        run = config_loader.load(source, changes, env=env, steps=steps, seed=seed)
        alone = sequential or run.multiprocessing.enabled is False
        folder = folder_for(run, source or env or "", None if run_dir is None else _path("run_dir", run_dir), alone)
        handle = RunHandle(folder, partial(supervisor.train_sequential if alone else supervisor.train, run, folder))
        if not wait:
            handle.begin()
            return handle
        with display(Console(stderr=True), progress) as shown:
            return handle.make(shown)


def _path(key: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise ConfigurationError("argument_not_a_path", key=key, value=repr(value)[:_SAID])
    return Path(value)


def _unknown(name: str) -> ConfigurationError:
    """What to say of a keyword that `train` does not have."""
    takes = [one for one in signature(train).parameters if one != "unknown"]
    key, _ = known_as(name, Run)
    own = "env" if key == "environment.id" else key
    meant = own if own in takes else f"settings={{{key!r}: …}}"
    return ConfigurationError("keyword_unknown", value=name, hint=f" (is {meant} meant?)" if key else "", choices=takes)


def _importable(env: object) -> str:
    """The name by which a class, function or object that was given for it may be imported, in words."""
    made = env if hasattr(env, "__qualname__") else type(env)
    module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", "")).stem
    return f" (is {module}:{name} meant?)" if module not in ("", "builtins") and name.isidentifier() else ""


def _changes(settings: Mapping[str, Any]) -> list[str]:
    """`settings` as the command has them; what a configuration cannot hold is a ConfigurationError."""
    if not isinstance(settings, Mapping):
        raise ConfigurationError("settings_not_by_key", value=repr(settings)[:_SAID])
    changes = []
    for name, given in settings.items():
        try:
            changes += [f"{key}={json.dumps(value, default=_plain)}" for key, value in _leaves(str(name), given)]
        except (TypeError, ValueError, RecursionError):
            raise ConfigurationError("setting_not_plain", key=str(name), value=repr(given)[:_SAID]) from None
    return changes


def _leaves(key: str, given: Any) -> Iterator[tuple[str, Any]]:
    """(key, value) of all that is in a section, as what is not in it stays; a mapping whose keys cannot be part of a
    path is a value."""
    if not (isinstance(given, Mapping) and given and all(isinstance(name, str) and _NAME(name) for name in given)):
        yield key, given
        return
    for name, value in given.items():
        yield from _leaves(f"{key}.{name}", value)


def _plain(value: Any) -> Any:
    """A number or an array of numpy's, or a path, as plain data; TypeError for anything else."""
    return value.tolist() if hasattr(value, "tolist") else os.fspath(value)


def _check_outside_of_workers(caller: FrameType) -> None:
    """ConfigurationError where a worker has called the user's code that calls `train`: it has imported the script that
    it finds its world in, and each of its own workers would do the same, for ever. The stack tells, as it is the only
    thing that a process which the user's code starts does not inherit."""
    for frame, _ in walk_stack(caller):
        if is_ours(frame.f_code.co_filename) and frame.f_globals["__name__"].startswith("workers."):
            raise ConfigurationError("train_in_worker", file=caller.f_code.co_filename, line=caller.f_lineno)
