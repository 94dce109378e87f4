"""Exported policies inside a game: the clients' `Policy` and the guide's examples, over ONNX Runtime, without a run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.config.run import PPO
from protocol.spaces import Agent, Box, Dict, Discrete
from tests.clients.languages import CLIENTS, LANGUAGES, ONNX_RUNTIME, compiled
from tests.tools import require, skip_or_fail
from tests.workers.policies.exports import CASES, Case, alone, case, made
from workers.policies.build import state_size
from workers.policies.export.onnx import write_onnx

Write = Callable[[Case], Path]
CART = Agent(name="cart", observation=Box(shape=(4,)), action=Discrete(n=2))
MIXED = Agent(
    name="mixed",
    observation=Dict(spaces={"gear": Discrete(n=3), "sight": Box(shape=(2, 2), dtype="uint8")}),
    action=Dict(spaces={"arm": Box(shape=(2,)), "go": Discrete(n=3, start=1)}),
    action_mask=True,
)
PUSH = (0.1, 0.3, 2.0, 1.0)
"""What each number of a cart-pole has to do with pushing it to the right, for it to stay up."""
GAMES = {
    "cpp": """#define main of_the_example
#include "cartpole.cpp"
#undef main
struct Game {
  CartPoleSimulator cart{"game"};
  int steps = 0;
  Game() { cart.reset(); }
  bool over() const { return cart.fell() || cart.late(); }
  rookery::Numbers seen() const { return cart.state; }
  void step(const rookery::Numbers& action) { cart.step(action.at(0) == 1); ++steps; }
};
""",
    "javascript": """import { CartPole } from "./cart.js";
export class Game extends CartPole {
  get over() { return this.fell || this.late; }
  get seen() { return this.state; }
  step([push]) { super.step(push === 1); }
}
""",
}
DRIVERS = {
    "cpp": """#include <iostream>
#include <sstream>
#include "rookery_policy.hpp"
int main(int, char** arguments) {
  Ort::Env env;
  std::vector<Ort::Session> opened;
  try {
    opened.push_back(rookery::open_policy(env, arguments[1]));
    rookery::Policy tried(opened[0]);
  } catch (const rookery::Fault& fault) {
    std::cout << fault.what() << std::endl;
    return 0;
  }
  rookery::Policy policy(opened[0]);
  for (std::string line, seen, mask; std::getline(std::cin, line);) {
    if (line == "end") { policy.end_episode(); continue; }
    std::istringstream halves(line);
    seen = mask = "";
    std::getline(halves, seen, '|');
    std::getline(halves, mask, '|');
    const auto numbers = [](const std::string& text) {
      rookery::Numbers found;
      std::istringstream words(text);
      for (std::string word; words >> word;) found.push_back(std::stod(word));
      return found;
    };
    try {
      for (double number : policy.act(numbers(seen), numbers(mask))) std::cout << number << " ";
    } catch (const rookery::Fault& fault) { std::cout << fault.code; }
    std::cout << std::endl;
  }
}
""",
    "javascript": """import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";
import { Policy } from "rookery-simulator/policy";
const policy = await Policy.load(ort, process.argv[2]).catch((fault) => {
  console.log(fault.message);
  process.exit(0);
});
for (const line of readFileSync(0, "utf8").trim().split("\\n")) {
  if (line === "end") { policy.endEpisode(); continue; }
  const [seen, mask] = line.split("|").map((half) => half.trim().split(" ").filter(Boolean).map(Number));
  console.log(await policy.act(seen, { mask }).then((action) => action.join(" "), (fault) => fault.code));
}
""",
}


def program(language: str, code: str, folder: Path) -> list[str]:
    """Runs `code` as a project of its own in `folder` has it; skipped where ONNX Runtime is missing."""
    if language == "cpp":
        (folder / "game.cpp").write_text(code)
        return compiled(folder / "game.cpp", folder / "game", f"-I{folder}", *ONNX_RUNTIME)
    packages = CLIENTS / "javascript" / "node_modules"
    if not (packages / "onnxruntime-web").is_dir():
        skip_or_fail("the npm package onnxruntime-web is not installed")
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "onnxruntime-web").symlink_to(packages / "onnxruntime-web")
    (folder / "node_modules" / "rookery-simulator").symlink_to(CLIENTS / "javascript")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "play.js").write_text(code)
    return [require("node"), "--liftoff-only", str(folder / "play.js")]  # to optimize the runtime's code takes seconds


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """The file of a policy, each written once."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            skip_or_fail(f"{package} is not installed")
    folder = tmp_path_factory.mktemp("exports")

    def write(one: Case) -> Path:
        path = folder / f"{one.manifest.policy}.onnx"
        if not path.exists():
            write_onnx(path, one.manifest, one.deployed)
        return path

    return write


def played(one: Case, turns: dict[str, NDArray], ends: int) -> list[NDArray]:
    """The action's numbers, turn by turn, its memory emptied before turn `ends`."""
    found, state = [], torch.zeros(1, state_size(one.policy))
    for i in range(len(next(iter(turns.values())))):
        state = torch.zeros_like(state) if i == ends else state
        given = [
            state if p.name == "state" else torch.from_numpy(turns[p.name][i : i + 1]) for p in one.deployed.inputs
        ]
        with torch.no_grad():
            said = one.deployed.describe(tuple(given))
        state = said.get("next_state", state)
        found.append(np.concatenate([said[leaf.name].ravel() for leaf in one.interface.place.acted.leaves]))
    return found


