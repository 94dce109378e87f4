"""A frozen policy plays as the performer in a seat does: it stacks, remembers and forgets at the same turns (J7)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.experience.layout import segment_layout
from protocol.spaces import World
from tests.workers import scripted
from tests.workers.policies.exports import CASES, Case, case
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.environments.players import random_rows
from workers.policies.export import safetensors
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.policies.tensors.flat_weights import flatten_
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.players.frozen_player import FrozenPlayer

COPIES, TURNS = 3, 40


def frozen(one: Case, folder: Path) -> ExportedPolicy:
    safetensors.save_policy(folder / "p.safetensors", one.manifest, one.policy)
    return ExportedPolicy.load(folder / "p.safetensors")


def seat(one: Case, world: World) -> AgentCollector:
    """The same policy where a learner's run has it."""
    performer = ActingPolicy(one.interface, one.config)
    performer.spare[:] = _published(one)
    performer.swap(scripted.Version(1, 1))
    sender = scripted.Sender(segment_layout(world, world.places[0], one.config), COPIES, 2 * TURNS)
    return AgentCollector("a", performer, sender, COPIES, 0, np.random.default_rng(7))


def _published(one: Case) -> NDArray[np.uint8]:
    assert not safetensors.acting_weights(one.policy).keys() - {e.name for e in flatten_(one.policy).entries}
    return flatten_(one.policy).bytes_view()


def turn(one: Case, t: int, copies: NDArray[np.int64] | None, ended: NDArray[np.bool_]) -> AgentTimeStep:
    rng = np.random.default_rng(t)
    rows = COPIES if copies is None else len(copies)
    place = one.interface.place
    seen = random_rows(place.observed, rows, rng)
    mask = None
    if place.masked is not None:
        mask = place.masked.zeros(rows)
        for _, part in place.masked.parts(mask):
            part[...] = True
    zeros = np.zeros(rows, np.float32)
    return AgentTimeStep(0, seen, zeros, ended, np.zeros(rows, np.bool_), copies, action_mask=mask)


@pytest.mark.parametrize("name", ["lstm", "gru", "iqn of frames", "numbers", "dqn"])
def test_it_does_what_a_seat_does_turn_after_turn(name: str, tmp_path: Path) -> None:
    """With the seat's noise, through ends of episodes, and with agents that are not all present."""
    one = case(name)
    world = CASES[name][0].deployed()
    ours = seat(one, world)
    player = FrozenPlayer(frozen(one, tmp_path), COPIES, np.random.default_rng(7))
    some = np.array([0, 2])
    for t in range(TURNS):
        copies = some if t % 4 == 3 else None
        rows = COPIES if copies is None else 2
        ended = np.zeros(rows, np.bool_)
        ended[0] = t % 5 == 4
        present = turn(one, t, copies, ended)
        np.testing.assert_array_equal(player(present), ours.act(present, scripted.never))
        if t == 6:
            outcome = AgentOutcome(
                0, np.array([1]), np.zeros(1, np.float32), np.ones(1, np.bool_), np.zeros(1, np.bool_)
            )
            player.add_outcome(outcome)
            ours.add_outcome(outcome, scripted.never)


def test_memory_matters_and_ends_with_the_episode(tmp_path: Path) -> None:
    one = case("lstm")
    policy = frozen(one, tmp_path)
    never, always = np.zeros(COPIES, np.bool_), np.ones(COPIES, np.bool_)

    def last(*ended: NDArray[np.bool_]) -> NDArray:
        player = FrozenPlayer(policy, COPIES)
        for t, end in enumerate(ended):
            player(turn(one, 20 + t, None, end))
        return np.asarray(player(turn(one, 90, None, ended[-1])))

    assert not np.array_equal(last(never, never), last(never))
    np.testing.assert_array_equal(last(never, always), last(always))


def test_it_sees_what_all_agents_see(tmp_path: Path) -> None:
    one = case("a common observation")
    player = FrozenPlayer(frozen(one, tmp_path), COPIES)
    present = turn(one, 1, None, np.zeros(COPIES, np.bool_))
    done = []
    for t in range(8):
        player.set_shared_observation(np.random.default_rng(t).integers(-(2**31), 2**31 - 1, (COPIES, 2), np.int32))
        done.append(player(present).copy())
    assert len({row.tobytes() for row in done}) > 1
