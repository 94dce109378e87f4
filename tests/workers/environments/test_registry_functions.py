"""A function of the user's may return whatever an id may name."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

from protocol.config.environment import ObservedParts
from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.registry import describe, make

FORMS = """
    import gymnasium
    import numpy as np
    from gymnasium import spaces
    from mpe2 import simple_spread_v3
    from workers.environments.worlds.matrix_game import MatrixGame

    def native(copies):
        return MatrixGame(copies)

    def vector(copies):
        return gymnasium.make_vec("CartPole-v1", num_envs=copies)

    def native_of_four():
        return MatrixGame(4)

    def vector_of_four():
        return gymnasium.make_vec("CartPole-v1", num_envs=4)

    def plain():
        return gymnasium.make("CartPole-v1")

    def module():
        return simple_spread_v3

    def parallel():
        return simple_spread_v3.parallel_env()

    def in_turns():
        return simple_spread_v3.env()

    class Herd(gymnasium.Env):
        n_agents = 2
        observation_space = spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.Box(0, 1, (2,))])
        action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])

        def reset(self, *, seed=None, options=None):
            return (np.zeros(1), np.zeros(2)), {}

        def step(self, actions):
            return (np.zeros(1), np.zeros(2)), (1.0, 2.0), False, False, {}

    class Parted(gymnasium.Env):
        observation_space = spaces.Dict({"at": spaces.Discrete(2), "note": spaces.Sequence(spaces.Discrete(2))})
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"at": 1, "note": ()}, {}

        def step(self, action):
            return {"at": 0, "note": ()}, 0.0, False, False, {}
"""


@pytest.fixture
def forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"forms_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FORMS))
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("name", "agents", "mode"),
    [
        ("native", ["player_0", "player_1"], None),
        ("vector", ["agent"], None),
        ("plain", ["agent"], None),
        ("module", ["agent_0", "agent_1", "agent_2"], None),
        ("module", ["agent_0", "agent_1", "agent_2"], "sequential"),
        ("parallel", ["agent_0", "agent_1", "agent_2"], None),
        ("in_turns", ["agent_0", "agent_1", "agent_2"], None),
        ("Herd", ["agent_0", "agent_1"], None),
    ],
)
def test_a_function_returns_any_form_that_an_id_names(
    forms: str, name: str, agents: list[str], mode: str | None
) -> None:
    config = EnvironmentConfig.model_validate({"id": f"{forms}:{name}", "copies": 3, "turn_mode": mode})
    environment = make(config)
    try:
        assert (environment.copies, [agent.name for agent in environment.world.agents]) == (3, agents)
        turn = environment.reset(0)
        turn = environment.step([np.zeros(len(one.reward), np.int64) for one in turn.present])
        assert turn.present
    finally:
        environment.close()


@pytest.mark.parametrize("name", ["native_of_four", "vector_of_four"])
def test_what_plays_a_number_of_copies_by_itself_is_asked_to_take_the_number(forms: str, name: str) -> None:
    with raises(ConfigurationError, "environment_function_without_copies"):
        make(EnvironmentConfig(id=f"{forms}:{name}", copies=4))


@pytest.mark.parametrize("id", ["treasure_hunt", "native", "external"])
def test_a_world_that_says_itself_what_is_seen_is_not_picked_from(forms: str, id: str) -> None:
    config = EnvironmentConfig(
        id=f"{forms}:native" if id == "native" else id, copies=3, observe=ObservedParts(drop=("a",))
    )
    with raises(ConfigurationError, "observe_not_here", environment=config.id, key="environment.observe"):
        make(config)


def test_a_function_says_nothing_of_parts_that_the_configuration_leaves_out(forms: str) -> None:
    config = EnvironmentConfig(id=f"{forms}:Parted", copies=2, observe=ObservedParts(drop=("note",)))
    assert [leaf.name for leaf in describe(config).places[0].observed.leaves] == ["observation.at"]
