"""From ids to environments: the forms that work, and the sentences for those that do not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import dtype_of
from tests.faults import raises
from tests.tools import ROOT
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.registry import BUILT_IN, describe, make
from workers.environments.worlds.treasure_hunt import TreasureHunt

OWN = """
import gymnasium
from mpe2 import simple_spread_v3
from workers.environments.worlds.treasure_hunt import TreasureHunt

calls = []

def cart(**settings):
    calls.append(settings)
    return gymnasium.make("CartPole-v1", **settings)

def spread(max_cycles=5):
    return simple_spread_v3.parallel_env(max_cycles=max_cycles)

def hunt(copies, gem=10.0):
    return TreasureHunt(copies, gem=gem)

def hunt_any(copies, turn_mode=None):
    return TreasureHunt(copies, turn_mode)

def few(copies):
    return TreasureHunt(1)

def stubborn():
    return TreasureHunt(1)

def number():
    return 7

def broken():
    raise OSError("no disk")

class Sad(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        raise self.fault

def sad():
    return Sad(ValueError("not\\ntoday"))

def leaving():
    return Sad(SystemExit(3))

constant = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory, which is nowhere on the path."""
    name = f"own_worlds_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def config(id: str, copies: int = 2, **rest: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=id, copies=copies, **rest)


def test_describe_gives_the_world_of_a_single_copy() -> None:
    world = describe(config("treasure_hunt", 1_000_000))
    assert [agent.name for agent in world.agents] == ["agent_0", "agent_1"]
    assert world.episode_steps == 100
    assert world.agents[0].observation.shape == (6, 5, 5)
    assert describe(config("gymnasium:CartPole-v1")).id == "gymnasium:CartPole-v1"


def test_a_users_gymnasium_function_is_called_once_for_each_copy(own: str) -> None:
    environment = make(config(f"{own}:cart", 3, settings={"max_episode_steps": 12}))
    assert isinstance(environment, GymnasiumEnvironment)
    assert sys.modules[own].calls == [{"max_episode_steps": 12}] * 3
    assert environment.world.episode_steps == 12
    assert environment.reset(0).present[0].observation.shape == (3, 4)
    environment.close()


def test_the_working_directory_is_searched_last(own: str) -> None:
    make(config(f"{own}:hunt")).close()
    assert sys.path[-1] == str(Path.cwd())


def test_a_users_parallel_environment_is_wrapped(own: str) -> None:
    environment = make(config(f"{own}:spread"))
    assert isinstance(environment, PettingZooEnvironment)
    assert len(environment.reset(0).present) == 3
    environment.close()
    with raises(
        ConfigurationError,
        "turn_mode_not_supported",
        value="sequential",
        environment=f"{own}:spread",
        expected="simultaneous",
        key="environment.turn_mode",
    ):
        make(config(f"{own}:spread", turn_mode="sequential"))


def test_a_users_environment_makes_all_copies_at_once(own: str) -> None:
    environment = make(config(f"{own}:hunt", 5, settings={"gem": 3.0}))
    assert isinstance(environment, TreasureHunt)
    assert (environment.copies, environment.settings.gem) == (5, 3.0)
    chosen = make(config(f"{own}:hunt_any", turn_mode="simultaneous"))
    assert isinstance(chosen, TreasureHunt)
    assert chosen.turn_mode == "simultaneous"
    with raises(
        ConfigurationError,
        "turn_mode_already_set",
        value="sequential",
        environment=f"{own}:hunt",
        key="environment.turn_mode",
    ):
        make(config(f"{own}:hunt", turn_mode="sequential"))


@pytest.mark.parametrize(
    ("name", "kind", "facts"),
    [
        ("few", "environment_copies_ignored", {"count": 2}),
        ("stubborn", "environment_function_without_copies", {"expected": "an Environment"}),
        ("number", "environment_function_result", {"value": "int"}),
        ("broken", "environment_function_refused_settings", {"reason": "OSError: no disk"}),
        ("missing", "name_not_in_module", {"name": "missing", "key": "environment.id"}),
        ("constant", "entry_not_callable", {"key": "environment.id"}),
    ],
)
def test_a_users_function_that_does_not_fit_is_refused_in_one_sentence(
    own: str, name: str, kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts) as caught:
        make(config(f"{own}:{name}"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "reason"), [("sad", "ValueError: not today"), ("leaving", "SystemExit: 3")])
def test_a_world_whose_first_look_raises_or_exits_is_told_in_one_sentence(own: str, name: str, reason: str) -> None:
    with raises(EnvironmentFault, "environment_creation_failed", environment=f"{own}:{name}", reason=reason):
        make(config(f"{own}:{name}"))


def test_a_users_module_that_cannot_be_imported_says_why(own: str, tmp_path: Path) -> None:
    (tmp_path / f"{own}_bad.py").write_text("1 / 0\n")
    with raises(ConfigurationError, "module_import_failed") as caught:
        make(config(f"{own}_bad:anything"))
    assert "ZeroDivisionError" in str(caught.value)
    (tmp_path / f"{own}_needy.py").write_text("import no_such_package_here\n")
    with raises(ConfigurationError, "module_missing", module="no_such_package_here"):
        make(config(f"{own}_needy:anything"))
    with raises(ConfigurationError, "module_not_found", key="environment.id", module=f"{own}_absent"):
        make(config(f"{own}_absent:anything"))


@pytest.mark.parametrize(
    ("id", "meant"),
    [
        ("treasure_hant", "treasure_hunt"),
        ("CartPole-v1", "gymnasium:CartPole-v1"),
        ("lunarlander", "gymnasium:LunarLander-v3"),
        ("mountain_car", "gymnasium:MountainCar-v0"),
        ("nothing_like_it_at_all", ""),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest_and_the_known_forms(id: str, meant: str) -> None:
    hint = f" (is {meant} meant?)" if meant else ""
    with raises(ConfigurationError, "unknown_environment", environment=id, hint=hint, key="environment.id") as caught:
        make(config(id))
    forms = {"gymnasium:ID", "gymnasium_multi:ID", "openspiel:GAME", "pettingzoo:MODULE", "module:function"}
    assert set(BUILT_IN) | forms <= {*re.findall(r"[\w:]+", str(caught.value))}


@pytest.mark.parametrize(
    ("id", "meant"),
    [
        ("w", "w:FUNCTION"),
        ("w.py", "w:FUNCTION"),
        ("./w.py", "w:FUNCTION"),
        ("w.World", "w:World"),
        ("inner/w.py", "inner.w:FUNCTION"),
        ("inner.w.World", "inner.w:World"),
    ],
)
def test_a_file_that_is_given_for_an_environment_is_told_as_module_and_function(
    id: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("w.py", "inner/w.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with raises(ConfigurationError, "unknown_environment", environment=id, hint=f" (is {meant} meant?)"):
        make(config(id))


def test_agents_of_pettingzoo_act_all_at_once_or_in_turn_as_turn_mode_says_X8() -> None:
    """X8: the parallel form where there is one; `sequential` takes the form that acts in turn."""
    for mode, form in ((None, PettingZooEnvironment), ("simultaneous", PettingZooEnvironment)):
        environment = make(config("pettingzoo:mpe2.simple_spread_v3", turn_mode=mode))
        assert type(environment) is form
        environment.close()
    environment = make(config("pettingzoo:mpe2.simple_spread_v3", turn_mode="sequential"))
    assert type(environment) is PettingZooAEC
    turn = environment.reset(0)
    for agent in (0, 1, 2, 0):
        assert [(one.agent, one.copies) for one in turn.present] == [(agent, None)]
        turn = environment.step([np.zeros(2, np.int64)])
    environment.close()


@pytest.mark.parametrize("key", ["copies", "turn_mode"])
def test_keys_of_environment_do_not_hide_in_its_settings(key: str) -> None:
    with raises(ConfigurationError, "setting_is_environment_key", field=key, key=f"environment.settings.{key}"):
        make(config("treasure_hunt", settings={key: 3}))


def test_a_missing_adapter_package_is_told_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with raises(ConfigurationError, "package_missing", package="gymnasium"):
        make(config("gymnasium:CartPole-v1"))


def test_worlds_are_made_without_importing_torch() -> None:
    code = (
        "import sys\n"
        "from protocol.config.run import EnvironmentConfig as C\n"
        "from workers.environments import registry\n"
        "from workers.environments.checks import checked_environment\n"
        "from workers.evaluation import baseline_process\n"
        "for id in ('treasure_hunt', 'gymnasium:CartPole-v1', 'pettingzoo:mpe2.simple_spread_v3'):\n"
        "    registry.describe(C(id=id))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=200, check=False).returncode == 0


def test_all_worlds_speak_one_interface() -> None:
    for id in ("treasure_hunt", "gymnasium:CartPole-v1", "pettingzoo:mpe2.simple_spread_v3"):
        environment = make(config(id, 3))
        turn = environment.reset(0)
        steps = 0
        for _ in range(6):
            for present in turn.present:
                space = environment.world.agents[present.agent].observation
                assert present.observation.shape == (3, *space.shape)
                assert present.observation.dtype == dtype_of(space)
                assert present.reward.dtype == np.float32
            turn = environment.step([np.zeros(3, np.int64) for _ in turn.present])
            steps += turn.env_steps
        assert steps == (9 if id == "treasure_hunt" else 18)
        environment.close()
