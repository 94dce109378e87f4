"""`rookery model`: what a network is made of, before anything starts."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest
from click.testing import CliRunner

from launch.cli.main import main
from tests.faults import kinds_in
from tests.tools import skip_or_fail

pytestmark = pytest.mark.usefixtures("forked_rookery")


def model(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`rookery model`, to its end."""
    return subprocess.run(["rookery", "model", *arguments], capture_output=True, text=True, timeout=120, check=False)


def described(*arguments: str) -> list[dict]:
    """What it prints as JSON."""
    result = model(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    found: list[dict] = json.loads(result.stdout)
    return found


def test_it_counts_what_two_towers_have() -> None:
    (found,) = described("cartpole", "--set", "policy.network.hidden=[8]")
    assert (found["parameters"], found["operations_a_row"]) == (
        2 * (4 * 8 + 8) + 8 * 2 + 2 + 8 + 1,
        2 * (2 * 32 + 16 + 8),
    )
    assert found["sees"] == [{"part": "observation", "shape": [4], "dtype": "float32", "read_by": "as numbers"}]


def test_it_says_which_leaf_is_read_by_what() -> None:
    (found,) = described("--env", "tests.flows.dots:make", "--set", "policy.network.hidden=[]")
    assert [(part["part"], part["read_by"]) for part in found["sees"]] == [
        ("before", "MLP, 2 features"),
        ("picture", "CNN, 128 features"),
    ]
    kernels = [layer["shapes"][0] for layer in found["layers"] if layer["kind"] == "Conv2d"]
    assert kernels == [[16, 1, 3, 3], [32, 16, 3, 3]]


def test_a_picture_shows_what_each_layer_reads_and_gives() -> None:
    result = model("--env", "tests.flows.dots:make", "--set", "policy.network.hidden=[8]", "--picture")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "%% agent",
        "flowchart LR",
        '  n0["observation.picture<br/>8x8 uint8"] --> n1["Conv2d 16x3x3<br/>gives 16x8x8"]',
        '  n1 --> n2["Conv2d 32x16x3x3<br/>gives 32x6x6"]',
        '  n2 --> n3["Linear 128x1152<br/>gives 128"]',
        '  n3 & n4["observation.before<br/>2 float32"] --> n5["layer_0 130x16<br/>gives 16"]',
        '  n5 --> n6["policy 8x2<br/>gives 2"]',
        '  n5 --> n7["value 8<br/>gives 1"]',
        '  n6 --> n8["action"]',
        '  n7 --> n9["value"]',
    ]


def test_a_module_that_cannot_be_built_is_told_in_one_sentence() -> None:
    result = model("--env", "tests.flows.dots:make", "--set", "policy.network.encoder={entry: 'tests.flows.dots:make'}")
    assert (result.returncode, kinds_in(result.stderr)) == (2, ["network_not_built"])


def test_only_one_thing_is_printed() -> None:
    assert CliRunner().invoke(main, ["model", "cartpole", "--json", "--picture"]).exit_code == 2


@pytest.mark.slow
def test_what_actors_in_other_languages_cannot_compute_is_said_before_the_run() -> None:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            skip_or_fail(f"{package} is not installed")
    code = "tests.workers.policies.export.test_graph:Rounded"
    world = (
        "--set",
        "environment.id=synthetic",
        "--set",
        "environment.settings={agents: 2, image: [2, 3, 1], actions: 2}",
    )
    result = model(*world, "--set", f"policies.agent_0.network.encoder={{entry: '{code}'}}", "--graph")
    assert (result.returncode, kinds_in(result.stderr)) == (2, ["network_not_recorded"]), result.stderr
    assert code in result.stderr
    assert "agent_1: its graph has" in result.stdout
