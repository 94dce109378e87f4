"""What the commands of a run's roster come to. Pure.

In flow: lines of the history. Out flow: what holds now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from protocol.control.run_summary import RosterState as State

_RATE = re.compile(r"(policy|(?:policies|auxiliaries)\.(.+))\.learning_rate")


def after(state: State, line: Mapping[str, Any], followers: Collection[str]) -> State:
    """What `state` becomes by a line of the history: a command, or a key with which the run went on. `followers`: those
    of its configuration with the learning rate of `policy`."""
    key, new, command = line["key"], line.get("new"), line.get("command", "")
    if not command:
        return _gone_on(state, key, followers)
    if command == "set":
        rate = _RATE.fullmatch(key)
        assert rate is not None
        return {**state, "rates": {**state["rates"], rate[2]: new}}
    if command in ("freeze", "thaw"):
        frozen = {*state["frozen"]} - {key}
        return {**state, "frozen": sorted(frozen | {key} if command == "freeze" else frozen)}
    if command == "retire":
        return {**state, "retired": [*state["retired"], key]}
    part = {"assign": "agents", "worlds": "shares", "add": "added", "replace": "replaced", "member": "members"}[command]
    if command == "worlds" and isinstance(new, Mapping):
        part, new = "settings", {**state["settings"].get(key, {}), **new}
    elif command == "replace":
        new = {"number": line["number"], **line["new"]}
    elif command == "member":
        new = [*state["members"].get(key, ()), new]
    return {**state, part: {**state[part], key: new}}


def _gone_on(state: State, key: str, followers: Collection[str]) -> State:
    """The run goes on with another value of `key`, which holds from then on."""
    rates = state["rates"]
    if (rate := _RATE.fullmatch(key)) is not None:
        common = {name for name, told in state["added"].items() if "learning_rate" not in told["policy"]}
        ended = {rate[2]} if rate[2] else {*followers} | common
        rates = {name: one for name, one in rates.items() if name not in ended}
    return {**state, "rates": rates}
