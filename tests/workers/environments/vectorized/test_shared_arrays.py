"""Shared memory for worlds drawn at random: whatever the spaces, what one side writes the other reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.spaces import Agent, ArrayPopulation, Box, Discrete, Place, RowFormat, World
from protocol.spaces.model import ELEMENTS
from tests.protocol.spaces.spaces_strategies import SLOW, spaces
from tests.workers.environments.test_any_space import usable
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.environments.vectorized.actor_side import TurnReader
from workers.environments.vectorized.process_side import TurnWriter
from workers.environments.vectorized.shared_arrays import Partition, SharedTurns

SPACES = spaces().filter(usable)
DIVISION = Partition(copies=8, processes=2, groups=2)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """An agent, or a template of some, with any spaces and, where there is something to choose, with masks."""
    observation, action = draw(SPACES), draw(SPACES)
    agent = Agent(name="a", observation=observation, action=action)
    choices = [getattr(leaf.space, "choices", 0) for leaf in World(id="w", agents=(agent,)).places[0].acted.leaves]
    if 0 < max(choices) <= ELEMENTS and draw(st.booleans()):
        agent = agent.model_copy(update={"action_mask": True})
    capacity = draw(st.integers(0, 3))
    if not capacity:
        return World(id="w", agents=(agent,))
    return World(id="w", population=ArrayPopulation(template=agent, capacity=capacity))


def noise(record: RowFormat, rows: int, chance: np.random.Generator) -> NDArray[Any]:
    """Rows that differ in all of their bytes; of bits, in all of their values."""
    made = record.zeros(rows)
    for _, part in record.parts(made):
        if part.dtype.kind == "b":
            part[...] = chance.random(part.shape) < 0.5
        else:
            part[...] = chance.integers(0, 100, size=part.shape).astype(part.dtype)
    return made


def written(place: Place, chance: np.random.Generator) -> Turn:
    """A share's turn: somebody, or everybody, is present, and others are told of."""
    rows = DIVISION.share * place.many
    copies = np.flatnonzero(chance.random(rows) < chance.choice([0.5, 1.0]))
    away = np.setdiff1d(np.arange(rows), copies)
    n = len(copies)
    truncated = chance.random(n) < 0.5
    mask = None if place.masked is None else noise(place.masked, n, chance)
    index = np.flatnonzero(truncated)
    present = AgentTimeStep(
        0,
        noise(place.observed, n, chance),
        chance.random(n, np.float32),
        ~truncated,
        truncated,
        None if n == rows else copies,
        index,
        noise(place.observed, len(index), chance) if len(index) else None,
        action_mask=mask,
    )
    ends = np.ones(len(away), np.bool_)
    last = noise(place.observed, len(away), chance)
    outcome = AgentOutcome(0, away, chance.random(len(away), np.float32), ~ends, ends, np.arange(len(away)), last)
    return Turn((present,) if n else (), 1, (outcome,) if len(away) else ())


def rows_of(told: AgentTimeStep | AgentOutcome, size: int, first: int) -> dict[int, tuple[Any, ...]]:
    """row -> all that is told of it."""
    copies = range(size) if told.copies is None else told.copies.tolist()
    said = {}
    for i, row in enumerate(copies):
        final = None
        if told.truncated[i]:
            assert told.final_observation is not None
            final = told.final_observation[told.final_index.tolist().index(i)].tobytes()
        seen = mask = None
        if isinstance(told, AgentTimeStep):
            seen = told.observation[i].tobytes()
            mask = None if told.action_mask is None else told.action_mask[i].tobytes()
        said[first + row] = (seen, mask, float(told.reward[i]), bool(told.terminated[i]), final)
    return said


@settings(SLOW, max_examples=40)
@given(world=worlds(), seed=st.integers(0, 2**20))
def test_rows_of_any_space_are_read_as_they_were_written_and_actions_reach_who_they_are_for_K3(
    world: World, seed: int
) -> None:
    """K3 I1: nested spaces, masks and templates, in the rows of two processes and two groups."""
    place, chance = world.places[0], np.random.default_rng(seed)
    memory = memoryview(bytearray(SharedTurns.size(world, DIVISION)))
    ours, theirs = (SharedTurns(world, DIVISION, memory) for _ in range(2))
    rows = DIVISION.share * place.many
    for _ in range(3):
        for number in range(DIVISION.groups):
            group = TurnReader(ours, number)
            shares = [TurnWriter(theirs, process, number) for process in range(DIVISION.processes)]
            turns = [written(place, chance) for _ in shares]
            for share, turn in zip(shares, turns, strict=True):
                share.write(turn)
            told = group.read()
            assert (told.env_steps, told.group) == (2, number)
            both: tuple[
                tuple[tuple[AgentTimeStep | AgentOutcome, ...], list[tuple[AgentTimeStep | AgentOutcome, ...]]], ...
            ] = (
                (told.present, [turn.present for turn in turns]),
                (told.outcomes, [turn.outcomes for turn in turns]),
            )
            for found, expected in both:
                said: dict[int, tuple[Any, ...]] = {}
                for process, parts in enumerate(expected):
                    for part in parts:
                        said |= rows_of(part, rows, process * rows)
                assert [rows_of(one, 2 * rows, 0) for one in found] == ([said] if said else [])
            for one in told.present:
                assert one.observation.dtype == place.observed.dtype
                everybody = np.arange(2 * rows) if one.copies is None else one.copies
                actions = noise(place.acted, len(everybody), chance)
                group.write_actions([actions])
                meant = dict(zip(everybody.tolist(), (action.tobytes() for action in actions), strict=True))
                for process, (share, turn) in enumerate(zip(shares, turns, strict=True)):
                    for present, taken in zip(turn.present, share.actions(), strict=True):
                        copies = range(rows) if present.copies is None else present.copies.tolist()
                        assert [action.tobytes() for action in taken] == [meant[process * rows + k] for k in copies]


def test_a_turn_of_everybody_is_a_view_of_the_shared_memory_and_nothing_is_copied() -> None:
    world = World(id="w", agents=(Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4)),))
    memory = memoryview(bytearray(SharedTurns.size(world, DIVISION)))
    shared, none = SharedTurns(world, DIVISION, memory), np.zeros(DIVISION.share, np.bool_)
    everybody = AgentTimeStep(
        0, np.ones((DIVISION.share, 3), np.float32), np.ones(DIVISION.share, np.float32), none, none
    )
    for process in range(DIVISION.processes):
        TurnWriter(shared, process, 0).write(Turn((everybody,)))
    reader = TurnReader(shared, 0)
    (told,) = reader.read().present
    for column in (told.observation, told.reward, told.terminated, told.truncated):
        assert np.shares_memory(column, np.frombuffer(memory, np.uint8))
    assert reader.read().present[0] is told
