"""What a run came to, as its folder says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ConfigurationError

RosterState = Mapping[str, Any]
"""`rates`: learner's name -> learning rate that was set; `frozen`: names of those that do not learn; `agents`: name of
an agent -> the policy that it was given; of members of a collection `shares`, of episodes, and `settings`, those that
were set; `added`: policy -> its section `policy`, the `agent` whose spaces it has, and of one with code of others the
`fields` of its layout that depend on it; `retired`: policies that are no more; `replaced`: policy -> the `number` of
the command that gave it other weights, and their `sha256` and `checksum`; `members`: player -> what was added to the
library of its league: names of a `member`, and the same two of its weights."""
NO_COMMANDS: RosterState = {
    "rates": {},
    "frozen": [],
    "agents": {},
    "shares": {},
    "settings": {},
    "added": {},
    "retired": [],
    "replaced": {},
    "members": {},
}


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
