"""The weights that policies of a run start from, as files of the run: put there once, before anything begins.

In flow: what other runs and files hold, and `policy.start` names. Out flows: a file for each policy in the run's
library, from which it begins as often as it must, and what is told of it. Without torch, but for `take_starts`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from protocol.config.run import Run
from workers.league import policy_pool
from workers.league.policy_pool import PoolEntry
from workers.planning.policy_plan import PolicyPlan
from workers.policies.export.export_manifest import TABLE

log = logging.getLogger(__name__)


def take_starts(run: Run, plans: Mapping[str, PolicyPlan], folder: Path) -> None:
    """Puts in place what each of `plans` starts from, unless it is there from an earlier life of the run; of what was
    recorded, what it started from then. ConfigurationError."""
    for name, plan in plans.items():
        start = plan.config.start
        if start is not None and start_entry(folder, name) is None:
            from workers.policies.build import build  # torch, which takes longer to import than all else before a run
            from workers.policies.export.start import take_start

            data = start_bytes(Path(run.replay), name) if run.replay else b""
            at = f"policies.{name}.start" if "start" in run.policies.get(name, ()) else "policy.start"
            data = data or take_start(name, build(plan.interface, plan.config, 0), start, at)
            policy_pool.add(folder, _place(name), 0, data)


def start_entry(folder: Path, policy: str) -> PoolEntry | None:
    """What `policy` starts from, in the library of the run in `folder`."""
    return next(iter(policy_pool.entries(folder, _place(policy))), None)


def start_bytes(folder: Path, policy: str) -> bytes:
    """The file; empty where the policy starts from nothing."""
    entry = start_entry(folder, policy)
    return b"" if entry is None else policy_pool.verify(entry, entry.path(folder).read_bytes())


def start_table(file: IO[bytes]) -> dict[str, Any]:
    """What was taken, skipped and left new, of a `file` of a start; empty of an empty one. Its weights are not read."""
    if not (size := int.from_bytes(file.read(8), "little")):
        return {}
    header = json.loads(file.read(size))
    return dict(json.loads(header["__metadata__"][TABLE]))


def tell_start(policy: str, table: Mapping[str, Any]) -> None:
    """The table in the log."""
    parts = ("taken", "skipped", "new", "unused", "frozen")
    counts = " ".join(f"{part}={len(table[part])}" for part in parts)
    log.info("event=start policy=%s path=%s sha256=%s %s", policy, table["path"], table["sha256"], counts)
    for part in parts:
        for name in table[part]:
            said = f' shape="{table[part][name]}"' if isinstance(table[part], dict) else ""
            log.info("event=start_weight policy=%s weight=%s is=%s%s", policy, name, part, said)


def told_starts(folder: Path, policies: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The tables of those that start from something."""
    found = {}
    for name in policies:
        if (entry := start_entry(folder, name)) is not None:
            with entry.path(folder).open("rb") as file:
                found[name] = start_table(file)
    return found


def for_workers(run: Run, entries: Mapping[str, PoolEntry]) -> Run:
    """`run` as workers are told it: what they start policies from is named as they ask for it, by its checksum, and the
    run whose commands are repeated by a path that does not depend on where they work."""
    told = dict(run.policies)
    for name, entry in entries.items():
        start = run.policy_config(name).start
        assert start is not None
        told[name] = {**told.get(name, {}), "start": start.model_dump(mode="json") | {"path": entry.checksum}}
    commands = run.commands and os.path.abspath(run.commands)
    return run.model_copy(update={"policies": told, "commands": commands})


def start_name(policy: str) -> str:
    """What the file of `policy` is called in the library; no policy of a league can be called so."""
    return f"{_place(policy)}/0"


def weights_name(policy: str, sha256: str) -> str:
    """What is called in the library what `policy` takes of a file that was sent to replace its weights."""
    return f"weights~{policy}~{sha256}/0"


def _place(policy: str) -> str:
    return f"start~{policy}"
