"""What a command of a run's roster would do, tried before it is written, in a process of its own: whoever asks runs no
code of the user, and needs no torch.

    python -P -m workers.coordination.trial

In flow, on stdin: the run, its world, and what is to be tried. Out flows, on stdout: what was found, or why it cannot
be; a file with the weights that fit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from protocol.config.trainable import Start
from protocol.errors import ConfigurationError, RookeryError
from protocol.experience.layout import OUTPUT
from protocol.spaces import World, parse_world
from workers import freeze_startup_objects
from workers.environments.registry import describe, single_copy
from workers.evaluation.description import play_turn
from workers.learning.starts import start_table
from workers.planning.policy_plan import plan_added, plan_policies
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.last_words import end_with

_SECONDS = 120.0


def tried(run: Run, world: World, **asked: Any) -> dict[str, Any]:
    """What `try_policy` or `try_settings` says of what is `asked`; ConfigurationError, also where that process ends
    before it could say anything."""
    told = json.dumps(
        {"run": run.model_dump_json(), "world": world.model_dump_json(), "asked": asked, "parent": os.getpid()}
    )
    command = [sys.executable, "-P", "-m", "workers.coordination.trial"]
    try:
        ended = subprocess.run(command, input=told, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigurationError("roster_trial_failed", reason=f"it took longer than {_SECONDS:g} s") from None
    said = ended.stdout.strip().rpartition("\n")[2]  # after what the user's code has printed
    if ended.returncode == ConfigurationError.exit_code:
        raise ConfigurationError.heard(said)
    if ended.returncode:
        reason = ended.stderr.strip().rpartition("\n")[2] or f"it ended with {ended.returncode}"
        raise ConfigurationError("roster_trial_failed", reason=reason)
    return dict(json.loads(said))


def answer(run: Run, world: World, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is found; ConfigurationError."""
    return try_settings(run, **asked) if "settings" in asked else try_policy(run, world, **asked)


def try_policy(
    run: Run, world: World, policy: str, added: Mapping[str, Any] | None = None, weights: str = "", whole: bool = False
) -> dict[str, Any]:
    """Plans `policy`, or one that is to be `added`; `fields` of its layout that depend on code. What it takes of the
    file `weights`, in which there must be all of it where it is to be `whole`, is put beside that."""
    plan = plan_policies(run, world)[policy] if added is None else plan_added(run, world, {policy: added})[policy]
    if weights:
        from workers.policies.build import build
        from workers.policies.export.start import take_start

        told = {} if whole or plan.config.start is None else plan.config.start.model_dump()
        start = Start.model_validate({**told, "path": weights})
        data = take_start(policy, build(plan.interface, plan.config, 0), start, "weights")
        new: dict[str, str] = start_table(BytesIO(data))["new"]
        if whole and new:
            field = min(new)
            raise ConfigurationError("roster_weights_do_not_fit", policy=policy, field=field, reason=new[field])
        fitting(Path(weights)).write_bytes(data)
    fields: Any = plan.layout.describe()["fields"]
    return {"fields": [one for one in fields if one[0] == "state" or one[0].startswith(OUTPUT)]}


def try_settings(run: Run, member: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the `member` of a collection with other `settings`, by which its agents and spaces stay what they are, and
    plays a turn: actors would die of one that cannot be played."""
    before = describe(run.environment.member(member))
    environment = single_copy(run.environment.with_settings({member: settings}).member(member), False)
    try:
        if before.population != environment.world.population:
            raise ConfigurationError("roster_world_spaces_differ", value=member)
        play_turn(environment)
    finally:
        environment.close()
    return {}


def fitting(weights: Path) -> Path:
    """Where what fits of the file `weights` is put."""
    return weights.with_suffix(".fits")


def main() -> None:
    """Tries what stdin says."""
    told = json.load(sys.stdin)
    end_with(told["parent"])
    add_cwd_to_path()
    run, world, asked = Run.model_validate_json(told["run"]), parse_world(told["world"]), told["asked"]
    try:
        found = answer(run, world, asked)
    except RookeryError as fault:
        print(fault.coded)  # noqa: T201 - the answer
        sys.exit(ConfigurationError.exit_code)
    print(json.dumps(found))  # noqa: T201 - the answer


if __name__ == "__main__":
    freeze_startup_objects()
    main()
