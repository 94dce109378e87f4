"""Actors that compute a policy by its graph, which its learner exports when one asks: a CNN with a GRU."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
import zmq
from numpy.typing import NDArray

from protocol.config.yaml_file import read_run
from protocol.messages.codec import decode, encode
from protocol.messages.core import FetchGraph, Graph, Refusal
from tests.clients import actor
from tests.clients.languages import LANGUAGES, started
from tests.clients.languages import actor as foreign_actor
from tests.tools import skip_or_fail
from tests.waiting import PATIENCE, until
from workers.environments.registry import describe
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build, published_weights
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.recurrent_context import RecurrentContext

Columns = dict[str, NDArray[Any]]
RUN: dict[str, Any] = {
    "environment": {
        "id": "synthetic",
        "copies": 8,
        "settings": {"agents": 1, "image": [10, 10, 1], "actions": 4, "episode_steps": 12},
    },
    "policy": {
        "algorithm": {"name": "ppo"},
        "network": {"encoder": {"name": "cnn"}, "core": {"name": "gru", "size": 16}, "hidden": [16]},
        "segment_length": 8,
    },
    "steps": 1_600,
    "baseline_episodes": 0,
    "actor_timeout": 120,
    "learner_timeout": 120,
}
POLICY = "agent_0"
SECONDS = 300.0
"""For a whole run; it takes about twenty on two idle cores."""


@contextmanager
def run(folder: Path, run_dir: Path, base: int, *act: str) -> Iterator[str]:
    """The coordinator's address of a run that goes on with a learner and, as its actor, what `act` runs with what
    probes it and that address. Behind it coordinator and learner are told to end, where there is none, and all do."""
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    address = f"tcp://127.0.0.1:{base}"
    places = ("--open", "--run-dir", str(run_dir), "--bind", f"127.0.0.1:{base}")
    with ExitStack() as stack:
        learner = ("rookery", "learner", "--coordinator", address, "--bind", f"127.0.0.1:{base + 1}")
        learns = started(stack, folder / "learner.log", *learner)
        leads = started(stack, folder / "coordinator.log", "rookery", "coordinator", str(folder / "run.yaml"), *places)
        acts = [started(stack, folder / "actor.log", *act, str(folder / "probe.json"), address)] if act else []
        yield address
        if not act:
            leads.terminate()
        with suppress(AssertionError):  # then they tell more
            until(
                lambda: any(one.poll() for one in acts) or None not in [one.poll() for one in (*acts, leads, learns)],
                SECONDS,
            )
        told = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in folder.glob("*.log"))
        assert [one.poll() for one in acts] == [0] * len(acts), told
        assert learns.poll() == 0, told


def learners(folder: Path, entries: Columns, columns: Columns) -> Columns:
    """What the learner's network, with the published weights `entries`, says of the T rows of a segment, whose
    `columns` are as its layout has them."""
    config = read_run(folder / "run.yaml")
    plan = plan_policies(config, describe(config.environment))[POLICY]
    policy = build(plan.interface, plan.config, 0)
    assert isinstance(policy, ActorCritic)
    assert [*entries] == [entry.name for entry in published_weights(policy).entries]
    policy.load_state_dict({name: torch.from_numpy(np.copy(entry)) for name, entry in entries.items()})
    rows, used = len(columns["reward"]) - 1, columns["final_row"] >= 0
    ended = torch.from_numpy(columns["terminated"] | columns["truncated"])[:rows, None]
    places = torch.from_numpy(columns["final_row"][used]).long()
    recall = RecurrentContext(torch.from_numpy(columns["state"])[None], ended, places)
    seen = torch.from_numpy(np.concatenate([columns["observation"], columns["final_observation"][used]]))
    with torch.no_grad():
        outputs, values = policy(policy.inputs(seen), recall)
        logs = outputs.T[:rows].log_softmax(1).gather(1, torch.from_numpy(columns["action"][:rows, None]))
        return {"log_probability": logs[:, 0].numpy(), "value": policy.denormalize(values)[:rows].numpy()}


def asked(link: zmq.Socket[bytes], who: dict[str, Any], policy: str = POLICY) -> tuple[Graph | Refusal, list[bytes]]:
    """What the coordinator answers to a member, or to who calls itself one."""
    link.send(encode(FetchGraph(name=who["name"], token=who["token"], incarnation=who["incarnation"], policy=policy)))
    assert link.poll(int(1000 * PATIENCE)), "no answer"
    message, frames = decode(link.recv_multipart())
    assert isinstance(message, Graph | Refusal)
    return message, [bytes(frame) for frame in frames]


@pytest.mark.slow  # the actor in JavaScript asks, gets and acts as well
@pytest.mark.usefixtures("forked_rookery")
def test_a_members_first_request_has_the_learner_export_a_graph_that_says_what_it_does(
    tmp_path: Path, run_dir: Path, free_port_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")  # it would keep a data base open
    onnx, runtime = _package("onnx"), _package("onnxruntime")
    _package("onnxscript")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with run(tmp_path, run_dir, free_port_block) as address:
        member, link = actor.Actor(context, address), actor.connect(context, zmq.DEALER, address)

        def holds_weights() -> bool:
            member.serve(0.05)
            return bool(member.welcome and member.learner.version)

        def holds_a_graph() -> bool:
            member.serve(0.2)
            return isinstance(asked(link, who)[0], Graph)

        until(holds_weights, PATIENCE)
        who = {"token": member.token, **{key: member.welcome[key] for key in ("name", "incarnation")}}
        stranger, _ = asked(link, {**who, "token": "x"})
        other, _ = asked(link, who, "other")
        assert not (run_dir / "graphs").exists(), "no member has asked for what there is"
        first, _ = asked(link, who)
        until(holds_a_graph, PATIENCE)
        told, (graph,) = asked(link, who)
        entries = member.learner.entries
        member.leave("")
    context.destroy(linger=0)
    refusals = [(one.kind, one.retry) for one in (stranger, other, first) if isinstance(one, Refusal)]
    assert refusals == [("asker_not_in_run", True), ("graph_of_no_learner", False), ("graph_not_exported", True)]
    assert isinstance(told, Graph)
    assert (told.policy, told.hash) == (POLICY, hashlib.sha256(graph).hexdigest())
    model = onnx.load_from_string(graph)
    assert [one.version for one in model.opset_import if not one.domain] == [told.opset]

    session, rng = runtime.InferenceSession(graph), np.random.default_rng(0)
    names = {one.name for one in session.get_inputs()}
    weights = {name: entries[name.removeprefix("weights.")] for name in names if name.startswith("weights.")}
    columns: Columns = {
        "observation": rng.integers(0, 256, (6, 10, 10, 1), np.uint8),
        "final_observation": rng.integers(0, 256, (1, 10, 10, 1), np.uint8),
        "final_row": np.array([2]),
        "reward": np.zeros(6),
        "terminated": np.zeros(6, np.bool_),
        "truncated": np.arange(6) == 2,
        "state": rng.normal(size=16).astype(np.float32),
        "action": np.zeros(6, np.int64),
    }
    found, state = [], columns["state"][None]
    for t in range(5):
        given = {"observation": columns["observation"][t : t + 1], "state": state}
        said = dict(zip([one.name for one in session.get_outputs()], session.run(None, weights | given), strict=True))
        found.append([said["log_probabilities"][0, 0], said["value"][0]])
        state = said["next_state"] * np.float32(not columns["truncated"][t])
    expected = learners(tmp_path, entries, columns)
    np.testing.assert_allclose(np.array(found).T, [expected["log_probability"], expected["value"]], rtol=0, atol=1e-4)


@pytest.mark.usefixtures("forked_rookery")
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("language", LANGUAGES)
def test_an_actor_in_another_language_acts_by_the_graph_and_the_books_are_exact(
    language: str, tmp_path: Path, run_dir: Path, free_port_block: int
) -> None:
    for package in ("onnx", "onnxscript"):
        _package(package)
    with run(tmp_path, run_dir, free_port_block, *foreign_actor(language, tmp_path)):
        pass
    acted: dict[str, Any] = json.loads((tmp_path / "actor.log").read_text().splitlines()[-1])
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    segments: dict[str, Any] = summary["segments"]
    assert acted["error"] == ""
    assert summary["complete"]
    assert summary["agent_steps"] == acted["steps"] == RUN["steps"]
    assert segments["produced"] == segments["received"] == acted["produced"] == acted["settled"]
    assert segments["trained"] + segments["held"] == segments["produced"]
    for name in ("rejected", "duplicates", "in_flight", "lost_in_learner", "torn", "unexplained", "uncounted"):
        assert segments[name] == 0, name
    assert set(segments["dropped"].values()) == set(summary["refused"].values()) == {0}

    probe: dict[str, Any] = json.loads((tmp_path / "probe.json").read_text())
    config = read_run(tmp_path / "run.yaml")
    layout = plan_policies(config, describe(config.environment))[POLICY].layout
    frames = zip(layout.fields, map(bytes.fromhex, probe["frames"]), strict=True)
    columns = {
        one.name: np.frombuffer(frame, one.dtype).reshape(layout.shape(one, 1))[0].copy() for one, frame in frames
    }
    assert columns["terminated"].any(), "nothing was forgotten on the way"
    entries = actor.read_weights({"entries": json.dumps(probe["entries"])}, bytes.fromhex(probe["flat"]))
    for name, column in learners(tmp_path, entries, columns).items():
        np.testing.assert_allclose(columns[name][: len(column)], column, rtol=1e-4, atol=1e-4, err_msg=name)


def _package(name: str) -> ModuleType:
    if importlib.util.find_spec(name) is None:
        skip_or_fail(f"{name} is not installed")
    return importlib.import_module(name)
