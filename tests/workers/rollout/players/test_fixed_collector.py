"""The seat of an agent that does not learn takes turns as any other: it counts returns, and writes nothing (J1, J7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig, parse_run
from protocol.spaces import Place, World
from protocol.spaces.drawing import random_rows
from tests.workers import scripted
from tests.workers.policies.exports import CASES, case
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.planning.fixed_policy_plan import plan_fixed
from workers.planning.policy_plan import plan_policies
from workers.policies.export import safetensors
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.policies.tensors.flat_weights import flatten_
from workers.rollout.acting_policy import ActingPolicy
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import ActorAssignment, Collectors, build_collectors, build_fixed_collectors
from workers.rollout.inference import act_turn
from workers.rollout.players.fixed_collector import FixedCollector
from workers.rollout.players.frozen_player import FrozenPlayer
from workers.rollout.report import ActorReport, Counters

COPIES = 4
HAND = ActorAssignment(range(1), ("actor-0", 1))


class Player:
    """Acts 1 always, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, present: AgentTimeStep) -> NDArray:
        return np.ones(len(present.observation), np.int64)

    def add_outcome(self, outcome: AgentOutcome) -> None:
        self.told.append(outcome)

    def set_shared_observation(self, common: NDArray) -> None:
        self.told.append(common)


def everything(place: Place, rows: int) -> NDArray | None:
    """A mask in which all is legal, if there are masks."""
    if place.masked is None:
        return None
    mask = place.masked.zeros(rows)
    for _, part in place.masked.parts(mask):
        part[...] = True
    return mask


def outcome(copy: int, reward: float, end: bool) -> AgentOutcome:
    return AgentOutcome(0, np.array([copy]), np.array([reward], np.float32), np.array([end]), np.zeros(1, np.bool_))


def test_returns_of_its_episodes_are_counted_as_at_any_seat_J1() -> None:
    """Rewards and ends come with its turns, and between them."""
    player = Player()
    seat = FixedCollector("one", player, COPIES)
    for t in range(3):  # rewards: 10 * copy + t - 1
        assert (
            seat.act(scripted.present(t, COPIES, terminated=[1] if t == 2 else []), scripted.never).tolist()
            == [1] * COPIES
        )
    assert seat.episodes.take() == (1, 10 + 11, 2)
    seat.add_outcome(outcome(2, 0.5, end=False), scripted.never)
    seat.add_outcome(outcome(2, 1.0, end=True), scripted.never)
    assert seat.episodes.take() == (1, 20 + 21 + 1.5, 3)
    assert seat.episodes.take() == (0, 0.0, 0)
    assert len(player.told) == 2
    assert seat.steps == 3 * COPIES


def test_who_learns_and_who_does_not_act_in_one_turn() -> None:
    """Each at its own place, and what all see is shown before."""
    config = scripted.config(scripted.PPO(), 8)
    sender = scripted.Sender(scripted.layout_of(config), COPIES, 4)
    player, table = Player(), Collectors()
    table.add("learns", {(0, 0): scripted.seat(sender, scripted.Performer(), COPIES)})
    table.add(
        "fixed", {(1, 0): FixedCollector("two", player, COPIES), (2, 0): FixedCollector("three", Player(), COPIES)}
    )
    entries = [scripted.present(0, COPIES) for _ in range(3)]
    for agent, entry in zip((1, 0, 2), entries, strict=True):
        entry.agent = agent
    common = np.arange(COPIES)
    acted = act_turn(table.seats, Turn(tuple(entries), common=common), scripted.never)
    assert [one.tolist() for one in acted] == [[1] * COPIES, [0] * COPIES, [1] * COPIES]
    assert player.told == [common]
    assert (table.fixed_steps, len(table.writing), table.policy_of) == (
        2 * COPIES,
        1,
        {0: "learns", 1: "fixed", 2: "fixed"},
    )
    report = ActorReport(
        Counters(None, *ActorReport.names(["learns"], fixed=["fixed"])), 100, {}, {}, table.of, table.idle
    )
    report.count(4, 12)
    assert report.snapshot().counters["fixed_steps"] == 2 * COPIES


