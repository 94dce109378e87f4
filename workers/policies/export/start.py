"""What a policy starts from: weights of another run, or of a file, by name and shape.

In flow: `policy.start`. Out flows: one file with the weights that are taken, and in its header a table of what was
taken, skipped and left new; and at the learner these weights in place, bit for bit. No code of the other run's is
imported: what is not of the policy's own names and shapes is left where it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from protocol.config.trainable import Start
from protocol.config.yaml_file import check_run_folder
from protocol.errors import ConfigurationError
from workers.policies.export.export_manifest import TABLE
from workers.policies.export.from_checkpoint import saved_policies, step_of
from workers.policies.networks.normalization import RunningMoments

LARGEST = 2**31
"""Bytes of a file of weights."""
_HEADS = re.compile(r"(.+\.)?(head|mixer|critics|(policy|value)_(weight|bias)|log_std|log_temperature)(\..+)?")
_NEVER_NEGATIVE = (".variance", ".count")
"""How statistics end of which a root is taken, or by which they are divided."""
_READING = {"encoder", "core", "hidden"}
"""Parts that what is seen goes into."""
_OF_VALUES = ("value_", "critic.", "privileged.", "returns.", "declared.")
"""How the names of weights begin that no action depends on."""
_COPIES = {"target.": "online.", "targets.": "critics."}
"""What follows others while a policy learns: at first it is a copy of them."""


def take_start(name: str, policy: nn.Module, start: Start, at: str = "policy.start") -> bytes:
    """The file of what the policy called `name`, which was built as in the run, takes by its `start`, which is given
    `at` that key.
    ConfigurationError where there is no such thing, it is none of weights, or nothing in it fits."""
    file = _file_of(start.path, name, at)
    data = _read(file, at)
    try:
        there = load(data)
    except (SafetensorError, ValueError, KeyError) as fault:
        reason = " ".join(str(fault).split())
        raise ConfigurationError("start_not_safetensors", key=f"{at}.path", file=file, reason=reason) from None
    taken, table = _matched(policy, start, there, at)
    if not taken:
        told = {"file": file, "policy": name, "choices": sorted(there)[:8], "expected": sorted(parts_of(policy))[:8]}
        raise ConfigurationError("start_nothing_fits", key=f"{at}.path", **told)
    for field, tensor in taken.items():
        if not bool(tensor.isfinite().all()) or (field.endswith(_NEVER_NEGATIVE) and bool((tensor < 0).any())):
            raise ConfigurationError("start_not_finite", key=f"{at}.path", file=file, field=field)
    source = {"path": start.path, "file": str(file), "sha256": hashlib.sha256(data).hexdigest()}
    return save(taken, {TABLE: json.dumps({**source, **table})})


def put_in_place(policy: nn.Module, data: bytes) -> None:
    """Copies the weights of `take_start`, or of no file at all, into `policy`; what follows others becomes a copy."""
    own = policy.state_dict()
    for name, tensor in load(data).items() if data else ():
        own[name].copy_(tensor)
    for target, online in _COPIES.items() if data else ():
        for name in own:
            if name.startswith(target):
                own[name].copy_(own[online + name.removeprefix(target)])


def parts_of(policy: nn.Module) -> dict[str, frozenset[str]]:
    """What may be taken of `policy`: its weights by name, each with the words for the parts that it belongs to. Neither
    its constants nor its exploration rate, nor what follows others."""
    moments = tuple(f"{name}." for name, one in policy.named_modules() if isinstance(one, RunningMoments))
    found = {}
    for name in policy.state_dict():
        places, words = name.split("."), set[str]()
        if name in dict(policy.named_buffers(recurse=False)) or name.startswith((*_COPIES,)):
            continue
        words |= {"encoder", "core"} & {*places}
        if name.startswith(moments):
            words |= {"normalizer", *(["heads"] if places[0] == "returns" else [])}  # a value head speaks in its unit
        found[name] = frozenset(words or {"heads" if _HEADS.fullmatch(name) else "hidden"})
    return found


def named(policy: nn.Module, parts: Sequence[str], key: str) -> set[str]:
    """The weights of `policy` in any of `parts`, which are words, or beginnings of names; ConfigurationError for one
    without any."""
    known, found = parts_of(policy), set[str]()
    for part in parts:
        begins = re.compile(rf"{re.escape(part)}([._].*)?")
        mine = {name for name, words in known.items() if part in words or begins.fullmatch(name)}
        if not mine:
            choices = sorted({word for words in known.values() for word in words})
            raise ConfigurationError("start_part_unknown", key=key, value=part, choices=choices)
        found |= mine
    return found


def _matched(
    policy: nn.Module, start: Start, there: dict[str, torch.Tensor], at: str
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What is taken of `there`, and the table."""
    own, known = policy.state_dict(), parts_of(policy)
    wanted = named(policy, start.only, f"{at}.only") if start.only else {*known}
    wanted -= named(policy, start.skip, f"{at}.skip")
    wanted -= set() if start.normalizer else {name for name, words in known.items() if "normalizer" in words}
    if not wanted:
        raise ConfigurationError("start_takes_nothing", key=f"{at}.skip")
    taken, new = dict[str, torch.Tensor](), dict[str, str]()
    for name in [name for name in known if name in wanted]:
        mine, its = own[name], there.get(name)
        if its is None:
            new[name] = "not there"
            if name.endswith("observations.mean") and any(known[one] & _READING for one in taken):
                raise ConfigurationError("start_without_normalizer", key=f"{at}.path", file=start.path)
        elif (its.shape, its.is_floating_point()) != (mine.shape, mine.is_floating_point()):
            new[name] = f"{list(its.shape)} there, {list(mine.shape)} here"
        else:
            taken[name] = its.to(mine.dtype)  # in which it must be finite
    frozen = named(policy, start.freeze.only, f"{at}.freeze") if start.freeze is not None else set()
    for name, _ in policy.named_parameters():
        if name in frozen and name not in taken:
            raise ConfigurationError("start_freezes_new", key=f"{at}.freeze", field=name)
    for name in known:
        if start.kl is not None and name not in taken and not name.startswith(_OF_VALUES):
            raise ConfigurationError("start_kl_incomplete", key=f"{at}.kl", field=name)
    return taken, {
        "taken": {name: list(tensor.shape) for name, tensor in taken.items()},
        "skipped": [name for name in known if name not in wanted],
        "new": new,
        "unused": sorted(there.keys() - own.keys()),
        "frozen": [name for name in known if name in frozen],
        "frozen_steps": None if start.freeze is None else start.freeze.steps,
    }