REFUSED = {
    "": "size",
    "1 9 9 9 9 1|1 1": "size",  # so many numbers together, but one of them in the wrong place
    "1 9 9 9 9": "size",
    "nan 9 9 9 9|1 1 1": "value",
    "1 9 9 9 300|1 1 1": "value",
    "1 9 9 9 -1|1 1 1": "value",
    "0.5 9 9 9 9|1 1 1": "value",
    "1 9 9 9 9|1 2 1": "value",
    "1 9 9 9 9|0 0 0": "mask",
}
"""What is shown to the policy that is called mixed -> the code of the fault; none is remembered."""
REMEMBERS = {"core": {"name": "gru", "size": 5}, "hidden": []}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "iqn of frames", "sac", "dqn")]


@pytest.mark.parametrize("name", ["mixed", *SLOW])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_policy_in_a_game_acts_as_the_live_one_does_and_remembers(
    language: str, name: str, write: Write, tmp_path: Path
) -> None:
    one = case(name) if name in CASES else made("mixed", alone(MIXED), PPO(), REMEMBERS)
    command, model = program(language, DRIVERS[language], tmp_path), write(one)
    turns, refused = one.columns(8, 5), {"1 2": "size", **(REFUSED if name == "mixed" else {})}
    lines = [*refused]
    for i in range(8):
        seen, mask = (
            " ".join(str(float(x)) for key, column in turns.items() if key.startswith(role) for x in column[i].ravel())
            for role in ("observation", "action_mask")
        )
        lines += ["end"] * (i == 5) + [f"{seen}|{mask}"]
    ended = subprocess.run(
        [*command, str(model)], input="\n".join(lines), capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    faults, found = ended.stdout.splitlines()[: len(refused)], ended.stdout.splitlines()[len(refused) :]
    assert faults == list(refused.values())
    actions = np.array([line.split() for line in found], float)
    np.testing.assert_allclose(actions, played(one, turns, 5), rtol=1e-4, atol=1e-4)
    assert len(np.unique(actions, axis=0)) > 1, "turns that all do the same tell nothing"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_guides_example_plays_a_game_with_a_policy_that_can(language: str, write: Write, tmp_path: Path) -> None:
    """A cart-pole that is kept up for all 500 steps: the policy pushes to where the pole falls."""
    ending, kind = {"cpp": ("hpp", "cpp"), "javascript": ("js", "js")}[language]
    guide = (CLIENTS / "README.md").read_text(encoding="utf-8").split("\n## The trained policy in your game\n")[1]
    (code,) = re.findall(rf"```{kind}\n(.*?)```", guide.split("\n## ")[0], re.DOTALL)
    (tmp_path / f"game.{ending}").write_text(GAMES[language])
    if language == "javascript":
        (tmp_path / "cart.js").write_bytes((CLIENTS / "javascript" / "cart.js").read_bytes())
    command = program(language, code, tmp_path)
    one = made("cart", alone(CART), PPO(), {"hidden": []})
    with torch.no_grad():
        weights = dict(one.policy.named_parameters())
        weights["policy_weight"].zero_()
        weights["policy_weight"][:, 1] = torch.tensor(PUSH)
        weights["policy_bias"].zero_()
    (tmp_path / "cartpole.onnx").write_bytes(write(one).read_bytes())
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.stdout, ended.returncode) == ("500 steps\n", 0), ended.stderr


def others(cart: Path, folder: Path) -> list[Path]:
    """Files that hold no policy: none, text, half a policy, and what another program computes."""
    import onnx
    from onnx import TensorProto, helper

    found = [folder / f"{name}.onnx" for name in ("none", "text", "half", "other")]
    found[1].write_text("hello\n")
    found[2].write_bytes(cart.read_bytes()[:-1_000])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), found[3])
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_file_that_holds_no_policy_is_refused_with_what_to_do(language: str, write: Write, tmp_path: Path) -> None:
    command = program(language, DRIVERS[language], tmp_path)
    for path in others(write(made("cart", alone(CART), PPO(), {"hidden": []})), tmp_path):
        ended = subprocess.run(
            [*command, str(path)], input="1 2\n", capture_output=True, text=True, timeout=100, check=False
        )
        (said,) = ended.stdout.splitlines()
        assert ended.returncode == 0, ended.stderr
        assert said.endswith("(policy)")
        assert "rookery export --format onnx" in said
        assert path.name in said or path.stem == "other"


MISUSED = """import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";
import { Policy } from "rookery-simulator/policy";
const session = await ort.InferenceSession.create(readFileSync(process.argv[2]));
const code = (what) => Promise.resolve().then(what).then(() => "none", (fault) => fault.code);
const seen = [1, 9, 9, 9, 9], mask = [1, 1, 1], policy = new Policy(ort, session);
console.log(await code(() => new Policy(undefined, session)));
console.log(await code(() => new Policy(ort, { inputNames: ["observation"] })));
console.log(await code(() => Promise.all([policy.act(seen, { mask }), policy.act(seen, { mask })])));
const [other, later] = [new Policy(ort, session), new Policy(ort, session)];
console.log(await code(() => Promise.all([other.act(seen, { mask }), later.act(seen, { mask })])));
const first = policy.act(seen, { mask });
policy.endEpisode();
await first;
const again = await policy.act(seen, { mask }), begun = await new Policy(ort, session).act(seen, { mask });
console.log(again.every((number, i) => Math.abs(number - begun[i]) < 1e-5));
"""


def test_a_policy_that_is_asked_again_before_it_has_answered_does_not_mix_memories(
    write: Write, tmp_path: Path
) -> None:
    """As where two agents share one, or an episode ends while an action is computed; several may share a session."""
    command = program("javascript", MISUSED, tmp_path)
    model = write(made("mixed", alone(MIXED), PPO(), REMEMBERS))
    ended = subprocess.run(
        [*command, str(model)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout.split() == ["policy", "policy", "busy", "none", "true"], ended.stderr
