"""Policies of one kind act in one call: each does what it would do alone, whoever adopts new weights or is away."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import PolicyConfig, parse_run
from protocol.spaces import Agent, Box, Discrete
from protocol.weights.manifest import Version
from workers.policies.interface import Interface
from workers.rollout.acting_policy import ActingPolicy, InferenceRequest
from workers.rollout.stacked_inference import StackedInference, build_stacked_inference

K, N, A = 3, 6, 5
AGENT = Agent(name="a", observation=Box(shape=(4,)), action=Discrete(n=A))
AMOUNTS = Agent(name="a", observation=Box(shape=(4,)), action=Box(shape=(2,)))
PPO = {"name": "ppo", "normalize_observation": True}
IQN = {"name": "iqn"}


def performers(algorithm: dict[str, Any], network: dict[str, Any], agent: Agent = AGENT) -> list[ActingPolicy]:
    """K of one kind, with weights of their own."""
    config = PolicyConfig.model_validate({"algorithm": algorithm, "model_config": {"hidden": (8, 8), **network}})
    found = [ActingPolicy(Interface.of(agent), config, seed) for seed in range(K)]
    for number, performer in enumerate(found):
        adopt(performer, number)
    return found


def adopt(performer: ActingPolicy, seed: int) -> None:
    """New weights: those that it has, a little larger, and moments that it may have learned."""
    noise = np.random.default_rng(seed)
    flat = performer._flat[performer._live]
    storage = flat.bytes_view().copy()
    for entry in flat.entries:
        place = storage[entry.offset : entry.offset + entry.size].view(entry.dtype)
        if entry.name.endswith("variance"):
            place[:] = 0.5 + noise.random(place.shape)
        elif entry.name == "epsilon":
            place[:] = 0.2 * (seed + 1)
        elif entry.dtype == "<f4" and entry.name != "midpoints":
            place += 0.3 * noise.standard_normal(place.shape).astype(np.float32)
    performer.spare[:] = storage
    performer.adopt(lambda *_: Version(1, performer.version.version + 1))


def shares(
    found: list[ActingPolicy], turn: int, frames: int = 0, rows: tuple[int, ...] = (N,) * K, masked: bool = False
) -> list[InferenceRequest]:
    """The same for everybody in every run; the generators are those of this turn."""
    given = []
    for number, (performer, n) in enumerate(zip(found, rows, strict=True)):
        rng = np.random.default_rng((turn, number))
        shape = (n, frames, 4) if frames > 1 else (n, 4)
        legal = rng.random((n, A)) < 0.6
        legal[:, 0] = True
        state = rng.random((n, performer.state), np.float32) if performer.state else None
        seen = rng.standard_normal(shape).astype(np.float32)
        given.append(
            InferenceRequest(
                performer, seen, np.random.default_rng((9, turn, number)), legal if masked else None, state
            )
        )
    return given


def alike(one: dict[str, NDArray], other: dict[str, NDArray], exact: bool) -> None:
    """The same actions; all else to the bit, or nearly."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        if exact or array.dtype == np.int64:
            np.testing.assert_array_equal(array, other[name], name)
        else:
            np.testing.assert_allclose(array, other[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("algorithm", "network", "agent", "exact"),
    [
        (PPO, {}, AGENT, True),
        (PPO, {"activation": "relu"}, AMOUNTS, True),
        (PPO, {"hidden": (8, 8, 8), "share_layers": True}, AGENT, True),
        (PPO, {"core": {"name": "lstm", "size": 6}}, AGENT, False),
        (PPO, {"core": {"name": "gru", "size": 6}}, AGENT, False),
        ({"name": "iqn", "frames": 2, "dueling": True, "noisy": True}, {}, AGENT, False),
        (IQN, {}, AGENT, False),
        ({"name": "dqn", "frames": 2}, {}, AGENT, False),
    ],
    ids=["ppo", "amounts", "shared layers", "lstm", "gru", "noisy iqn", "iqn", "dqn"],
)
def test_policies_do_together_what_each_does_alone(
    algorithm: dict[str, Any], network: dict[str, Any], agent: Agent, exact: bool
) -> None:
    found = performers(algorithm, network, agent)
    joint, frames = StackedInference([found]), algorithm.get("frames", 0)
    for turn in range(4):
        masked = turn == 3 and agent is AGENT
        acted = joint.act(shares(found, turn, frames, masked=masked))
        for share, done in zip(shares(found, turn, frames, masked=masked), acted, strict=True):
            alike(share.act(), done, exact)
        adopt(found[turn % K], 10 + turn)


def test_who_has_other_rows_than_the_rest_or_is_away_or_of_no_kind_acts_alone() -> None:
    found = performers(PPO, {})
    joint = StackedInference([found[:2]])
    for rows in ((N, 2, N), (1, 1, 1)):
        for share, done in zip(shares(found, 0, rows=rows), joint.act(shares(found, 0, rows=rows)), strict=True):
            alike(share.act(), done, True)
    (done,) = joint.act(shares(found, 1)[1:2])
    alike(shares(found, 1)[1].act(), done, True)


def test_recurrent_policies_of_many_rows_act_alone_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = performers(PPO, {"core": {"name": "gru", "size": 6}})
    calls: list[int] = []
    original = ActingPolicy.act

    def counted(self: ActingPolicy, *given: Any, **more: Any) -> dict[str, NDArray]:
        calls.append(1)
        return original(self, *given, **more)

    monkeypatch.setattr(ActingPolicy, "act", counted)
    StackedInference([found], N).act(shares(found, 0))
    assert not calls
    StackedInference([found], N - 1).act(shares(found, 0))
    assert len(calls) == K


@pytest.mark.parametrize(
    ("run", "algorithm", "count", "expected"),
    [
        ({}, PPO, 15, False),
        ({}, PPO, 16, True),
        ({}, IQN, 3, False),
        ({}, IQN, 4, True),
        ({"cohort": "stacked"}, PPO, 2, True),
        ({"cohort": "in_turn"}, IQN, 4, False),
        ({"cohort": "auto", "schedule": "lockstep"}, IQN, 4, False),
    ],
)
def test_who_acts_together_is_said_by_cohort_and_logged(
    run: dict[str, Any], algorithm: dict[str, Any], count: int, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = PolicyConfig.model_validate({"algorithm": algorithm, "model_config": {"hidden": (8,)}})
    alike = {str(i): ActingPolicy(Interface.of(AGENT), config) for i in range(count)}
    other = {"x": performers(PPO, {"hidden": (4,)})[0], "y": performers({"name": "c51"}, {})[0]}
    joint = build_stacked_inference({**alike, **other}, parse_run(run))
    assert (joint is not None) == expected
    said = f"event=acting_stacked policies={','.join(alike)} cohort={run.get('cohort', 'auto')}"
    assert (said in caplog.text) == expected
