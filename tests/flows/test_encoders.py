"""A user's own network on a user's own world, from the command line to the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.run_dir import write_config
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.flows import runs
from tests.flows.test_lockstep import bits, here, in_step
from tests.readme import blocks
from tests.tools import ROOT
from workers.policies.export import from_checkpoint, safetensors
from workers.sequential import Sequential

WORLD = {"id": "tests.flows.dots:make", "copies": 16}
PAIR = {"id": "tests.flows.dots:make_pair", "teams": {"both": "all"}}
CORNERS = {"id": "tests.flows.dots:make_corners"}
REPLAY = {"batch_size": 16, "buffer_capacity": 2_000, "learning_starts": 200, "replay_ratio": 0.5}
CODE, CORE = "tests.flows.dots:Reader", "tests.flows.dots:Trace"
OWN = {"encoder": {"entry": CODE, "width": 8}, "hidden": [8]}


def written(name: str, folder: Path) -> None:
    """The documents' module `name` is in the folder."""
    pages = [page.read_text() for page in (ROOT / "launch" / "docs" / "networks").glob("*.md")]
    (code,) = [one.text for page in pages for one in blocks(page) if f"# {name}\n" in one.text]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(code)


@pytest.mark.usefixtures("as_a_worker")
@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        ({**runs.PPO, "normalize_observation": True}, {**OWN, "core": {"name": "lstm", "size": 4}}),
        pytest.param({**runs.PPO, "frames": 2}, {"encoder": "cnn"}, marks=pytest.mark.slow),
        pytest.param(runs.PPO, {"core": {"entry": CORE, "rate": 0.25}, "hidden": [8]}, marks=pytest.mark.slow),
        pytest.param(runs.PPO, {"entry": "aim:Aim", "width": 8}, marks=pytest.mark.slow),
        pytest.param(
            {**REPLAY, "name": "dqn", "frames": 2},
            {"encoder": {"name": "impala", "channels": [4, 8]}},
            marks=pytest.mark.slow,
        ),
        pytest.param({**REPLAY, "name": "qmix", "frames": 2}, {"encoder": "cnn"}, marks=pytest.mark.slow),
    ],
    ids=["own module", "frames of a stream", "own core", "own network", "ours on frames", "a team's"],
)
def test_workers_give_the_bits_of_the_sequential_reference(
    algorithm: dict[str, Any],
    network: dict[str, Any],
    tmp_path: Path,
    memory_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = {**WORLD, **PAIR} if algorithm["name"] == "qmix" else WORLD
    if "entry" in network:
        world = {**WORLD, **CORNERS}
        written("aim.py", tmp_path / "workers")  # where they are started
        monkeypatch.syspath_prepend(tmp_path / "workers")
    data = in_step(algorithm, steps=800, environment=world, policy={"network": network}, lockstep_checkpoint_rounds=0)
    reference = here(data, tmp_path / "sequential")
    assert bits({**data, "actors": 2}, tmp_path / "workers") == reference


def test_a_module_that_fails_is_told_before_anything_is_learned(tmp_path: Path, memory_dir: Path) -> None:
    network = {"encoder": {"entry": "tests.flows.dots:Reader", "wide": 8}}
    data = runs.config(runs.PPO, steps=1_000, environment=WORLD, policy={"network": network})
    result = runs.train(data, tmp_path)
    assert (result.returncode, "network_not_built" in kinds_in(result.stderr)) == (1, True), result.stderr


def test_no_checkpoint_names_code_that_is_imported(tmp_path: Path, memory_dir: Path) -> None:
    both = {"network": {**OWN, "core": {"entry": CORE}}}
    data = runs.config(runs.PPO, steps=400, environment=WORLD, policy=both)
    run = tmp_path / "run"
    run.mkdir()
    write_config(parse_run(data), run)
    sequential = Sequential(parse_run(data), run)
    sequential.finish(sequential.run())
    (policy,) = (run / "checkpoints").iterdir()
    newest = max(policy.iterdir(), key=lambda path: int(path.name))
    told, network = from_checkpoint.read(newest)
    exported = tmp_path / "exported.safetensors"
    safetensors.save_policy(exported, told, network)
    with raises(ConfigurationError, "file_names_code", value=CORE):
        safetensors.load_policy(exported, {CODE})
    safetensors.load_policy(exported, {CODE, CORE})  # as members of a league are loaded, of the run that names it
    manifest = newest / "manifest.json"
    written = manifest.read_text()
    for part, kept in (("encoder", CORE), ("core", CODE)):
        changed = json.loads(written)
        changed["config"]["network"][part]["entry"] = "nowhere:One"
        manifest.write_text(json.dumps(changed))
        with raises(ConfigurationError, "file_names_code", value=f"nowhere:One, {kept}"):
            from_checkpoint.read(newest)
    for other, code in (
        ({"entry": CODE}, CODE),
        ({"encoder": {"entry": CORE}, "core": {"entry": CODE}}, f"{CODE}, {CORE}"),
    ):  # which the run names as something else
        changed["config"]["network"] = other
        manifest.write_text(json.dumps(changed))
        with raises(ConfigurationError, "file_names_code", value=code):
            from_checkpoint.read(newest)


def test_the_documents_core_remembers_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_dir: Path
) -> None:
    """It is tried, and goes on from a checkpoint."""
    written("traces.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    core = {"core": {"entry": "traces:Traces", "size": 8}}
    (tmp_path / "run").mkdir()
    for steps in (400, 800):
        run = parse_run(runs.config(runs.PPO, steps=steps, policy={"network": core}))
        write_config(run, tmp_path / "run")
        sequential = Sequential(run, tmp_path / "run")
        sequential.finish(sequential.run())
