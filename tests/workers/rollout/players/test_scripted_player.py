"""Players that are programs: what is built in, the user's own, and every fault in a sentence that names it (J1)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig, ScriptedPolicy
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import Agent, Box, Dict, Discrete, World
from tests.faults import raises
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.rollout.players.scripted_player import Script, build_scripted_player

WORLD = World(
    id="w",
    agents=(
        Agent(name="masked", observation=Box(shape=(2,)), action=Discrete(n=4, start=2), action_mask=True),
        Agent(
            name="both",
            observation=Box(shape=(2,)),
            action=Dict(spaces={"go": Discrete(n=3), "push": Box(shape=(2,), low=-1.0, high=1.0)}),
        ),
    ),
)
PROGRAMS = '''
import numpy as np


class Late:
    """Does what it saw one turn before, each stream for itself, and tells what it was told."""

    def __init__(self, place, streams, generator, first=2):
        self.place, self.last = place, np.full(streams, first)
        self.told = []

    def __call__(self, present):
        where = slice(None) if present.copies is None else present.copies
        actions = self.last[where].copy()
        self.last[where] = present.observation[:, 0].astype(np.int64)
        return actions

    def add_outcome(self, outcome):
        self.told.append(outcome)

    def set_shared_observation(self, common):
        self.told.append(common)


class Plain:
    def __init__(self, place, streams, generator):
        pass

    def __call__(self, present):
        return FAULTY(len(present.observation))


class Deaf:
    def __init__(self, place, streams, generator):
        pass


def boast(place, streams, generator):
    raise ValueError("no two ways")


number = 7
'''
CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27}
"""Of chi-square at p = 0.001, by degrees of freedom."""
_NUMBERS = iter(range(1_000))
ENTRY, SETTINGS = "policies.p.algorithm.entry", "policies.p.algorithm.settings"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's, in the working directory."""
    name = f"programs_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return name


def player(entry: str, agent: str = "masked", streams: int = 3, world: str = "tag", **settings: Any) -> Script:
    algorithm = ScriptedPolicy(entry=entry, settings=settings)
    where = EnvironmentConfig(id=world, copies=streams)
    return build_scripted_player("p", algorithm, WORLD.place(agent), streams, np.random.default_rng(5), where)


def present(mask: NDArray | None, rows: int = 3, value: float = 3.0, copies: NDArray | None = None) -> AgentTimeStep:
    nothing = np.zeros(rows, np.bool_)
    seen = np.full((rows, 2), value, np.float32)
    return AgentTimeStep(0, seen, np.zeros(rows, np.float32), nothing, nothing.copy(), copies, action_mask=mask)


def test_random_is_uniform_over_legal_actions_J1() -> None:
    """Chi-square, for each set of legal actions by itself; nothing else is ever done."""
    masks = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 1, 1]], np.bool_)
    each = 4_000
    done = player("random", streams=3 * each)(present(np.repeat(masks, each, 0), 3 * each)).reshape(3, each)
    for mask, actions in zip(masks, done, strict=True):
        counts = np.bincount(actions - 2, minlength=4)
        assert counts[~mask].sum() == 0
        expected = each / mask.sum()
        assert ((counts[mask] - expected) ** 2 / expected).sum() < CRITICAL[mask.sum() - 1]


def test_constant_always_does_the_same_in_any_space() -> None:
    mask = np.ones((3, 4), np.bool_)
    assert player("constant", action=4)(present(mask)).tolist() == [4, 4, 4]
    done = player("constant", "both", action={"go": 2, "push": [0.5, -1]})(present(None))
    assert done["go"].tolist() == [2, 2, 2]
    assert done["push"].tolist() == [[0.5, -1.0]] * 3


def test_the_worlds_own_player_plays_as_many_copies_as_there_are() -> None:
    memory = EnvironmentConfig(id="memory", copies=2)
    world = World(id="m", agents=(Agent(name="a", observation=Box(shape=(6,)), action=Discrete(n=4)),))
    its = build_scripted_player(
        "p", ScriptedPolicy(entry="world"), world.places[0], 2, np.random.default_rng(1), memory
    )
    nothing = np.zeros(2, np.bool_)
    cue = np.array([[0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0]], np.float32)
    for seen in (cue, np.zeros((2, 6), np.float32)):
        done = its(AgentTimeStep(0, seen, np.zeros(2, np.float32), nothing, nothing.copy()))
        assert done.tolist() == [2, 1]


