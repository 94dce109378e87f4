"""The clients as another project has them: found by CMake where they were installed, and with types for TypeScript."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.languages import CLIENTS
from tests.tools import require, skip_or_fail

FINDS = """cmake_minimum_required(VERSION 3.16)
project(game LANGUAGES CXX)
find_package(rookery-simulator 0.1.0 REQUIRED)
add_executable(game game.cpp)
target_link_libraries(game PRIVATE rookery::simulator)
"""
GAME = """#include <rookery.hpp>
int main() {
  try {
    rookery::Options impatient;
    impatient.patience = 0.1;
    rookery::Simulator("tcp://127.0.0.1:9", "game", impatient);
  } catch (const rookery::Timeout&) {
    return 7;
  }
}
"""
RIGHT = """
import * as ort from "onnxruntime-web";
import { connect, RunOver, type Options } from "rookery-simulator";
import { Policy } from "rookery-simulator/policy";
const options: Options = { patience: 5 };
const sim = await connect("tcp://127.0.0.1:5700", "game-0", options);
const action: number[] | null = await sim.act(new Float32Array([1, 2]), 0.5, { mask: [true, false] });
const all = await sim.actAll({ a: [1], b: [2] }, { a: 1 });
if (all) console.log(all.a[0] + (action?.[0] ?? 0));
await sim.endEpisode(1, { truncated: true, observation: [0, 1] });
const policy = new Policy(ort, await ort.InferenceSession.create("game.onnx"));
const moves: number[] = await policy.act([1, 2], { mask: [1, 0] });
console.log(moves[0], sim.admitted?.places[0].observation[0].dtype, await sim.ping(), RunOver.name);
"""
WRONG = """
import { connect } from "rookery-simulator";
const sim = await connect("tcp://127.0.0.1:5700", 7);
const action: number[] = await sim.act([1]);
await sim.act("left");
await sim.reset();
"""


@pytest.mark.slow
def test_cmake_finds_the_cpp_client_where_it_was_installed(tmp_path: Path) -> None:
    cmake = require("cmake")
    require("g++")
    if not Path("/usr/include/zmq.h").exists():
        skip_or_fail("libzmq3-dev is not installed")

    def run(*words: object) -> None:
        ended = subprocess.run([cmake, *map(str, words)], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    run("-S", CLIENTS / "cpp", "-B", tmp_path / "build")
    run("--install", tmp_path / "build", "--prefix", tmp_path / "prefix")
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "CMakeLists.txt").write_text(FINDS)
    (tmp_path / "game" / "game.cpp").write_text(GAME)
    run("-S", tmp_path / "game", "-B", tmp_path / "made", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("--build", tmp_path / "made")
    assert subprocess.run([tmp_path / "made" / "game"], check=False).returncode == 7


def test_typescript_knows_what_the_client_takes_and_gives(tmp_path: Path) -> None:
    compiler = CLIENTS / "javascript" / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.is_file():
        skip_or_fail("the npm package typescript is not installed")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "rookery-simulator").symlink_to(CLIENTS / "javascript")
    (tmp_path / "node_modules" / "onnxruntime-web").symlink_to(
        CLIENTS / "javascript" / "node_modules" / "onnxruntime-web"
    )
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for name, code in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / f"{name}.ts").write_text(code)
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    options.append("--skipDefaultLibCheck")  # TypeScript's own
    ended = subprocess.run(
        [require("node"), str(compiler), *options, "right.ts", "wrong.ts"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.findall(r"^(\w+)\.ts\((\d+),", ended.stdout, re.MULTILINE) == [("wrong", str(n)) for n in (3, 4, 5, 6)]


def test_what_is_declared_for_typescript_is_what_there_is() -> None:
    """The package as others get it has the declarations of all that it exports."""
    package = json.loads((CLIENTS / "javascript" / "package.json").read_text())
    for name in ("node", "simulator", "policy"):
        code, types = ((CLIENTS / "javascript" / f"{name}.{ending}").read_text() for ending in ("js", "d.ts"))
        classes = re.compile(r"^export (?:async )?(?:class|function) (\w+)", re.MULTILINE)
        assert set(classes.findall(code)) <= set(classes.findall(types)), name
        assert {"./" + f"{name}.d.ts"} <= {entry["types"] for entry in package["exports"].values() if "types" in entry}
    assert {"*.js", "*.d.ts"} == set(package["files"])
