"""Transitions of agents with masks and with numbers: what the seat wrote is what the learner gets."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import BC, DQN, IQN, SAC, PolicyConfig
from protocol.experience.layout import segment_layout
from protocol.spaces import Agent, Box, Component, Discrete, Observation, World
from tests.workers import scripted
from workers.environments.base import AgentTimeStep
from workers.learning.buffers.nstep_gather import gather
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector

LENGTH, COPIES, TURNS, STEPS = 5, 3, 16, 2
EYES = Observation(components={"a": Component(space=Box(shape=(1,))), "b": Component(space=Discrete(n=3))})
CHOOSER = World(id="w", agents=(Agent(name="a", observation=EYES, action=Discrete(n=4, start=2), action_mask=True),))
PUSHER = World(id="w", agents=(Agent(name="a", observation=EYES, action=Box(shape=(2,), low=-1.0, high=3.0)),))


class Game:
    """Random turns; copy 0 is truncated before every third, copy 1 terminated. One block is
    shipped short."""

    def __init__(self, world: World, algorithm: IQN | DQN | SAC) -> None:
        place = world.places[0]
        config = PolicyConfig(algorithm=algorithm, segment_length=LENGTH)
        performer = ActingPolicy(scripted.Performer(world).interface, config, 3)
        self.interface = performer.interface
        self.config: IQN | DQN | SAC | BC = algorithm
        self.sender = scripted.Sender(segment_layout(world, place, config), COPIES, 9)
        self.seat = AgentCollector("a", performer, self.sender, range(COPIES), np.random.default_rng(7))
        self._place, self._rng = place, np.random.default_rng(5)
        self.masks: list[NDArray[np.bool_]] = []
        self.observations: list[NDArray] = []
        self.actions = []
        for t in range(TURNS):
            self.actions.append(self.seat.act(self._present(t), scripted.never))
            if t == 7:  # its segment is shipped short
                self.seat._flush_block(scripted.never)

    def _present(self, t: int) -> AgentTimeStep:
        ended = np.zeros((2, COPIES), np.bool_)
        ended[:, :2] = np.eye(2)[::-1] * (t > 0 and t % 3 == 0)
        cut = np.flatnonzero(ended[1])
        rows = self._seen(COPIES)
        self.observations.append(rows)
        final = self._seen(len(cut)) if len(cut) else None
        told = AgentTimeStep(0, rows, np.ones(COPIES, np.float32), ended[0], ended[1], None, cut, final)
        if self._place.masked is not None:
            told.action_mask = self._rng.random((COPIES, 4)) < 0.4
            told.action_mask[:, t % 4] = True
            self.masks.append(told.action_mask.copy())
        return told

    def _seen(self, n: int) -> NDArray:
        rows = self._place.observed.zeros(n)
        rows["a"], rows["b"] = self._rng.random((n, 1)), self._rng.integers(0, 3, n)
        return rows


def transitions(game: Game) -> list[tuple[int, int, int, dict[str, NDArray]]]:
    """(copy, turn, the turn behind its segment, fields) of every row that was finished."""
    found: list[tuple[int, int, int, dict[str, NDArray]]] = []
    turn = dict.fromkeys(range(COPIES), 0)
    for records in game.sender.finished:
        for record in records:
            rows = np.arange(int(record["valid"]))
            many = np.repeat(record[None], len(rows))
            ring = game.sender.ring
            batch, _ = gather(ring, game.interface, ring.layout, many, rows, game.config)
            copy = int(record["stream"])
            for row in rows.tolist():
                stop = turn[copy] + int(record["valid"])
                found.append((copy, turn[copy] + row, stop, {name: array[row] for name, array in batch.items()}))
            turn[copy] += len(rows)
    return found


def last_of(copy: int, t: int, stop: int) -> int:
    """The last turn of a return that begins at `t`: an episode of copies 0 and 1 is 3 turns long."""
    end = (t // 3) * 3 + 2 if copy < 2 else t + STEPS
    return min(t + STEPS - 1, stop - 1, end)


@pytest.mark.parametrize("algorithm", [DQN(n_step=STEPS), IQN(n_step=STEPS, frames=3)], ids=["dqn", "iqn"])
def test_the_mask_of_a_target_is_what_was_legal_where_it_looks(algorithm: DQN | IQN) -> None:
    """Also behind a segment's last row, full or short; where the episode was cut it is that of the row before."""
    game = Game(CHOOSER, algorithm)
    every = transitions(game)
    assert len({(copy, t) for copy, t, _, _ in every}) >= COPIES * (TURNS - LENGTH - 1)
    for copy, t, stop, found in every:
        last = last_of(copy, t, stop)
        if found["discount"] == 0:
            assert copy == 1
            continue
        cut = copy == 0 and last % 3 == 2
        np.testing.assert_array_equal(found["next_legal"], game.masks[last if cut else last + 1][copy])
        assert found["action"] == game.actions[t][copy] - 2
        assert game.masks[t][copy][found["action"]]


def test_the_mask_of_what_is_cloned_is_what_was_legal_there() -> None:
    game = Game(CHOOSER, DQN())
    game.config = BC()
    for copy, t, _, found in transitions(game):
        np.testing.assert_array_equal(found["legal"], game.masks[t][copy])


def test_observations_behind_a_short_segment_are_there_in_nested_spaces() -> None:
    game = Game(CHOOSER, DQN(n_step=STEPS))
    short = [case for case in transitions(game) if case[2] % LENGTH]
    assert short
    for copy, t, stop, found in short:
        last = last_of(copy, t, stop)
        if copy == 2:
            assert found["next_observation"][0, 0] == game.observations[last + 1]["a"][copy, 0]


def test_numbers_are_in_the_policys_unit_and_are_what_the_world_got() -> None:
    game = Game(PUSHER, SAC(n_step=STEPS))
    for copy, t, _, found in transitions(game):
        assert found["action"].shape == (0,)
        np.testing.assert_allclose(found["amount"] * 2 + 1, game.actions[t][copy], atol=1e-6)
        assert np.abs(found["amount"]).max() <= 1
        assert "next_legal" not in found
