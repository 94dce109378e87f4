"""The ready-made configurations, a YAML file each: their names, and what each is for."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

PRESETS = Path(__file__).parent


def preset_names() -> list[str]:
    """The ready-made configurations."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def sentence(name: str) -> str:
    """What a preset is for: the comment in its first line."""
    return (PRESETS / f"{name}.yaml").read_text().splitlines()[0].lstrip("# ")


def nearest(name: str) -> str:
    """A question, where a preset is called much alike."""
    return "".join(f" (is {one} meant?)" for one in get_close_matches(name, preset_names(), 1))
