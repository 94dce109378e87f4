"""What a run recorded is learned again by its learners alone, to the same bits, whatever its actors and clock did."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.flows import runs
from tests.flows.test_lockstep import newest_checkpoints
from workers.sequential import Sequential

BOTH = {"agent_1": {"algorithm": {**runs.IQN, "buffer_capacity": 512, "priority_alpha": 0.6}}}


def made(data: dict[str, Any], folder: Path) -> None:
    """The whole of a run in this process."""
    sequential = Sequential(parse_run(data), folder)
    sequential.finish(sequential.run())
    del sequential
    gc.collect()  # its pages of counters


def orders(folder: Path, pattern: str) -> list[bytes]:
    """Which update had which segments, and what it said of itself, by policy."""
    found = sorted(folder.glob(pattern))
    return [path.read_bytes() for path in found]


def test_a_recorded_run_is_learned_again_to_the_same_bits_L1(tmp_path: Path) -> None:
    """A stream and replay whose buffer overflows; with another seed it is not the same."""
    data = runs.config(steps=2_400, policies=BOTH)
    policy = {**data["policy"], "record": True}
    made({**data, "policy": policy}, tmp_path / "first")
    again = {**data, "replay": str(tmp_path / "first")}
    made(again, tmp_path / "again")
    made({**again, "seed": 1}, tmp_path / "other")
    order = orders(tmp_path / "first", "datasets/*/order.jsonl")
    assert [len(lines.splitlines()) > 10 for lines in order] == [True, True]
    assert orders(tmp_path / "again", "replayed/*.jsonl") == order
    assert newest_checkpoints(tmp_path / "again") == newest_checkpoints(tmp_path / "first")
    assert newest_checkpoints(tmp_path / "other") != newest_checkpoints(tmp_path / "first")


def test_what_cannot_be_replayed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    data = runs.config(steps=3_200)
    with raises(ConfigurationError, "replay_order_missing", file=str(tmp_path)):
        Sequential(parse_run({**data, "replay": str(tmp_path)}), tmp_path / "run")
    with raises(ConfigurationError, "record_with_replay", key="policy.record"):
        parse_run({**data, "replay": "x", "policy": {**data["policy"], "record": True}})
    result = runs.rookery(
        "coordinator", str(runs.write({**data, "replay": "x"}, tmp_path)), "--run-dir", "r", cwd=tmp_path
    )
    assert (result.returncode, kinds_in(result.stderr)) == (2, ["replay_with_coordinator"])


@pytest.mark.slow
def test_an_asynchronous_run_of_several_actors_is_learned_again_to_the_same_bits_L1(tmp_path: Path) -> None:
    data = runs.config(steps=40_000, policies=BOTH, actors=3)
    for name, arguments in (("first", ["--record"]), ("again", ["--replay", str(tmp_path / "first" / "run")])):
        (tmp_path / name).mkdir()
        result = runs.train(data, tmp_path / name, *arguments, seconds=300)
        assert result.returncode == 0, result.stderr
    first, again = tmp_path / "first" / "run", tmp_path / "again" / "run"
    order = orders(first, "datasets/*/order.jsonl")
    assert orders(again, "replayed/*.jsonl") == order
    assert json.loads(order[0].splitlines()[-1])["train_steps"] >= 200
    assert newest_checkpoints(again) == newest_checkpoints(first)
