"""Whether what Python finds as `protocol`, `workers` and `launch` are ours, and ours alone.

Looked at before anything of `protocol` is imported, since that may be another's. Out flow: nothing, a note for another
distribution whose files lie among ours, or a ConfigurationError.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).resolve().parents[1]
"""The folder of our packages: the repository, or where the wheel is installed."""
_PACKAGES = ("protocol", "workers", "launch")


def check(home: Path = HOME) -> None:
    """ConfigurationError if Python finds another package under one of our names, or another distribution has written
    over ours; one that has only laid files beside ours is told on standard error."""
    taken = [
        (package, place) for package in _PACKAGES if Path(place := find_place(package)).resolve() != home / package
    ]
    shared = [] if taken else _shared(home)
    if taken or any(damaged for _, _, damaged in shared):
        _trust_protocol()
    from protocol.errors import ConfigurationError

    for package, place in taken:
        raise ConfigurationError("package_name_taken", name=package, found=place, expected=home)
    for package, other, damaged in shared:
        if damaged:
            raise ConfigurationError("package_overwritten", name=package, other=other, expected=home)
        sys.stderr.write(f"rookery: {other} has files in {home / package} too; each needs an environment of its own\n")


def find_place(package: str) -> str:
    """The folder, or the file, that Python finds as `package`."""
    found = importlib.util.find_spec(package)
    places = [*(found.submodule_search_locations or ()), found.origin] if found is not None else ["missing"]
    return str(places[0])


def _shared(home: Path) -> list[tuple[str, str, bool]]:
    """(package, another distribution that has files in its folder, whether it has written over ours)."""
    records = [*home.glob("rookery_rl-*.dist-info/RECORD")]
    if not records:  # no wheel
        return []
    with records[0].open(newline="") as file:
        ours = {name: size for name, _, size in csv.reader(file)}
    found = []
    for package in _PACKAGES:
        inside = {Path(name).parts[1] for name in ours if name.startswith(f"{package}/")}
        strange = {path.name for path in (home / package).iterdir()} - inside - {"__pycache__"}
        first = home / package / "__init__.py"
        damaged = not first.exists() or str(first.stat().st_size) != ours.get(f"{package}/__init__.py")
        if strange or damaged:
            found += [(package, other, damaged) for other in _owners(home, package, records[0])]
    return found


def _owners(home: Path, package: str, ours: Path) -> list[str]:
    """Other distributions with files of `package`."""
    others = [path for path in home.glob("*.dist-info/RECORD") if path != ours]
    having = [path for path in others if f"\n{package}/" in f"\n{path.read_text(errors='replace')}"]
    return [path.parent.name.removesuffix(".dist-info") for path in having]


def _trust_protocol() -> None:
    """Has what says an error imported from our `protocol`, whatever Python finds: all but its first file is ours."""
    if not hasattr(sys.modules.get("protocol"), "RELEASE"):
        ours = sys.modules["protocol"] = ModuleType("protocol")
        ours.__path__ = [str(HOME / "protocol")]
