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
from tests.flows.test_lockstep import as_a_worker, bits, here, in_step
from workers.policies.export import from_checkpoint, safetensors
from workers.sequential import Sequential

__all__ = ["as_a_worker"]

WORLD = {"id": "tests.flows.dots:make", "copies": 16}
REPLAY = {"batch_size": 16, "buffer_capacity": 2_000, "learning_starts": 200, "replay_ratio": 0.5}
CODE = "tests.flows.dots:Reader"
OWN = {"encoder": {"entry": CODE, "width": 8}, "hidden": [8]}


@pytest.mark.usefixtures("as_a_worker")
@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        ({**runs.PPO, "normalize_observation": True}, {**OWN, "recurrent": "lstm", "recurrent_size": 4}),
        ({**REPLAY, "name": "dqn", "frames": 2}, {"encoder": {"name": "impala", "channels": [4, 8]}}),
    ],
    ids=["own module", "ours on frames"],
)
def test_workers_give_the_bits_of_the_sequential_reference(
    algorithm: dict[str, Any], network: dict[str, Any], tmp_path: Path, memory_dir: Path
) -> None:
    data = in_step(algorithm, steps=800, environment=WORLD, policy={"network": network}, lockstep_checkpoint_rounds=0)
    reference = here(data, tmp_path / "sequential")
    assert bits({**data, "actors": 2}, tmp_path / "workers") == reference


def test_a_module_that_fails_is_told_before_anything_is_learned(tmp_path: Path, memory_dir: Path) -> None:
    network = {"encoder": {"entry": "tests.flows.dots:Reader", "wide": 8}}
    data = runs.config(runs.PPO, steps=1_000, environment=WORLD, policy={"network": network})
    result = runs.train(data, tmp_path)
    assert (result.returncode, "encoder_not_built" in kinds_in(result.stderr)) == (1, True), result.stderr


def test_no_checkpoint_names_code_that_is_imported(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.config(runs.PPO, steps=400, environment=WORLD, policy={"network": OWN})
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
    with raises(ConfigurationError, "file_names_code", value=CODE):
        safetensors.load_policy(exported)
    safetensors.load_policy(exported, {CODE})  # as members of a league are loaded, of the run that names it
    manifest = newest / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["config"]["network"]["encoder"]["entry"] = "tests.flows.nowhere:Reader"
    manifest.write_text(json.dumps(changed))
    with raises(ConfigurationError, "file_names_code", value="tests.flows.nowhere:Reader"):
        from_checkpoint.read(newest)
