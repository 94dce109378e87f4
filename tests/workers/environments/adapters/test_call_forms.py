"""What a world's calls return in another form than its API asks for is told of the call, not of where it failed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from protocol.errors import EnvironmentFault
from protocol.spaces.drawing import first_legal
from tests.faults import raises
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.dm_env_adapter import DmEnv
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.gymnasium_multi_agent import TupleMultiAgent
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.adapters.pettingzoo_state import with_states
from workers.environments.base import Environment

SEEN, SPACE = np.zeros(2, np.float32), gymnasium.spaces.Box(-1, 1, (2,))
BOTH = {"a": SEEN, "b": SEEN}
NO, ONE = {"a": False, "b": False}, {"a": 1.0, "b": 1.0}
FINE: Any = (BOTH, ONE, NO, NO, {})


class World:
    """Whatever is asked of it returns what `said` has for it, and is fine where that has nothing."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    possible_agents = agents = ("a", "b")
    agent_selection: Any = "a"
    fine: Any = (SEEN, 1.0, False, False, {})

    def __init__(self, **said: Any) -> None:
        self.said = said
        if "selected" in said:
            self.agent_selection = said["selected"]

    def reset(self, *, seed: int | None = None) -> Any:
        return self.said.get("reset", (self.fine[0], {}))

    def step(self, _: Any) -> Any:
        self.agents = self.said.get("agents", self.agents)
        return self.said.get("step", self.fine)

    def last(self, observe: bool = True) -> Any:
        return self.said.get("last", self.fine)

    def state(self) -> Any:
        return SEEN

    def close(self) -> None:
        pass


class One(World):
    observation_space = single_observation_space = SPACE
    action_space = single_action_space = gymnasium.spaces.Discrete(2)


class Two(World):
    fine = FINE

    def observation_space(self, agent: str) -> Any:
        return SPACE

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)


class Turns(Two):
    fine = World.fine

    def agent_iter(self) -> Any:
        raise NotImplementedError


class Tuples(World):
    observation_space = gymnasium.spaces.Tuple((SPACE, SPACE))
    action_space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)))
    fine: Any = ((SEEN, SEEN), (1.0, 1.0), False, False, {})


def scalar(**said: Any) -> Environment:
    return GymnasiumEnvironment("odd", lambda: One(**said), 2)


def vector(**said: Any) -> Environment:
    fine: Any = (np.zeros((2, 2), np.float32), np.ones(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {})
    return GymnasiumVector("odd", One(**{"reset": (fine[0], {}), "step": fine, **said}))


def parallel(**said: Any) -> Environment:
    return PettingZooEnvironment("odd", lambda: Two(**said), 2)


def stateful(**said: Any) -> Environment:
    return PettingZooEnvironment("odd", with_states("odd", lambda: Two(**said)), 2)


def turns(**said: Any) -> Environment:
    return PettingZooAEC("odd", lambda: Turns(**said), 2)


def stateful_turns(**said: Any) -> Environment:
    return PettingZooAEC("odd", with_states("odd", lambda: Turns(**said)), 2)


def tuples(**said: Any) -> Environment:
    return PettingZooEnvironment("odd", lambda: TupleMultiAgent("odd", Tuples(**said)), 2)


def play(environment: Environment, steps: int = 3) -> None:
    turn = environment.reset(0)
    for _ in range(steps):
        places = environment.world.places
        turn = environment.step([first_legal(places[one.agent].acted, len(one.reward)) for one in turn.present])


Make = Callable[..., Environment]
DICTS = "({agent: observation}, {agent: reward}, {agent: terminated}, {agent: truncated}, {agent: info})"


@pytest.mark.parametrize("make", [scalar, vector, parallel, stateful, turns, stateful_turns, tuples])
def test_what_is_as_it_should_be_is_played(make: Make) -> None:
    play(make())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (scalar, {"reset": (SEEN, None), "step": (SEEN, np.float64(1), np.bool_(0), np.zeros(1), None)}),
        (scalar, {"step": (SEEN, 1, 0, None, {})}),
        (parallel, {"reset": (BOTH, None), "step": [*FINE[:4], None]}),
        (parallel, {"agents": {"a": 1, "b": 2}.keys()}),
        (turns, {"reset": (BOTH, {}), "last": [SEEN, 1, 0, 0, None]}),
    ],
)
def test_what_can_only_be_meant_in_one_way_is_taken(make: Make, said: dict[str, Any]) -> None:
    play(make(**said))