@pytest.mark.parametrize("name", ["lstm", "gru", "iqn of frames", "numbers", "dqn"])
def test_a_frozen_policy_acts_remembers_and_forgets_as_the_one_that_learned_J7(name: str, tmp_path: Path) -> None:
    """Turn after turn with one and the same noise, through ends with its turns and between them; some are absent."""
    one, world = case(name), CASES[name][0].deployed()
    path = tmp_path / "p.safetensors"
    safetensors.save_policy(path, one.manifest, one.policy)
    kept = path.read_bytes()
    fixed, learning = chairs(one, world, path)
    rng, told = np.random.default_rng(3), False
    for t in range(40):
        copies = np.array([0, 2]) if t % 4 == 3 else None
        rows = COPIES if copies is None else 2
        ended, reward = rng.random(rows) < (0.3 if t else 0), np.full(rows, t > 0, np.float32)
        if told and copies is None:  # of its last action everything is told already
            ended[1], reward[1], told = False, 0, False
        seen = random_rows(one.interface.place.observed, rows, rng)
        legal = everything(one.interface.place, rows)
        nothing = np.zeros(rows, np.bool_)
        turn = Turn((AgentTimeStep(0, seen, reward, ended, nothing, copies, action_mask=legal),))
        ours, theirs = (act_turn({(0, 0): chair}, turn, scripted.never)[0] for chair in (fixed, learning))
        np.testing.assert_array_equal(ours, theirs)
        if t % 7 == 6 and copies is None:
            told = True
            for chair in (fixed, learning):
                chair.add_outcome(outcome(1, 2.0, end=True), scripted.never)
    assert fixed.episodes.take() == learning.episodes.take()
    assert path.read_bytes() == kept


def chairs(one: Any, world: World, path: Path) -> tuple[FixedCollector, AgentCollector]:
    """The policy in the file, and the same one as a learner's run has it, with the same noise."""
    agent = world.agents[0].name
    where = {"environment": {"copies": COPIES}}
    frozen = parse_run({**where, "policies": {agent: {"algorithm": {"name": "frozen", "path": str(path)}}}})
    plan = plan_fixed(frozen, world)[agent]
    (fixed,) = build_fixed_collectors(plan, world, EnvironmentConfig(), 5, HAND).values()
    learns = parse_run({**where, "policy": json.loads(one.config.model_dump_json())})
    performer = ActingPolicy(one.interface, one.config)
    performer.spare[:] = flatten_(one.policy).bytes_view()
    performer.adopt(lambda *_: scripted.Version(1, 1))
    whole = plan_policies(learns, world)[agent]
    sender = scripted.Sender(whole.layout, COPIES, 200)
    (learning,) = build_collectors(whole, world, performer, sender, 5, HAND).values()
    return fixed, learning


def test_a_greedy_one_needs_no_noise(tmp_path: Path) -> None:
    one, world = case("lstm"), CASES["lstm"][0].deployed()
    safetensors.save_policy(tmp_path / "p.safetensors", one.manifest, one.policy)
    algorithm = {"name": "frozen", "path": str(tmp_path / "p.safetensors"), "greedy": True}
    agent = world.agents[0].name
    plan = plan_fixed(parse_run({"environment": {"copies": 8}, "policies": {agent: {"algorithm": algorithm}}}), world)
    done = []
    for seed in (1, 2):
        (seat,) = build_fixed_collectors(plan[agent], world, EnvironmentConfig(), seed, HAND).values()
        seen = random_rows(one.interface.place.observed, 8, np.random.default_rng(0))
        nothing, legal = np.zeros(8, np.bool_), everything(one.interface.place, 8)
        entry = AgentTimeStep(0, seen, np.zeros(8, np.float32), nothing, nothing, action_mask=legal)
        done.append([seat.act(entry, scripted.never).tobytes() for _ in range(5)])
    assert done[0] == done[1]


def test_it_sees_what_all_agents_see(tmp_path: Path) -> None:
    one = case("a common observation")
    safetensors.save_policy(tmp_path / "p.safetensors", one.manifest, one.policy)
    player = FrozenPlayer(ExportedPolicy.load(tmp_path / "p.safetensors"), COPIES)
    seen = random_rows(one.interface.place.observed, COPIES, np.random.default_rng(1))
    nothing, legal = np.zeros(COPIES, np.bool_), everything(one.interface.place, COPIES)
    present = AgentTimeStep(0, seen, np.zeros(COPIES, np.float32), nothing, nothing, action_mask=legal)
    done = set()
    for t in range(8):
        player.set_shared_observation(np.random.default_rng(t).integers(-(2**31), 2**31 - 1, (COPIES, 2), np.int32))
        done.add(player(present).tobytes())
    assert len(done) > 1
