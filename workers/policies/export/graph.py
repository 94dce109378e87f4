"""The graph of a policy, exported by a process of its own: torch's exporter takes seconds and hundreds of megabytes,
which whoever learns has not to spare.

In flow: what a policy sees, does and is made of, as JSON. Out flow: its graph in the run's folder, or why there is
none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError, RookeryError
from protocol.spaces import World, parse_world
from workers import freeze_startup_objects
from workers.policies.build import build
from workers.policies.export import graph_store, onnx
from workers.policies.export.from_checkpoint import export_module
from workers.policies.interface import Interface
from workers.runtime.entry_points import add_cwd_to_path


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

    def begin(self, policy: str, agent: int, config: PolicyConfig) -> None:
        """Exports the graph of `policy`, unless that is under way."""
        before = self._running.get(policy)
        if self._folder is None or (before is not None and before.poll() is None):
            return
        told = {"policy": policy, "agent": agent, "folder": str(self._folder), "config": config.model_dump(mode="json")}
        self._running[policy] = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE)
        with self._running[policy].stdin as pipe:  # type: ignore[union-attr]
            pipe.write(json.dumps({**told, "world": self._world.model_dump_json()}).encode())

    def close(self) -> None:
        """Ends what is under way."""
        for process in self._running.values():
            process.kill()
            process.wait()


def main() -> None:
    """Exports the graph that it is told of, or says why it cannot."""
    add_cwd_to_path()
    told = json.load(sys.stdin)
    found: bytes | str
    try:
        found = graph_of(parse_world(told["world"]), told["agent"], PolicyConfig.model_validate(told["config"]))
    except RookeryError as fault:
        found = fault.coded
    graph_store.write(Path(told["folder"]), told["policy"], found)


if __name__ == "__main__":
    freeze_startup_objects()
    main()