def _file_of(path: str, name: str, key: str) -> Path:
    """The file that `path` means: itself, or the weights of a checkpoint of RUN[@newest|best|STEP][/POLICY], by default
    the newest one of the policy called `name`, or of the only one that there is."""
    if Path(path).is_file():
        return Path(path)
    folder, at, rest = path.rpartition("@")
    which, _, policy = rest.partition("/")
    whole = (Path(path) / "config.yaml").is_file()
    if whole or not at:
        inside = not whole and (Path(path).parent / "config.yaml").is_file()
        folder, which, policy = (str(Path(path).parent), "", Path(path).name) if inside else (path, "", "")
    run = Path(folder)
    try:
        check_run_folder(run)
    except ConfigurationError:
        raise ConfigurationError("start_not_found", key=f"{key}.path", value=path, folder=Path.cwd()) from None
    there = saved_policies(run)
    policy = policy or (there[0] if len(there) == 1 else name)
    if there and policy not in there:
        raise ConfigurationError("start_policy_unknown", key=f"{key}.path", file=run, policy=policy, choices=there)
    try:
        step = step_of(run, policy, which or "newest")
    except ConfigurationError as fault:
        raise fault.within(f"{key}.path", key=f"{key}.path") from None
    return run / "checkpoints" / policy / str(step) / "weights.safetensors"


def _read(file: Path, at: str) -> bytes:
    """All of it, opened once."""
    facts = {"key": f"{at}.path", "file": file}
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > LARGEST:
                raise ConfigurationError("start_too_large", **facts, value=size, limit=LARGEST)
            return opened.read(LARGEST)
    except OSError as fault:
        raise ConfigurationError("start_not_safetensors", **facts, reason=fault.strerror) from None
