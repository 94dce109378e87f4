"""Games in JavaScript and in C++: simulators of a run by the commands of the clients' guide, and then players of what
was trained, by the guide's own examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.languages import CLIENTS, LANGUAGES
from tests.clients.test_policies import GAMES, program
from tests.ports import choose_block
from tests.tools import require, skip_or_fail
from tests.ways.terminal import Terminal, terminal

pytestmark = pytest.mark.slow

PORT = "5700"
"""In the guide."""


def guide(cloned: Path, port: int) -> list[str]:
    """Lines of its plain blocks, which are commands."""
    text = (cloned / "protocol" / "clients" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = (
        line.partition("      (")[0].strip().replace(PORT, str(port)) for block in blocks for line in block.splitlines()
    )
    return [line for line in lines if line]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_game_trains_a_policy_and_then_plays_with_it(
    language: str, tmp_path: Path, cloned: Path, variables: dict[str, str], shell: Terminal
) -> None:
    port = choose_block()
    assert port is not None
    commands = guide(cloned, port)
    begin = "node " if language == "javascript" else "./cartpole "
    if language == "javascript":
        require("node")
        packages = CLIENTS / "javascript" / "node_modules"
        if not (packages / "zeromq").is_dir():
            skip_or_fail("the npm package zeromq is not installed")
        (cloned / "protocol" / "clients" / "javascript" / "node_modules").symlink_to(packages)  # as `npm install` does
    else:
        require("g++")
        shell.run(next(line for line in commands if line.startswith("g++ ") and line.endswith("-lzmq")))
    (train,) = [line for line in commands if line.startswith("rookery train external")]
    (play,) = [line for line in commands if line.startswith(begin)]
    shell.type(f"{train} --steps 120000 --seed 0")
    shell.shows("the run's page:")
    with terminal(cloned, variables) as second:
        eight = " & ".join(re.sub(r"cart-\d", f"cart-{i}", play) for i in range(8))
        second.type(f"({eight} & wait)")
        shell.shows("run folder:", 400)
        assert "mean return of an episode" in shell.ended()
        second.ended()
    shell.run("rookery export runs/carts --format onnx --out cartpole.onnx")
    text = (CLIENTS / "README.md").read_text(encoding="utf-8")
    ending, kind = {"cpp": ("hpp", "cpp"), "javascript": ("js", "js")}[language]
    (code,) = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / f"game.{ending}").write_text(GAMES[language])
    if language == "javascript":
        (tmp_path / "own" / "cart.js").write_bytes((CLIENTS / "javascript" / "cart.js").read_bytes())
    command = program(language, code, tmp_path / "own")
    (tmp_path / "own" / "cartpole.onnx").write_bytes((cloned / "cartpole.onnx").read_bytes())
    told = shell.run(f"cd {tmp_path / 'own'} && {' '.join(command)}")
    assert int(told.split()[0]) > 150, "a random player does about 22 steps"
