"""What an id may have meant, who registers it, and that no package is ever guessed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from protocol.errors.packages import DISTRIBUTION_OF, missing_module, not_installed
from tests.faults import raises
from workers.environments.registry import make

ROOT = Path(__file__).resolve().parents[3]


def refusal(id: str) -> Any:
    with pytest.raises(ConfigurationError) as caught:
        make(EnvironmentConfig(id=id, copies=1))
    return caught.value


@pytest.mark.parametrize(
    ("id", "kind", "meant"),
    [
        ("pettingzoo:sisl.pursuit_v4", "module_missing", "pettingzoo:pettingzoo.sisl.pursuit_v5"),
        ("pettingzoo:simple_spread_v3", "module_missing", "pettingzoo:mpe2.simple_spread_v3"),
        ("pettingzoo:connect_four_v3", "module_missing", "pettingzoo:pettingzoo.classic.connect_four_v3"),
        ("pettingzoo:pettingzoo.sisl.pursuit_v3", "pettingzoo_id_unusable", "pettingzoo:pettingzoo.sisl.pursuit_v5"),
        ("pettingzoo:mpe2.simple_tag_v1", "pettingzoo_id_unusable", "pettingzoo:mpe2.simple_tag_v3"),
        ("pettingzoo:pettingzoo.mpe.simple_tag_v2", "pettingzoo_id_unusable", "pettingzoo:mpe2.simple_tag_v3"),
        ("gymnasium:LunarLander-v0", "gymnasium_id_unknown", "gymnasium:LunarLander-v3"),
        ("gymnasium:CartPole-v9", "gymnasium_id_unknown", "gymnasium:CartPole-v1"),
        ("gymnasium:cartpole", "gymnasium_id_unknown", "gymnasium:CartPole-v1"),
        ("gymnasium:Acrobot_v1", "gymnasium_id_unknown", "gymnasium:Acrobot-v1"),
    ],
)
def test_an_id_that_does_not_fit_is_answered_with_the_one_that_is_installed(id: str, kind: str, meant: str) -> None:
    told = refusal(id)
    assert (told.kind, told.key) == (kind, "environment.id")
    assert re.search(rf"[( ]{re.escape(meant)}[ ?]", told.hint), told.hint
    assert kind != "module_missing" or "pip" not in str(told)


@pytest.mark.parametrize("module", ["sisl", "sklear", "no_such_module_here", "simple_spread_v3", "protobuf"])
def test_a_module_that_nobody_knows_is_only_said_to_be_missing(module: str) -> None:
    told = not_installed("some:id", f"{module}.inner")
    assert (told.kind, told.module) == ("module_missing", module)
    assert "pip" not in str(told)


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("cv2", "opencv-python"),
        ("sklearn.linear_model", "scikit-learn"),
        ("_cffi_backend", "cffi"),
        ("PIL", "pillow"),
        ("pyspiel", "open_spiel"),
        ("Box2D.b2", "gymnasium[box2d]"),
        ("ale_py", "ale-py"),
    ],
)
def test_a_module_of_the_table_is_told_with_its_distribution(module: str, package: str) -> None:
    told = not_installed("some:id", module)
    assert (told.kind, told.package) == ("package_missing", package)


def test_the_module_that_is_really_missing_is_named_whoever_raises_it_anew() -> None:
    needed = ModuleNotFoundError("No module named 'pandas'", name="pandas")
    anew = ModuleNotFoundError("the module highway_env could not be imported")
    anew.__cause__ = needed
    assert missing_module(anew) == "pandas"
    assert missing_module(ValueError("something else")) == ""


@pytest.mark.parametrize(
    ("id", "package"),
    [
        ("gymnasium:ALE/Pong-v5", "ale-py"),
        ("gymnasium:MiniGrid-DoorKey-5x5-v0", "minigrid"),
        ("gymnasium:BabyAI-GoToObj-v0", "minigrid"),
        ("gymnasium:highway-fast-v0", "highway-env"),
        ("gymnasium:FlappyBird-v0", "flappy-bird-gymnasium"),
        ("gymnasium:MinAtar/Breakout-v1", "MinAtar"),
        ("gymnasium:rware-tiny-2ag-v2", "rware"),
    ],
)
def test_an_id_whose_module_is_missing_says_which(id: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ale_py", "minigrid", "highway_env", "flappy_bird_gymnasium", "minatar", "rware"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(gymnasium.registry, id.partition(":")[2], raising=False)  # as where it was never installed
    with raises(ConfigurationError, "package_missing", package=package, value=id, key="environment.id"):
        make(EnvironmentConfig(id=id, copies=1))


@pytest.mark.parametrize(
    ("module", "id", "function"),
    [
        ("minigrid", "MiniGrid-Mine-v0", ""),
        ("ale_py", "ALE/Mine-v0", ""),
        ("miniworld", "MiniWorld-Mine-v0", ""),
        ("minatar.gym", "MinAtar/Mine-v0", "register_envs"),
    ],
)
def test_the_module_that_registers_an_id_is_imported(
    module: str, id: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = f"gymnasium.register({id!r}, 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    if file.parent != tmp_path:
        (file.parent / "__init__.py").touch()  # otherwise one that is installed is found before it
    file.write_text("import gymnasium\n" + (f"def {function}():\n    {call}" if function else call))
    package = module.partition(".")[0]
    monkeypatch.syspath_prepend(tmp_path)
    for known in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, known)
    try:
        environment = make(EnvironmentConfig(id=f"gymnasium:{id}", copies=1))
        assert environment.world.id == f"gymnasium:{id}"
        environment.close()
    finally:
        gymnasium.registry.pop(id, None)
        for known in [name for name in sys.modules if name.partition(".")[0] == package]:
            sys.modules.pop(known)


def test_installing_is_advised_out_of_the_table_alone() -> None:
    """Besides, by what this software itself is called: its extras, and its own folder (`-e .`)."""
    advice = re.compile(r"pip install (?!-e \.)['\"]?(\S+)")
    found = {
        (str(path.relative_to(ROOT)), what)
        for room in ("protocol", "workers", "launch")
        for path in (ROOT / room).rglob("*.py")
        for what in advice.findall(path.read_text())
    }
    assert {file for file, _ in found} <= {"protocol/errors/distribution.py", "protocol/errors/sentences.py"} | {
        "protocol/errors/packages.py"
    }
    assert {what for file, what in found if file.endswith("sentences.py")} == {"{package}'\","}
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+(\[[a-z0-9]+\])?", package) for package in DISTRIBUTION_OF.values())
