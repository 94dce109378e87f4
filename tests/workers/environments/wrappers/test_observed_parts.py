"""Parts of observations are left out, or picked, by their paths; a part that cannot be taken is named by its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from protocol.config.environment import EnvironmentConfig, ObservedParts
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.registry import make
from workers.environments.wrappers.observed_parts import pick, pick_spaces

MISSION = spaces.Sequence(spaces.Discrete(9))
GRAPH = spaces.Graph(spaces.Box(0, 1, (2,)), None)
SIGHT = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "mission": MISSION,
        "radar": spaces.Dict({"blips": GRAPH, "range": spaces.Box(0, 9, (1,))}),
        "pair": spaces.Tuple([spaces.Discrete(3), MISSION, spaces.Discrete(4)]),
    }
)
SEEN = {
    "image": np.full((2, 2), 7, np.uint8),
    "mission": (1, 2),
    "radar": {"blips": None, "range": np.array([5], np.float32)},
    "pair": (1, (1,), 3),
}
PLAIN = ("mission", "radar.blips", "pair.1")


def parts(**how: Any) -> ObservedParts:
    return ObservedParts(**how)


@pytest.mark.parametrize(
    ("observe", "leaves"),
    [
        (parts(drop=PLAIN), ["image", "pair.0", "pair.2", "radar.range"]),
        (parts(drop=("mission", "radar", "pair.1")), ["image", "pair.0", "pair.2"]),
        (parts(drop=("mission", "radar", "pair.0", "pair.1", "pair.2")), ["image"]),
        (parts(keep=("image",)), ["image"]),
        (parts(keep=("radar.range", "pair.2")), ["pair.2", "radar.range"]),
    ],
)
def test_parts_are_left_out_or_picked_by_path(observe: ObservedParts, leaves: list[str]) -> None:
    class Seeing(gymnasium.Env[Any, Any]):
        observation_space = SIGHT
        action_space = spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            return SEEN, {}

        def step(self, action: Any) -> Any:
            return SEEN, 0.0, False, True, {}

    environment = GymnasiumEnvironment("seeing", Seeing, 2, observe)
    place = environment.world.places[0]
    assert [leaf.name.partition(".")[2] for leaf in place.observed.leaves] == leaves
    environment.reset(0)
    present = environment.step([np.zeros(2, np.int64)]).present[0]
    told = {"image": [[7, 7], [7, 7]], "pair.0": 1, "pair.2": 3, "radar.range": [5]}
    assert present.final_observation is not None
    for rows in (present.observation, present.final_observation):
        assert {name: rows[name][1].tolist() for name in leaves} == {name: told[name] for name in leaves}


def test_each_agent_loses_the_parts_that_it_has_and_keeps_its_own_sizes_and_mask() -> None:
    seen = {
        0: spaces.Dict({"map": spaces.Box(0, 1, (3,), np.float32), "note": MISSION}),
        1: spaces.Dict({"map": spaces.Box(0, 1, (5,), np.float32), "note": MISSION, "own": spaces.Discrete(2)}),
        2: spaces.Dict({"note": MISSION, "own": spaces.Discrete(2), "action_mask": spaces.Box(0, 1, (2,), np.int8)}),
        3: spaces.Box(0, 1, (4,), np.float32),
    }

    class Four:
        possible_agents = agents = [*seen]  # noqa: RUF012

        def observation_space(self, agent: int) -> Any:
            return seen[agent]

        def action_space(self, agent: int) -> Any:
            return spaces.Discrete(2)

        def _look(self) -> Mapping[int, Any]:
            shown: dict[int, Any] = {0: {"map": np.zeros(3, np.float32), "note": ()}, 3: np.ones(4, np.float32)}
            shown[1] = {"map": np.ones(5, np.float32), "note": (), "own": 1}
            return shown | {2: {"note": (), "own": 1, "action_mask": np.array([0, 1], np.int8)}}

        def reset(self, seed: int | None = None) -> Any:
            return self._look(), {}

        def close(self) -> None:
            pass

    environment = PettingZooEnvironment("four", Four, 1, parts(drop=("note",)))
    shapes = [{leaf.name: leaf.space.shape for leaf in place.observed.leaves} for place in environment.world.places]
    names = [{name.removeprefix("observation").removeprefix(".") for name in each} for each in shapes]
    assert names == [{"map"}, {"map", "own"}, {"own"}, {""}]
    assert (shapes[0]["observation.map"], shapes[1]["observation.map"]) == ((3,), (5,))
    present = environment.reset(0).present[2]
    assert present.action_mask is not None
    assert present.action_mask.tolist() == [[False, True]]
    kept = PettingZooEnvironment("four", Four, 1, parts(keep=("own", "map"))).world.places
    assert [len(place.observed.leaves) for place in kept] == [1, 2, 1, 1]
    assert [place.masked is not None for place in kept] == [False, False, True, False]


def test_of_a_vector_of_copies_too() -> None:
    class Vector:
        num_envs, metadata = 3, {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        single_observation_space, single_action_space = SIGHT, spaces.Discrete(2)

        def reset(self, seed: int | None = None) -> Any:
            image = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
            numbers = np.arange(3)
            return {"image": image, "mission": ((),) * 3, "pair": (numbers, ((),) * 3, numbers + 1), "radar": {}}, {}

        def close(self) -> None:
            pass

    environment = GymnasiumVector("vector", Vector(), parts(drop=("mission", "radar", "pair.1")))
    rows = environment.reset(0).present[0].observation
    assert rows["image"].ravel().tolist() == [*range(12)]
    assert (rows["pair.0"].tolist(), rows["pair.2"].tolist()) == ([0, 1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    ("space", "part"),
    [
        (spaces.Dict({"image": spaces.Discrete(2), "mission": MISSION}), "mission"),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Tuple([spaces.Discrete(2), MISSION])})}), "a.b.1"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Dict({"graph": GRAPH})]), "1.graph"),
        (spaces.Dict({"inner": spaces.Dict({"two words": spaces.Discrete(2)})}), "inner.two words"),
    ],
)
def test_a_part_that_cannot_be_taken_is_named_with_the_path_that_leaves_it_out(space: Any, part: str) -> None:
    class Seeing(gymnasium.Env[Any, Any]):
        observation_space = space
        action_space = spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            return SEEN, {}

    with raises(ConfigurationError, "observation_part_not_supported", part=part, key="environment.observe") as caught:
        GymnasiumEnvironment("seeing", Seeing, 1)
    assert f"environment.observe: {{drop: [{part}]}}" in str(caught.value)
    if space is not SIGHT:
        spaces_left, plans = pick_spaces("seeing", {"agent": space}, parts(drop=(part,)))
        assert plans["agent"] is not None
        assert part.rpartition(".")[2] not in str(spaces_left["agent"])


@pytest.mark.parametrize("path", ["missions", "radar.blip", "pair.3", "pair.1.0"])
def test_a_path_that_nobody_has_is_refused_with_those_there_are(path: str) -> None:
    with raises(ConfigurationError, "observed_part_unknown", value=path, key="environment.observe") as caught:
        pick_spaces("seeing", {"agent": SIGHT}, parts(drop=("mission", path)))
    assert {"mission", "radar.blips", "pair.1"} <= {*caught.value.choices}  # type: ignore[attr-defined]


def test_what_has_no_parts_is_told_of_that_in_each_form_of_a_world() -> None:
    for id in ("gymnasium:CartPole-v1", "gymnasium:Acrobot-v1"):
        with raises(ConfigurationError, "observed_part_unknown", value="foo", choices="none"):
            make(EnvironmentConfig(id=id, copies=2, observe=parts(drop=("foo",))))


def test_what_is_not_as_its_space_says_is_left_to_whoever_encodes_it() -> None:
    _, plans = pick_spaces("seeing", {"agent": SIGHT}, parts(keep=("image", "pair.0")))
    assert pick(plans["agent"], {"pair": ()}) == {"pair": {}}
    assert pick(plans["agent"], None) is None


@pytest.mark.parametrize("how", [{}, {"drop": ("a",), "keep": ("b",)}])
def test_either_what_to_drop_or_what_to_keep_is_said(how: dict[str, Any]) -> None:
    with raises(ValueError, "observe_not_one", key="environment.observe"):
        ObservedParts(**how)
