"""Graphs in the run's folder: what a learner exports there, the coordinator passes on. Without torch.

In flow: a policy whose graph somebody asks for. Out flow: its bytes, or why there are none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from protocol.control.server import refusal
from protocol.errors import Refused
from protocol.messages.core import GRAPH_BYTES, OPSET, Graph, Refusal

_FOLDER = "graphs"
_REASON = 2_000
"""Most characters of a learner's reason that are passed on."""


def write(folder: Path, policy: str, data: bytes | str) -> None:
    """Keeps the graph of `policy` in the run's `folder`, or why it cannot be exported."""
    path = folder / _FOLDER / f"{policy}.{'txt' if isinstance(data, str) else 'onnx'}"
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    path.parent.mkdir(exist_ok=True)
    aside.write_bytes(data.encode() if isinstance(data, str) else data)
    os.replace(aside, path)


class GraphStore:
    """Of the `policies` that learn now. What earlier processes exported is forgotten: the code of a network may be
    another since."""

    def __init__(self, folder: Path, policies: Callable[[], Collection[str]]) -> None:
        self._folder, self._policies = folder / _FOLDER, policies
        self._answers: dict[str, tuple[Refusal] | tuple[Graph, bytes]] = {}
        self._asked: set[str] = set()
        shutil.rmtree(self._folder, ignore_errors=True)

    def answer(self, policy: str) -> tuple[Refusal] | tuple[Graph, bytes]:
        """The graph of `policy`, or a refusal; from the first request on its learner is to export it."""
        if policy not in (policies := self._policies()):
            return (refusal(Refused("graph_of_no_learner", policy=policy, choices=sorted(policies))),)
        self._asked.add(policy)
        not_yet = (refusal(Refused("graph_not_exported", policy=policy), retry=True),)
        return self._look(policy) or not_yet

    @property
    def wanted(self) -> list[str]:
        """Asked for, and not there, as is looked up."""
        self._asked = {policy for policy in self._asked if self._look(policy) is None}
        return sorted(self._asked)

    def _look(self, policy: str) -> tuple[Refusal] | tuple[Graph, bytes] | None:
        try:
            if policy not in self._answers and (found := self._read(policy)) is not None:
                self._answers[policy] = found
        except OSError as fault:  # which may be over when it is asked for again
            file = fault.filename or self._folder
            return (refusal(Refused("graph_unreadable", file=file, reason=fault.strerror), retry=True),)
        return self._answers.get(policy)

    def _read(self, policy: str) -> tuple[Refusal] | tuple[Graph, bytes] | None:
        graph, why = (self._folder / f"{policy}.{ending}" for ending in ("onnx", "txt"))
        if graph.exists():
            with graph.open("rb") as file:
                data = file.read(GRAPH_BYTES + 1)
            if len(data) > GRAPH_BYTES:
                return (refusal(Refused("graph_too_large", policy=policy, limit=GRAPH_BYTES)),)
            return Graph(policy=policy, opset=OPSET, hash=hashlib.sha256(data).hexdigest()), data
        if why.exists():
            reason = why.read_text(errors="replace")[:_REASON]
            return (refusal(Refused("graph_not_exportable", policy=policy, reason=reason)),)
        return None
