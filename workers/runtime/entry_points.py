"""The user's own code, by the name that the configuration gives it.

In flow: `module:name`, as in `environment.id`. Out flow: what is called so, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from protocol.errors import ConfigurationError

__all__ = ["add_cwd_to_path", "import_entry_point", "one_line"]


def add_cwd_to_path() -> str:
    """Modules of the working directory can be imported from now on, after all others; its path."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return here


def import_entry_point(entry: str, key: str, forms: str) -> Callable[..., Any]:
    """The function or class `entry`, which `key` names, one of `forms`; modules of the working directory are found
    last, so that they shadow none of ours."""
    module, _, name = entry.partition(":")
    here = add_cwd_to_path()
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as fault:
        missing = fault.name or module
        if missing == module or module.startswith(f"{missing}."):
            raise ConfigurationError(
                "module_not_found", key=key, value=entry, module=module, file=here, choices=forms
            ) from None
        raise ConfigurationError("package_missing", value=entry, package=missing.partition(".")[0]) from fault
    except AttributeError:
        raise ConfigurationError("name_not_in_module", module=module, name=name, key=key, value=entry) from None
    except Exception as fault:
        raise ConfigurationError("module_import_failed", value=entry, reason=one_line(fault)) from fault
    if not callable(found):
        raise ConfigurationError("entry_not_callable", value=entry, key=key)
    function: Callable[..., Any] = found
    return function


def one_line(fault: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(fault).__name__}: {fault}".split())
