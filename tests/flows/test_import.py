"""`rookery import` as a command, in its own process, and a run that begins with what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gymnasium.spaces import Box
from safetensors.torch import load_file

from tests.faults import kinds_in
from tests.flows import runs
from tests.flows.dots import Reader
from tests.flows.test_start import alone, weights_in
from tests.workers.tools.test_import_weights import Canary, a_bomb


@pytest.mark.usefixtures("as_a_worker")
def test_a_run_begins_with_the_weights_of_a_torch_module(tmp_path: Path, memory_dir: Path) -> None:
    """What was trained elsewhere reads what is seen, to the bit, and the rest is new."""
    reader = Reader({"before": Box(0, 1, (2,))}, 8)
    reader.layers(torch.zeros(1, 1, 8, 8))  # has its last layer made
    theirs = {name.replace("layers.", "features.net."): one for name, one in reader.state_dict().items()}
    torch.save({"model": theirs, "optimizer": {"lr": 0.1}}, tmp_path / "theirs.pt")
    words = ["theirs.pt", "ours.safetensors", "--only", "model", "--rename", "features.net.=encoder.network.layers."]
    done = runs.rookery("import", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [f"encoder.network.layers.{name}" for name in ("0.weight", "0.bias", "3.weight", "3.bias")]
    assert [line.split()[0] for line in done.stdout.splitlines()[1:5]] == names

    network = {"encoder": {"entry": "tests.flows.dots:Reader", "width": 8}, "hidden": [8]}
    start = {"path": str(tmp_path / "ours.safetensors"), "freeze": "encoder"}
    world = {"id": "tests.flows.dots:make", "copies": 16}
    alone(
        runs.config(runs.PPO, steps=800, environment=world, policy={"network": network, "start": start}),
        tmp_path / "on",
    )
    told = json.loads((tmp_path / "on" / "run" / "summary.json").read_text())["starts"]["agent"]
    assert sorted(told["taken"]) == sorted(told["frozen"]) == sorted(names)
    assert (told["unused"], set(told["new"].values())) == ([], {"not there"})
    learned = weights_in(tmp_path / "on" / "run", "agent")
    ours = load_file(tmp_path / "ours.safetensors")
    assert all(torch.equal(learned[name], ours[name]) for name in names)
    assert torch.equal(ours[names[2]], reader.state_dict()["layers.3.weight"])


def test_a_hostile_file_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "x": Canary()}, tmp_path / "a.pt")
    done = runs.rookery("import", "a.pt", "b.safetensors", cwd=tmp_path)
    assert (done.returncode, done.stdout, kinds_in(done.stderr)) == (2, "", ["import_needs_code"])
    assert "system" in done.stderr, "what it wanted"
    assert [*tmp_path.iterdir()] == [tmp_path / "a.pt"]


def test_a_file_that_unpacks_to_more_than_the_limit_of_memory_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1_000)}, tmp_path / "a.pt")
    a_bomb(tmp_path / "a.pt", 12 * 2**30)
    done = runs.rookery("import", "a.pt", "b.safetensors", cwd=tmp_path)
    assert (done.returncode, kinds_in(done.stderr)) == (2, ["import_needs_memory"]), done.stderr
