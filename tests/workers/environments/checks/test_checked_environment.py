"""The guard: each kind of wrong data becomes an EnvironmentFault that names environment, agent, field and values."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from tests.faults import raises
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Player, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment

E = 4


class Fake(Environment):
    """Returns one present agent, changed by `spoil` before each step."""

    def __init__(self, spoil: Callable[[AgentTimeStep], Any] = lambda present: None) -> None:
        self.world = World(id="fake", agents=(Agent(name="bird", observation=Box(shape=(3,)), action=Discrete(n=2)),))
        self.copies = E
        self.spoil = spoil
        self.closed = False

    def _turn(self) -> Turn:
        none = np.zeros(E, np.bool_)
        return Turn((AgentTimeStep(0, np.ones((E, 3), np.float32), np.zeros(E, np.float32), none, none.copy()),), E)

    def reset(self, seed: int) -> Turn:
        return self._turn()

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        turn = self._turn()
        other = self.spoil(turn.present[0])
        return turn if other is None else other

    def scripted(self) -> Player:
        return lambda present: np.zeros(E, np.int64)

    def close(self) -> None:
        self.closed = True


def put(field: str, value: Any) -> Callable[[AgentTimeStep], None]:
    return lambda present: setattr(present, field, value)


def poke(field: str, index: Any, value: float) -> Callable[[AgentTimeStep], None]:
    def spoil(present: AgentTimeStep) -> None:
        getattr(present, field)[index] = value

    return spoil


def both_infinities(present: AgentTimeStep) -> None:
    present.observation[0, 0], present.observation[1, 1] = np.inf, -np.inf


def cut(index: list[int], final: Any) -> Callable[[AgentTimeStep], None]:
    def spoil(present: AgentTimeStep) -> None:
        present.truncated[[1, 3]] = True
        present.final_index = np.array(index, np.int64)
        present.final_observation = final

    return spoil


@pytest.mark.parametrize(
    ("spoil", "field", "expected", "value"),
    [
        (poke("reward", 2, np.nan), "reward", "finite numbers", "nan at [2]"),
        (poke("observation", (3, 0), -np.inf), "observation", "finite numbers", "-inf at [3, 0]"),
        (both_infinities, "observation", "finite numbers", "inf at [0, 0]"),
        (put("observation", np.zeros((E, 1, 3), np.float32)), "observation", "float32[4, 3]", "float32[4, 1, 3]"),
        (put("observation", np.zeros((E, 3))), "observation", "float32[4, 3]", "float64[4, 3]"),
        (put("observation", [[0.0] * 3] * E), "observation", "an array float32[4, 3]", "list"),
        (put("reward", np.zeros(E)), "reward", "float32[4]", "float64[4]"),
        (put("terminated", np.zeros(E, np.int8)), "terminated", "bool[4]", "int8[4]"),
        (put("truncated", np.ones(E, np.bool_)), "final_index", "the truncated rows [0 1 2 3]", "[]"),
        (cut([1], np.zeros((1, 3), np.float32)), "final_index", "the truncated rows [1 3]", "[1]"),
        (cut([1, 3], None), "final_observation", "an array float32[2, 3]", "NoneType"),
        (cut([1, 3], np.full((2, 3), np.nan, np.float32)), "final_observation", "finite numbers", "nan at [0, 0]"),
        (put("final_index", np.array([0])), "final_index", "the truncated rows []", "[0]"),
        (put("copies", np.array([0, 1])), "observation", "float32[2, 3]", "float32[4, 3]"),
        (put("copies", np.array([0, 1, 1, 2])), "copies", "increasing numbers in 0..3", "[0 1 1 2]"),
        (put("copies", np.array([0, 1, 2, 4])), "copies", "increasing numbers in 0..3", "[0 1 2 4]"),
    ],
)
def test_wrong_data_name_environment_agent_field_expected_and_got(
    spoil: Any, field: str, expected: str, value: str
) -> None:
    checked = CheckedEnvironment(Fake(spoil))
    checked.reset(0)
    facts = {"field": field, "expected": expected, "value": value}
    with raises(EnvironmentFault, "agent_data_invalid", environment="fake", agent="bird", **facts):
        checked.step([np.zeros(E, np.int64)])


def test_an_agent_that_the_world_does_not_have_is_a_fault() -> None:
    checked = CheckedEnvironment(Fake(put("agent", 1)))
    checked.reset(0)
    with raises(EnvironmentFault, "agent_number_unknown", environment="fake", value=1, limit=0):
        checked.step([np.zeros(E, np.int64)])


@pytest.mark.parametrize(
    ("copies", "reward", "facts"),
    [
        ([0, E], [0.0, 0.0], {"field": "copies", "expected": f"increasing numbers in 0..{E - 1}", "value": "[0 4]"}),
        ([0, 1], [0.0, np.nan], {"field": "reward", "expected": "finite numbers", "value": "nan at [1]"}),
    ],
)
def test_what_is_told_between_turns_is_checked_as_well(
    copies: list[int], reward: list[float], facts: dict[str, str]
) -> None:
    none = np.zeros(2, np.bool_)
    outcome = AgentOutcome(0, np.array(copies), np.array(reward, np.float32), none, none)
    checked = CheckedEnvironment(Fake(lambda present: Turn((present,), E, (outcome,))))
    checked.reset(0)
    with raises(EnvironmentFault, "agent_data_invalid", environment="fake", agent="bird", **facts):
        checked.step([np.zeros(E, np.int64)])


@pytest.mark.parametrize("what", ["present", "outcomes"])
def test_an_agent_that_is_named_twice_in_a_turn_is_a_fault(what: str) -> None:
    none = np.zeros(1, np.bool_)
    outcome = AgentOutcome(0, np.array([1]), np.zeros(1, np.float32), none, none)
    twice = {"present": lambda p: Turn((p, p), E), "outcomes": lambda p: Turn((p,), E, (outcome, outcome))}
    checked = CheckedEnvironment(Fake(twice[what]))
    checked.reset(0)
    with raises(EnvironmentFault, "agent_repeated_in_turn", environment="fake", agents=[0, 0]):
        checked.step([np.zeros(E, np.int64)])


def test_spaces_that_change_are_a_fault() -> None:
    fake = Fake()
    checked = CheckedEnvironment(fake)
    checked.reset(0)
    (bird,) = fake.world.agents
    fake.world = World(id="fake", agents=(bird,))  # the same again is none
    checked.reset(0)
    fake.world = World(id="fake", agents=(bird.model_copy(update={"action": Discrete(n=3)}),))
    with raises(EnvironmentFault, "space_changed", where="fake, agent bird", field="its spaces"):
        checked.step([np.zeros(E, np.int64)])
    fake.world = World(id="fake", agents=(bird,), episode_steps=3)
    with raises(EnvironmentFault, "world_changed", environment="fake", method="reset"):
        checked.reset(0)


def test_what_is_no_turn_is_a_fault() -> None:
    checked = CheckedEnvironment(Fake(lambda present: (1, 2)))
    checked.reset(0)
    with raises(EnvironmentFault, "turn_not_returned", environment="fake", value="tuple", method="step"):
        checked.step([np.zeros(E, np.int64)])


def test_very_large_finite_numbers_are_no_fault() -> None:
    def large(present: AgentTimeStep) -> None:
        present.observation[:] = np.finfo(np.float32).max

    checked = CheckedEnvironment(Fake(large))
    checked.reset(0)
    turn = checked.step([np.zeros(E, np.int64)])
    assert np.isfinite(turn.present[0].observation).all()


@pytest.mark.parametrize(
    ("raised", "reason"),
    [(RuntimeError("the pole\nbroke"), "RuntimeError: the pole broke"), (SystemExit(3), "SystemExit: 3")],
)
def test_an_exception_or_exit_inside_becomes_a_fault_that_names_it_and_keeps_its_cause(
    raised: BaseException, reason: str
) -> None:
    def explode(present: AgentTimeStep) -> None:
        raise raised

    checked = CheckedEnvironment(Fake(explode))
    checked.reset(0)
    facts = {"environment": "fake", "method": "step", "reason": reason}
    with raises(EnvironmentFault, "environment_raised", **facts) as caught:
        checked.step([np.zeros(E, np.int64)])
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("reset", (0,)),
        ("preview_actions", ([np.zeros(E, np.int64)],)),
        ("set_curriculum", ({},)),
        ("poll", ()),
        ("flush_ends", ()),
    ],
)
def test_the_method_that_raised_is_called_by_its_name(
    method: str, given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: Any) -> None:
        raise KeyError

    checked = CheckedEnvironment(Fake())
    checked.reset(0)
    monkeypatch.setattr(Fake, method, explode)
    with raises(
        EnvironmentFault, "environment_raised", environment="fake", method=method, reason="KeyError", function="explode"
    ):
        getattr(checked, method)(*given)


def test_a_fault_from_inside_stays_as_it_is_and_interrupts_pass() -> None:
    def fault(present: AgentTimeStep) -> None:
        raise EnvironmentFault("no_episode_running", environment="inner")

    def interrupt(present: AgentTimeStep) -> None:
        signal.raise_signal(signal.SIGINT)

    def pretend(present: AgentTimeStep) -> None:
        raise KeyboardInterrupt

    checked = CheckedEnvironment(Fake(fault))
    checked.reset(0)
    with raises(EnvironmentFault, "no_episode_running", environment="inner"):
        checked.step([np.zeros(E, np.int64)])
    checked = CheckedEnvironment(Fake(interrupt))
    checked.reset(0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        checked.step([np.zeros(E, np.int64)])
    signal.signal(signal.SIGINT, before)
    checked = CheckedEnvironment(Fake(pretend))
    checked.reset(0)
    with raises(EnvironmentFault, "environment_raised", reason="KeyboardInterrupt", function="pretend"):
        checked.step([np.zeros(E, np.int64)])


def test_a_guarded_world_has_its_scripted_player() -> None:
    assert CheckedEnvironment(Fake()).scripted() is not None


def test_what_is_answered_at_once_is_checked_once_and_before_anybody_has_it() -> None:
    had: list[Any] = []

    class Waited(Fake):
        wants_preview = True

        def preview_actions(self, actions: Sequence[NDArray[np.int64]]) -> None:
            had.append(actions)

    environment = CheckedEnvironment(Waited())
    assert environment.wants_preview
    environment.reset(0)
    with raises(EnvironmentFault, "action_invalid", environment="fake", agent="bird", field="action"):
        environment.preview_actions([np.full(E, 2)])
    assert not had
    actions = [np.ones(E, np.int64)]
    environment.preview_actions(actions)
    assert had == [actions]
    environment.step(actions)
    with raises(EnvironmentFault, "action_invalid", environment="fake", agent="bird", field="action"):
        environment.step([np.full(E, 2)])


def test_closing_the_guard_closes_the_environment() -> None:
    fake = Fake()
    CheckedEnvironment(fake).close()
    assert fake.closed


@pytest.mark.parametrize(
    ("common", "expected", "value"),
    [
        (None, "an array float32[4, 2]", "NoneType"),
        (np.zeros((3, 2), np.float32), "float32[4, 2]", "float32[3, 2]"),
        (np.full((4, 2), np.nan, np.float32), "finite numbers", "nan at [0, 0]"),
    ],
)
def test_a_wrong_common_observation_is_told_in_one_sentence_J9(common: Any, expected: str, value: str) -> None:
    fake = Fake()
    agents = fake.world.agents
    seen = DictPopulation(agents=agents, common=Box(shape=(2,)))
    fake.world = World(id="fake", population=seen)
    guarded = CheckedEnvironment(fake)
    fake._turn = lambda: Turn(Fake._turn(fake).present, E, common=common)  # type: ignore[method-assign]
    facts = {"environment": "fake", "field": "common", "expected": expected, "value": value}
    with raises(EnvironmentFault, "world_data_invalid", **facts):
        guarded.reset(0)
    fake._turn = lambda: Turn(Fake._turn(fake).present, E, common=np.zeros((E, 2), np.float32))  # type: ignore[method-assign]
    assert guarded.reset(0).common is not None
    fake.world = World(id="fake", agents=agents)
    guarded = CheckedEnvironment(fake)
    facts["expected"] = "nothing, as the world has no common observation"
    facts["value"] = "float32[4, 2]"
    with raises(EnvironmentFault, "world_data_invalid", **facts):
        guarded.reset(0)
