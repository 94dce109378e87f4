"""What a run came to, as its folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocol.errors import ConfigurationError


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What a run that has ended left in its `folder`; None where there is none. ConfigurationError if it is torn."""
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        summary = None
    if not isinstance(summary, dict):
        raise ConfigurationError("summary_unreadable", file=path)
    return summary
