"""The user's own code, by the name that the configuration gives it.

In flow: `module:name`, as in `environment.id`. Out flow: what is called so, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from protocol.errors import ConfigurationError, RookeryError
from protocol.errors.origin import blame, is_users
from protocol.errors.packages import not_installed

_OURS = {"launch", "protocol", "rookery", "workers"}
_BESIDE = "user_folder"
"""The package in which a module of the user's is imported whose own name is taken in this process."""


def add_cwd_to_path() -> str:
    """Modules of the working directory can be imported from now on, after all others; its path."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return here


def import_entry_point(entry: str, key: str, forms: str) -> Callable[..., Any]:
    """The function or class `entry`, which `key` names, one of `forms`."""
    module, _, name = entry.partition(":")
    here = add_cwd_to_path()
    with calling(entry, lambda **at: ConfigurationError("module_import_failed", value=entry, **at)):
        try:
            if os.sep in module:
                raise ModuleNotFoundError(name=module)
            holder = _import_module(module, here)
        except ModuleNotFoundError as fault:
            missing = fault.name or module
            if missing == module or module.startswith(f"{missing}."):
                inside = os.path.relpath(module.removesuffix(".py"))
                plain = Path(inside).name if inside.startswith(os.pardir) else inside.replace(os.sep, ".")
                hint = f" (is {plain}:{name} meant?)" if plain != module else ""
                raise ConfigurationError(
                    "module_not_found", key=key, value=entry, module=module, hint=hint, file=here, choices=forms
                ) from None
            raise not_installed(entry, missing, key) from fault
    try:
        found = getattr(holder, name)
    except AttributeError:
        near = "".join(f" (is {one} meant?)" for one in get_close_matches(name, dir(holder), 1))
        raise ConfigurationError(
            "name_not_in_module", module=module, name=name, key=key, value=entry, hint=near
        ) from None
    if not callable(found):
        raise ConfigurationError("entry_not_callable", value=entry, key=key)
    function: Callable[..., Any] = found
    return function


@contextmanager
def calling(entry: str, failed: Callable[..., RookeryError]) -> Iterator[None]:
    """In here what `entry` names is called. What it raises becomes what `failed` makes of the facts of `blame`; errors
    of ours stay as they are."""
    try:
        yield
    except RookeryError:
        raise
    except BaseException as fault:
        if not is_users(fault):
            raise
        raise name_clash(entry, fault) or failed(**blame(fault)) from fault


def _import_module(name: str, here: str) -> ModuleType:
    """The module `name` of the folder `here`, whatever it is called, or else what Python finds.

    One that is called like a module that this process needs, ours or Python's own, is imported beside it under a longer
    name. ConfigurationError if user's code takes ours for one of its own.
    """
    top = name.partition(".")[0]
    try:
        if not any(path.is_file() for path in _files(here, name)) or _is_in(here, sys.modules.get(top)):
            return importlib.import_module(name)
        if top in sys.modules or top in _OURS or top in sys.stdlib_module_names:
            folder = sys.modules.setdefault(_BESIDE, ModuleType(_BESIDE))
            folder.__path__ = [here]
            return importlib.import_module(f"{_BESIDE}.{name}")
        _import_top(top, here)
        return importlib.import_module(name)
    except (ImportError, AttributeError) as fault:
        clash = name_clash(name, fault)
        if clash is None:
            raise
        raise clash from fault


def name_clash(value: str, fault: BaseException) -> ConfigurationError | None:
    """What to say if the user's code, which `value` names, has raised `fault` because it took a package of ours for one
    of its own that is called alike."""
    if not isinstance(fault, ImportError | AttributeError):
        return None
    meant = fault.name if isinstance(fault, ImportError) else getattr(fault.obj, "__name__", "")
    package, here = str(meant).partition(".")[0], os.getcwd()
    taken, theirs = sys.modules.get(package), [path for path in _files(here, package) if path.exists()]
    if package not in _OURS or taken is None or not theirs or _is_in(here, taken):
        return None
    return ConfigurationError("module_name_clash", value=value, name=package, file=theirs[0], ours=taken.__file__)


def _files(here: str, name: str) -> list[Path]:
    """Where the module would be in the folder."""
    path = Path(here, *name.split("."))
    return [path / "__init__.py", path.with_name(f"{path.name}.py"), path]


def _is_in(here: str, module: ModuleType | None) -> bool:
    """Whether the module was imported from the folder."""
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return any(place and Path(place).resolve().parent == Path(here).resolve() for place in places)


def _import_top(top: str, here: str) -> None:
    """Imports `top` from the folder, though another one may come first in Python's path."""
    spec = PathFinder.find_spec(top, [here])
    if spec is None or spec.loader is None:  # a folder without __init__.py, which ordinary import finds
        return
    module = sys.modules[top] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[top]
        raise
