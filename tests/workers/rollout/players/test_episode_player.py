"""A policy as a function does what the same weights do in an actor's own form, row by row, over episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import DictPopulation, World, flatten, space_of
from protocol.spaces.drawing import random_rows
from tests.faults import raises
from tests.workers.policies.exports import Case, case
from workers.environments.base import AgentTimeStep
from workers.environments.views.agent_view import AgentView
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players import episode_player
from workers.rollout.players.episode_player import EpisodePlayer
from workers.rollout.players.frozen_player import FrozenPlayer

LENGTHS = (3, 4, 2)
"""Of episodes."""


def player(one: Case, monkeypatch: pytest.MonkeyPatch) -> EpisodePlayer:
    """As of a run that has a checkpoint of it."""
    monkeypatch.setattr(episode_player, "saved_policies", lambda _: ["p"])
    monkeypatch.setattr(episode_player, "find_checkpoint", lambda *_: (1, one.manifest, one.policy))
    return EpisodePlayer("run")


@pytest.mark.parametrize(
    "name",
    ["all at once", "a common observation", "lstm", "iqn of frames", "dqn that remembers", "vdn", "images of frames"],
)
def test_it_acts_as_in_an_actor_in_the_values_of_its_world(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, rng = case(name), np.random.default_rng(3)
    place, common = one.interface.place, one.manifest.common
    acts = player(one, monkeypatch)
    reference = FrozenPlayer(ExportedPolicy(one.manifest, one.policy), 1)
    world = one.manifest.interface.place.agent
    view = AgentView(alone(one), place)
    no, zero = np.zeros(1, np.bool_), np.zeros(1, np.float32)
    for length in LENGTHS:
        acts.reset()
        for turn in range(length):
            rows = random_rows(place.observed, 1, rng)
            masks = None if place.masked is None else random_rows(place.masked, 1, rng)
            if masks is not None:
                masks.view(np.bool_)[..., -1] = True
            scene = None if common is None else rng.integers(0, 5, (1, *common.shape)).astype(common.dtype)
            if scene is not None:
                reference.set_shared_observation(scene)
            done = reference(AgentTimeStep(0, rows, zero, np.array([turn == 0]), no, action_mask=masks))
            told = view.value(rows[0], None if masks is None else masks[0], None if scene is None else scene[0])
            wrapped = masks is not None or common is not None
            given = (told["observation"], told.get("action_mask"), told.get("common")) if wrapped else (told,)
            found = flatten(space_of(world.action), acts(*given), "action")
            for column, array in place.parts("action", done).items():
                np.testing.assert_array_equal(found[column], array[0])


def alone(one: Case) -> World:
    """The world that the policy is deployed in."""
    return World(id="w", population=DictPopulation(agents=(one.manifest.agent,), common=one.manifest.common))


def test_what_it_needs_and_is_not_given_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(EnvironmentFault, "policy_input_missing", field="action_mask"):
        player(case("dqn"), monkeypatch)(np.zeros(2, np.float32))
    with raises(EnvironmentFault, "policy_input_missing", field="common"):
        player(case("a common observation"), monkeypatch)(np.zeros((3, 2), np.uint8))


@pytest.mark.parametrize(
    ("saved", "kind"), [([], "run_without_checkpoint"), (["a", "b"], "policy_not_named")], ids=["none", "several"]
)
def test_a_policy_that_cannot_be_told_is_asked_for(
    saved: list[str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_player, "saved_policies", lambda _: saved)
    with raises(ConfigurationError, kind, file=tmp_path):
        EpisodePlayer(tmp_path)
