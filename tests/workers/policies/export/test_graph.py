"""A policy's graph holds its operations and no weights, and a run's folder passes it on, or why there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from protocol.config.run import PolicyConfig
from protocol.messages.core import GRAPH_BYTES, Graph, Refusal
from tests.tools import ROOT, skip_or_fail
from tests.waiting import until
from tests.workers.policies.exports import CASES, PLAIN, alone, case, live
from workers.policies.build import published_weights
from workers.policies.export import graph_store
from workers.policies.export.graph import GraphExports, graph_of
from workers.policies.export.graph_store import GraphStore

NAMES = [
    *("numbers", "shared layers", "lstm", "central critic", "iqn", "dqn that remembers", "qmix", "c51"),
    *(
        "sac of choices",
        "ppo of frames",
        "all senses remembered",
        "attention",
        "whole numbers",
        "without bounds",
        "sac",
    ),
]


class Rounded(torch.nn.Module):
    """An encoder whose forward leaves torch."""

    def __init__(self, observation: Any) -> None:
        super().__init__()
        self.layer, self.features = torch.nn.Linear(6, 4), 4

    def forward(self, observation: Any) -> Any:
        """[N, 4]"""
        seen = observation.flatten(1).float()
        return self.layer(torch.from_numpy(np.round(seen.detach().numpy())))


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")  # it would keep a data base open
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            skip_or_fail(f"{package} is not installed")


@pytest.mark.slow
@pytest.mark.usefixtures("exporter")
@pytest.mark.parametrize("name", NAMES)
def test_with_published_weights_as_inputs_a_graph_does_what_the_live_policy_does(name: str) -> None:
    import onnx
    import onnxruntime

    one = case(name)
    data = graph_of(CASES[name][0], 0, one.manifest.config)
    model, published = onnx.load_from_string(data), published_weights(one.policy)
    flat = published.storage.numpy()
    entries = {
        f"weights.{entry.name}": flat[entry.offset : entry.offset + entry.size].view(entry.dtype).reshape(entry.shape)
        for entry in published.entries
    }
    assert sum(len(one.raw_data) for one in model.graph.initializer) < 1_000
    assert str(ROOT).encode() not in data, "nobody need know where it was made"
    session = onnxruntime.InferenceSession(data)
    given = one.columns(9, 9)
    names = {node.name for node in session.get_inputs()}
    assert names == given.keys() | entries.keys() & names
    outputs = [node.name for node in session.get_outputs()]
    found = session.run(outputs, {name: column for name, column in {**given, **entries}.items() if name in names})
    for key, column in live(one, given).items():
        np.testing.assert_allclose(found[outputs.index(key)], column, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.usefixtures("exporter")
@pytest.mark.slow
def test_why_a_policy_cannot_be_exported_is_kept_for_who_asks(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, lambda: ["p"])
    config = PolicyConfig.model_validate({"network": {"encoder": {"entry": f"{__name__}:Rounded"}}})
    told = {"policy": "p", "agent": 0, "folder": str(tmp_path), "config": config.model_dump(mode="json")}
    told["parent"] = os.getpid()
    exports = [sys.executable, "-m", "workers.policies.export.graph"]
    given = json.dumps({**told, "world": alone(PLAIN).model_dump_json()})
    subprocess.run(exports, cwd=ROOT, input=given, text=True, check=True, timeout=300)
    answer = store.answer("p")[0]
    assert isinstance(answer, Refusal)
    assert (answer.kind, answer.retry, store.wanted) == ("graph_not_exportable", False, [])
    assert "network_not_recorded" in answer.reason


LEARNER = """
import sys, time
from pathlib import Path
from protocol.config.run import PolicyConfig
from tests.workers.policies.export.test_graph import Endless, alone, PLAIN
from workers.policies.export.graph import GraphExports
exports = GraphExports(Path(sys.argv[1]), alone(PLAIN))
network = {"encoder": {"entry": f"{Endless.__module__}:Endless", "folder": sys.argv[1]}}
exports.follow(True, "p", 0, PolicyConfig.model_validate({"network": network}))
time.sleep(600)
"""


class Endless(torch.nn.Module):
    """An encoder that takes for ever to make, and says who makes it in `folder`."""

    def __init__(self, observation: Any, folder: str) -> None:
        super().__init__()
        (Path(folder) / "maker").write_text(str(os.getpid()))
        time.sleep(600)


@pytest.mark.slow
def test_an_exporter_ends_with_its_learner(tmp_path: Path) -> None:
    learner = subprocess.Popen([sys.executable, "-c", LEARNER, str(tmp_path)], cwd=ROOT)
    maker = tmp_path / "maker"
    until(lambda: maker.exists() and maker.read_text())
    learner.kill()
    learner.wait()
    until(lambda: not psutil.pid_exists(int(maker.read_text())))


def test_a_graph_is_passed_on_once_it_is_there(tmp_path: Path) -> None:
    graph_store.write(tmp_path, "p", b"of an earlier life")
    store = GraphStore(tmp_path, lambda: ["p", "q"])
    kinds = []
    for name in ("p", "other", "q"):
        answer = store.answer(name)[0]
        assert isinstance(answer, Refusal)
        kinds.append((answer.kind, answer.retry))
    assert kinds == [("graph_not_exported", True), ("graph_of_no_learner", False), ("graph_not_exported", True)]
    assert store.wanted == ["p", "q"]
    graph_store.write(tmp_path, "p", b"operations")
    told, *frames = store.answer("p")
    assert isinstance(told, Graph)
    assert (told.policy, frames, store.wanted) == ("p", [b"operations"], ["q"])


def test_what_is_too_large_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, lambda: ["p", "q", "r"])
    graph_store.write(tmp_path, "p", bytes(GRAPH_BYTES + 1))
    (tmp_path / "graphs" / "q.onnx").mkdir()
    graph_store.write(tmp_path, "r", bytes(GRAPH_BYTES))
    answers = [store.answer(name)[0] for name in ("p", "q", "r")]
    kinds = [answer.kind if isinstance(answer, Refusal) else answer.type for answer in answers]
    assert kinds == ["graph_too_large", "graph_unreadable", "graph"]


def test_an_exporter_that_fails_is_tried_twice_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/begun\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    store, exports = GraphStore(tmp_path, lambda: ["p"]), GraphExports(tmp_path, alone(PLAIN))
    store.answer("p")
    turns = []

    def followed() -> bool:
        turns.append("p" in store.wanted)
        exports.follow(turns[-1], "p", 0, PolicyConfig())
        return not turns[-1]

    until(followed)
    assert (tmp_path / "begun").read_text().split() == ["-P", "-P"]
    answer = store.answer("p")[0]
    assert isinstance(answer, Refusal)
    assert (answer.kind, "graph_export_failed" in answer.reason) == ("graph_not_exportable", True)


def test_what_is_handed_to_an_exporter_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # it ends and reads nothing
    config = PolicyConfig.model_validate({"network": {"encoder": {"entry": "a:b", "settings": {"x": "y" * 200_000}}}})
    exports = GraphExports(tmp_path, alone(PLAIN))
    exports.follow(True, "p", 0, config)
    exports.close()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    exports.follow(True, "q", 0, config)


def test_what_could_not_be_read_is_looked_at_again(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, lambda: ["p"])
    (tmp_path / "graphs" / "p.txt").mkdir(parents=True)
    answer = store.answer("p")[0]
    assert isinstance(answer, Refusal)
    assert (answer.kind, answer.retry, "p.txt" in answer.reason) == ("graph_unreadable", True, True)
    graph_store.write(tmp_path, "p", b"operations")
    assert store.wanted == []
    assert isinstance(store.answer("p")[0], Graph)
