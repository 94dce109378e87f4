"""Which worlds the installed packages have: what an id that does not fit may have meant, and who registers an id.

In flow: an id as it was written. Out flow: ids that can be written instead, or the module to import first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

REGISTERED_BY: Mapping[str, str] = {
    "ALE/": "ale_py",
    "BabyAI-": "minigrid",
    "FlappyBird-": "flappy_bird_gymnasium",
    "Foraging-": "lbforaging",
    "MinAtar/": "minatar.gym:register_envs",
    "MiniGrid-": "minigrid",
    "MiniWorld-": "miniworld",
    "PyFlyt/": "PyFlyt.gym_envs",
    "highway-": "highway_env",
    "intersection-": "highway_env",
    "merge-": "highway_env",
    "parking-": "highway_env",
    "racetrack-": "highway_env",
    "roundabout-": "highway_env",
    "rware-": "rware",
}
"""How ids of Gymnasium begin -> the module whose import registers them, or `module:function` where a call does."""
_ZOOS = ("pettingzoo", "mpe2")
"""Packages whose modules are worlds of PettingZoo."""
_VERSION = re.compile(r"[-_]?v[0-9]+$")


def registering_module(id: str) -> str:
    """Empty where it is not known."""
    return next((module for prefix, module in REGISTERED_BY.items() if id.startswith(prefix)), "")


def gymnasium_names() -> dict[str, str]:
    """Registered id -> the name of its world, versions in their order; ImportError where Gymnasium is missing."""
    import gymnasium

    newest = sorted(gymnasium.registry.values(), key=lambda spec: (spec.namespace is None, spec.version or 0))
    return {spec.id: spec.name for spec in newest}


def nearest_modules(name: str) -> list[str]:
    """Installed modules with a world of PettingZoo that is called like the module `name`, or much alike."""
    packages = dict.fromkeys((*_ZOOS, name.partition(".")[0]))
    known: dict[str, str] = {}
    for package in packages:
        known |= {module: module.rpartition(".")[2] for module in modules_of(package)}
    return nearest(name.rpartition(".")[2], known)


def modules_of(package: str) -> list[str]:
    """Those in an installed package that are called as worlds of PettingZoo are."""
    return [
        ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        for folder in _folders(package)
        for file in sorted(folder.rglob("*_v*.py"))
    ]


def nearest(wanted: str, known: Mapping[str, str]) -> list[str]:
    """Of `known` (what can be written -> how it is called) at most three that are called like `wanted`, whatever case
    and version; of those that are called the same, the last one."""
    by_name = {_plain(name): written for written, name in known.items()}
    return [by_name[one] for one in get_close_matches(_plain(wanted), by_name, 3, 0.75)]


def is_meant(ids: Iterable[str]) -> str:
    """A question, where there are any."""
    said = " or ".join(ids)
    return f" (is {said} meant?)" if said else ""


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", _VERSION.sub("", name.lower()))


def _folders(package: str) -> list[Path]:
    """Where an installed package lies, found without importing it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