def test_the_users_own_keeps_what_it_likes_of_each_stream_and_hears_of_the_rest_J1(programs: str) -> None:
    one = player(f"{programs}:Late", first=5)
    mask = np.ones((3, 4), np.bool_)
    assert one(present(mask)).tolist() == [5, 5, 5]
    assert one(present(mask[:1], 1, 4.0, np.array([1]))).tolist() == [3]
    assert one(present(mask)).tolist() == [3, 4, 3]
    outcome = AgentOutcome(0, np.array([1]), np.ones(1, np.float32), np.ones(1, np.bool_), np.zeros(1, np.bool_))
    common = np.zeros(3)
    one.add_outcome(outcome)
    one.set_shared_observation(common)
    assert one._player.told == [outcome, common]
    assert one._player.place.name == "masked"


@pytest.mark.parametrize(
    ("entry", "settings", "kind", "facts", "said"),
    [
        (
            "chance",
            {},
            "script_entry_unknown",
            {"policy": "p", "entry": "chance", "key": ENTRY},
            "random, constant, world",
        ),
        ("random", {"seed": 1}, "script_takes_no_settings", {"policy": "p", "entry": "random", "key": SETTINGS}, ""),
        ("constant", {}, "constant_script_settings_wrong", {"policy": "p", "key": SETTINGS}, ""),
        ("constant", {"action": 7}, "constant_script_action_wrong", {"policy": "p", "key": f"{SETTINGS}.action"}, "7"),
        ("nowhere:Late", {}, "module_not_found", {"module": "nowhere", "value": "nowhere:Late", "key": ENTRY}, ""),
        ("{}:Early", {}, "name_not_in_module", {"name": "Early", "key": ENTRY}, ""),
        ("{}:number", {}, "entry_not_callable", {"key": ENTRY}, ":number"),
        ("{}:Deaf", {}, "script_not_callable", {"policy": "p", "value": "Deaf", "key": ENTRY}, ":Deaf"),
        (
            "{}:boast",
            {},
            "script_cannot_be_made",
            {"policy": "p", "settings": {}, "reason": "ValueError: no two ways", "key": SETTINGS},
            ":boast",
        ),
        ("{}:Late", {"last": 3}, "script_cannot_be_made", {"settings": {"last": 3}, "key": SETTINGS}, "(TypeError: "),
    ],
)
def test_what_cannot_play_is_refused_at_start_J1(
    programs: str, entry: str, settings: dict[str, Any], kind: str, facts: dict[str, Any], said: str
) -> None:
    with raises(ConfigurationError, kind, **facts) as caught:
        player(entry.format(programs), **settings)
    assert said in str(caught.value)


def test_a_world_without_a_player_of_its_own_is_named() -> None:
    with raises(ConfigurationError, "no_scripted_player", policy="p", environment="gymnasium:CartPole-v1", key=ENTRY):
        player("world", world="gymnasium:CartPole-v1")


def test_simulators_are_not_started_to_ask_for_a_player(tmp_path: Path) -> None:
    started = tmp_path / "started"
    settings = {"world": "gymnasium:CartPole-v1", "command": f"touch {started}"}
    where = EnvironmentConfig(id="external", copies=1, settings=settings)
    with raises(ConfigurationError, "no_scripted_player", policy="p", environment="external", key=ENTRY):
        build_scripted_player(
            "p", ScriptedPolicy(entry="world"), WORLD.place("masked"), 1, np.random.default_rng(5), where
        )
    assert not started.exists()


@pytest.mark.parametrize(
    ("does", "kind", "facts"),
    [
        (lambda n: np.full(n, 6), "script_action_wrong", {"expected": "2 to 5", "value": "6 at [0]"}),
        (
            lambda n: np.full(n, 3),
            "script_action_wrong",
            {"expected": "a choice that action_mask allows", "value": "3 at [0]"},
        ),
        (lambda n: np.full(n + 1, 2), "script_action_wrong", {"expected": "int64[3]", "value": "int64[4]"}),
        (lambda n: [2] * n, "script_action_wrong", {"expected": "an array int64[3]", "value": "list"}),
        (lambda n: 1 / 0, "script_raised", {"reason": "ZeroDivisionError: division by zero"}),
        (lambda n: sys.exit(0), "script_raised", {"reason": "SystemExit: 0"}),
    ],
    ids=["outside", "illegal", "too many", "a list", "raises", "exits"],
)
def test_a_fault_in_a_turn_names_the_program(programs: str, does: Any, kind: str, facts: dict[str, str]) -> None:
    one = player(f"{programs}:Plain")
    sys.modules[programs].FAULTY = does  # type: ignore[attr-defined]
    with raises(EnvironmentFault, kind, player=f"policy 'p': {programs}:Plain", **facts):
        one(present(np.array([[1, 0, 1, 1]] * 3, np.bool_)))