@pytest.mark.parametrize(
    ("make", "method", "told", "value"),
    [
        (vector, "reset", np.zeros((2, 2), np.float32), "ndarray"),
        (vector, "reset", (np.zeros((2, 2), np.float32), [{}, {}]), "(ndarray, list)"),
        (vector, "step", (SEEN, SEEN, SEEN, [{}, {}]), "4 values"),
        (vector, "step", None, "NoneType"),
        (vector, "step", (SEEN, SEEN, SEEN, SEEN, [{}]), "(ndarray, ndarray, ndarray, ndarray, list)"),
        (parallel, "reset", BOTH, "dict"),
        (parallel, "reset", None, "NoneType"),
        (parallel, "reset", (np.zeros((2, 2)), {}), "(ndarray, dict)"),
        (parallel, "reset", (BOTH, [{}, {}]), "(dict, list)"),
        (parallel, "step", FINE[:4], "4 values"),
        (parallel, "step", None, "NoneType"),
        (parallel, "step", ([SEEN, SEEN], *FINE[1:]), "(list, dict, dict, dict, dict)"),
        (parallel, "step", (BOTH, 1.0, *FINE[2:]), "(dict, float, dict, dict, dict)"),
        (parallel, "step", (BOTH, ONE, False, False, {}), "(dict, dict, bool, bool, dict)"),
        (parallel, "step", (*FINE[:4], [{}, {}]), "(dict, dict, dict, dict, list)"),
        (stateful, "step", FINE[:4], "4 values"),
        (stateful, "step", None, "NoneType"),
        (turns, "last", (SEEN, 1.0, False, {}), "4 values"),
        (turns, "last", SEEN, "ndarray"),
        (stateful_turns, "last", None, "NoneType"),
        (stateful_turns, "last", (SEEN, 1.0, False, {}), "4 values"),
        (tuples, "reset", SEEN, "ndarray"),
        (tuples, "step", (SEEN, 1.0, False, {}), "4 values"),
    ],
)
def test_a_call_of_another_form_is_told_with_what_it_returned(make: Make, method: str, told: Any, value: str) -> None:
    with raises(EnvironmentFault, "environment_call_malformed", method=method, value=value) as caught:
        play(make(**{method: told}))
    assert caught.value.facts["where"].startswith("odd")  # type: ignore[attr-defined]
    assert caught.value.facts["api"] in str(caught.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "said", "kind", "facts"),
    [
        (scalar, {"step": (SEEN, None, False, False, {})}, "reward_not_number", {"value": None}),
        (scalar, {"step": (SEEN, "1", False, False, {})}, "reward_not_number", {"value": "1"}),
        (parallel, {"step": (BOTH, {"a": 1.0, "b": None}, *FINE[2:])}, "reward_not_number", {"where": "odd, agent b"}),
        (turns, {"last": (SEEN, b"1", False, False, {})}, "reward_not_number", {"value": b"1"}),
        (vector, {"step": (None, [[1], [1, 2]], None, None, {})}, "vector_array_mismatch", {"field": "terminated"}),
        (scalar, {"step": (SEEN, 1.0, "no", False, {})}, "end_not_true_or_false", {"field": "terminated"}),
        (scalar, {"step": (SEEN, 1.0, False, {"a": 1}, {})}, "end_not_true_or_false", {"field": "truncated"}),
        (scalar, {"step": (SEEN, 1.0, SEEN, False, {})}, "end_not_true_or_false", {"value": SEEN}),
        (parallel, {"step": (BOTH, ONE, {"a": SEEN}, NO, {})}, "end_not_true_or_false", {"where": "odd, agent a"}),
        (parallel, {"step": (BOTH, ONE, NO, {"b": "no"}, {})}, "end_not_true_or_false", {"where": "odd, agent b"}),
        (turns, {"last": (SEEN, 1.0, False, {"a": 1}, {})}, "end_not_true_or_false", {"field": "truncated"}),
        (
            tuples,
            {"step": ((SEEN, SEEN), (1.0, 1.0), False, ["no", False], {})},
            "end_not_true_or_false",
            {"value": "no"},
        ),
        (scalar, {"reset": (SEEN, "info")}, "value_not_a_mapping", {"field": "odd, agent agent: info"}),
        (scalar, {"step": (SEEN, 1.0, False, False, 7)}, "value_not_a_mapping", {"value": "int"}),
        (parallel, {"reset": (BOTH, {"b": 7})}, "value_not_a_mapping", {"field": "odd, agent b: info"}),
        (parallel, {"step": (*FINE[:4], {"a": [1]})}, "value_not_a_mapping", {"field": "odd, agent a: info"}),
        (parallel, {"agents": None}, "agents_attribute_missing", {"value": "None"}),
        (parallel, {"agents": 2}, "agents_attribute_missing", {"value": "2"}),
        (parallel, {"agents": "ab"}, "agents_attribute_missing", {"value": "'ab'"}),
        (turns, {"selected": None}, "agent_selection_missing", {"environment": "odd"}),
        (turns, {"selected": "c"}, "agent_unknown", {"agent": "c"}),
    ],
)
def test_a_value_that_cannot_be_taken_is_told_with_whose_it_is(
    make: Make, said: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with raises(EnvironmentFault, kind, **facts):
        play(make(**said))


def test_observations_of_a_vector_that_are_ragged_are_told_as_that() -> None:
    with raises(EnvironmentFault, "array_is_ragged", field="odd, agent agent: observation", shape=[2, 2]):
        play(vector(reset=([[0.0], [0.0, 1.0]], {})))


def old(self: Any) -> Any:
    return World.reset(self)


def needy(self: Any, seed: int) -> Any:
    return World.reset(self)


@pytest.mark.parametrize(
    ("make", "kind", "reset"),
    [
        (scalar, One, old),
        (vector, One, old),
        (parallel, Two, old),
        (turns, Turns, old),
        (scalar, One, needy),
        (parallel, Two, needy),
        (turns, Turns, needy),
    ],
)
def test_a_reset_that_takes_no_seed_or_needs_one_is_told_before_anything_is_played(
    make: Make, kind: type, reset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "reset", reset, raising=False)
    with raises(EnvironmentFault, "reset_without_seed"):
        make()


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("told", [None, (SEEN, 1.0, False, {}), SEEN])
def test_a_world_of_dm_env_that_returns_no_time_step_is_told_as_that(method: str, told: Any) -> None:
    spec = SimpleNamespace(shape=(2,), dtype=np.dtype(np.float32))
    step = SimpleNamespace(observation=SEEN, reward=1.0, discount=1.0, first=lambda: False, last=lambda: False)
    calls = {name: lambda *_, name=name: told if name == method else step for name in ("reset", "step")}
    specs = {name: lambda: spec for name in ("observation_spec", "action_spec")}
    env = SimpleNamespace(**calls, **specs, close=lambda: None)
    with raises(EnvironmentFault, "environment_call_malformed", method=method, api="dm_env.Environment"):
        play(GymnasiumEnvironment("odd", lambda: DmEnv("odd", env), 1))


MASK = np.ones(2, np.int8)
MASKED = gymnasium.spaces.Dict({"observation": SPACE, "action_mask": gymnasium.spaces.Box(0, 1, (2,), np.int8)})


@pytest.mark.parametrize("kind", [One, Two, Turns])
@pytest.mark.parametrize(
    ("seen", "fault", "facts"),
    [
        ({"observation": SEEN}, "component_missing", {"component": "action_mask"}),
        ({"observation": SEEN, "action_mask": None}, "component_missing", {"component": "action_mask"}),
        ({"action_mask": MASK}, "component_missing", {"component": "observation"}),
        (SEEN, "value_not_a_mapping", {"value": "ndarray"}),
    ],
)
def test_a_mask_that_its_space_declares_is_never_left_out_unnoticed(
    kind: type, seen: Any, fault: str, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "observation_space", MASKED if kind is One else lambda self, agent: MASKED)
    whole = {"observation": SEEN, "action_mask": MASK}
    fine = (whole, *World.fine[1:])
    if kind is One:
        said = {"reset": (whole, {}), "step": (seen, *fine[1:])}
        environment: Environment = GymnasiumEnvironment("odd", lambda: One(reset=said["reset"], step=fine), 1)
        play(environment)
        environment = GymnasiumEnvironment("odd", lambda: One(**said), 1)
    elif kind is Two:
        both = {"a": whole, "b": whole}
        play(parallel(reset=(both, {}), step=(both, *FINE[1:])))
        environment = parallel(reset=(both, {}), step=({"a": whole, "b": seen}, *FINE[1:]))
    else:
        play(turns(last=fine))
        environment = turns(last=(seen, *fine[1:]))
    with raises(EnvironmentFault, fault, **facts) as caught:
        play(environment)
    assert caught.value.facts["field"].endswith(": observation")  # type: ignore[attr-defined]


@pytest.mark.parametrize("told", [SEEN, {"observation": np.zeros((2, 2))}])
def test_a_mask_that_a_vector_declares_is_never_left_out_either(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(One, "single_observation_space", MASKED)
    with pytest.raises(EnvironmentFault):
        play(vector(reset=(told, {})))


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"final_observation": SEEN},
        {"final_obs": np.zeros((1, 2)), "_final_obs": np.ones(2, np.bool_)},
        {"final_obs": 3, "_final_obs": np.ones(2, np.bool_)},
        {"final_obs": np.zeros((2, 2)), "_final_obs": True},
        {"final_obs": np.zeros((2, 2)), "_final_obs": np.ones(1, np.bool_)},
        {"final_obs": np.zeros((2, 2)), "_final_obs": [True, False]},
    ],
)
def test_last_observations_that_a_vector_does_not_tell_are_missing(
    info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(One, "metadata", {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP})
    rows, no = np.zeros((2, 2), np.float32), np.zeros(2, np.bool_)
    play(vector(step=(rows, np.ones(2), no, ~no, {"final_obs": rows, "_final_obs": [True, True]})))
    with raises(EnvironmentFault, "final_observations_missing", where="odd, agent agent"):
        play(vector(step=(rows, np.ones(2), no, ~no, info)))
