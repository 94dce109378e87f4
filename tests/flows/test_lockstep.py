"""Lock-step: the bits of a run do not depend on how many actors there are, nor on how segments travel (L1, S1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.flows import runs

WORLD = {"copies": 16, "settings": {"width": 9, "height": 9, "turns": 20}}


def in_step(algorithm: dict[str, Any] = runs.PPO, steps: int = 3_200, **keys: Any) -> dict[str, Any]:
    """16 copies in four blocks."""
    return runs.config(algorithm, steps=steps, **{"environment": WORLD, "schedule": "lockstep", "act_block": 4, **keys})


def bits(data: dict[str, Any], folder: Path, *arguments: str, seconds: float = runs.PATIENCE) -> dict[str, bytes]:
    """Every round's data, losses, returns and weights, and the last checkpoint of every policy."""
    folder.mkdir()
    result = runs.train(data, folder, *arguments, seconds=seconds)
    assert result.returncode == 0, result.stderr
    run = folder / "run"
    found = {path.name: path.read_bytes() for path in (run / "rounds").iterdir()}
    for policy in (run / "checkpoints").iterdir():
        newest = max(policy.iterdir(), key=lambda path: int(path.name))
        for name in ("weights", "optimizer"):
            found[f"{policy.name}/{newest.name}/{name}"] = (newest / f"{name}.safetensors").read_bytes()
    return found


def test_two_actors_give_the_bits_of_the_sequential_reference_L1(tmp_path: Path, memory_dir: Path) -> None:
    """PPO beside IQN, with what happened in each round; another seed gives others."""
    data = in_step(policies={"agent_1": {"algorithm": runs.IQN}})
    reference = bits({**data, "actors": 4}, tmp_path / "sequential", "--sequential")
    rounds = [json.loads(line) for line in reference["agent_0.jsonl"].splitlines()]
    assert [line["round"] for line in rounds] == [*range(12)]
    assert len(reference) == 6
    assert bits({**data, "actors": 2}, tmp_path / "two") == reference
    assert runs.files(memory_dir) == []
    other = bits(data, tmp_path / "other", "--sequential", "--seed", "1")
    assert not {*other.items()} & {*reference.items()}
