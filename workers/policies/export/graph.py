"""The graph of a policy, exported by a process of its own: torch's exporter takes seconds and hundreds of megabytes,
which whoever learns has not to spare.

In flow: what a policy sees, does and is made of, as JSON. Out flow: its graph in the run's folder, or why there is
none.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError, Refused, RookeryError
from protocol.spaces import World, parse_world
from workers import freeze_startup_objects
from workers.policies.build import build
from workers.policies.export import graph_store, onnx
from workers.policies.export.from_checkpoint import export_module
from workers.policies.interface import Interface
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.last_words import end_with

log = logging.getLogger(__name__)

_TRIES = 2
"""Of a graph that is wanted: an exporter may have been ended by who needed its memory."""


def graph_of(world: World, agent: int, config: PolicyConfig) -> bytes:
    """That of a policy which plays agent number `agent`; ConfigurationError where there is none."""
    policy = build(Interface.at(world, world.places[agent], config), config, 0)
    seen = world.deployed()
    try:
        return onnx.graph(config, export_module(Interface.at(seen, seen.places[agent], config), config, policy))
    except RookeryError:
        raise
    except Exception as fault:  # of the exporter, about an operation, in many lines
        code = ", ".join(sorted(config.network.entries)) or "the network"
        reason = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        raise ConfigurationError("network_not_recorded", value=code, format="ONNX", reason=reason, at="") from fault


class GraphExports:
    """Of a learner, into the run's `folder`; None: nowhere."""

    def __init__(self, folder: Path | None, world: World) -> None:
        self._folder, self._world = folder, world
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._failed: Counter[str] = Counter()

    def follow(self, wanted: bool, policy: str, agent: int, config: PolicyConfig) -> None:
        """Exports the graph of `policy` once from when it is `wanted`, and once more where that failed. It waits for
        nothing, and raises nothing."""
        process = self._running.get(policy)
        if self._folder is None or (process is not None and process.poll() is None):
            return
        if not wanted:
            self._running.pop(policy, None)
            self._failed.pop(policy, None)
        elif self._failed[policy] < _TRIES and (process is None or process.returncode):
            try:
                if process is not None:
                    del self._running[policy]
                    raise ChildProcessError(f"it ended with {process.returncode}")
                self._begin(self._folder, policy, agent, config)
            except OSError as fault:
                self._fail(self._folder, policy, str(fault))

    def _begin(self, folder: Path, policy: str, agent: int, config: PolicyConfig) -> None:
        told = {"policy": policy, "agent": agent, "folder": str(folder), "parent": os.getpid()}
        made_of = {"config": config.model_dump(mode="json"), "world": self._world.model_dump_json()}
        with tempfile.TemporaryFile() as document:  # a pipe would fill until the process has imported what it needs
            document.write(json.dumps(told | made_of).encode())
            document.seek(0)
            self._running[policy] = subprocess.Popen([sys.executable, "-P", "-m", __name__], stdin=document)

    def _fail(self, folder: Path, policy: str, reason: str) -> None:
        self._failed[policy] += 1
        fault = Refused("graph_export_failed", policy=policy, reason=reason)
        log.warning("event=graph_export_failed kind=%s error=%s", fault.kind, fault)
        if self._failed[policy] == _TRIES:
            try:
                graph_store.write(folder, policy, fault.coded)
            except OSError as full:
                log.warning("event=graph_export_failed kind=%s error=%s", fault.kind, full)

    def close(self) -> None:
        """Ends what is under way."""
        for process in self._running.values():
            process.kill()
            process.wait()


def main() -> None:
    """Exports the graph that it is told of, or says why it cannot."""
    told = json.load(sys.stdin)
    end_with(told["parent"])
    add_cwd_to_path()
    found: bytes | str
    try:
        found = graph_of(parse_world(told["world"]), told["agent"], PolicyConfig.model_validate(told["config"]))
    except RookeryError as fault:
        found = fault.coded
    except Exception as fault:
        traceback.print_exc()
        found = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
    graph_store.write(Path(told["folder"]), told["policy"], found)


if __name__ == "__main__":
    freeze_startup_objects()
    main()
