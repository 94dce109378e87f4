"""Cuts of lock-step: the newest that is whole, what is removed, a full disk, and what tells no state (L1)."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.config.run import IQN, PPO, EnvironmentConfig, Run, parse_run
from protocol.errors import ConfigurationError
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from workers.environments.registry import describe
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.lockstep_rounds import RoundLog
from workers.learning.buffers.segment_check import BufferContext
from workers.rollout.agent_collector import AgentCollector
from workers.runtime import lockstep_checkpoints as module
from workers.runtime.lockstep_checkpoints import LockstepCheckpoints, checkpoints_of

STATE = {"numbers": np.arange(3)}


def in_step(**keys: Any) -> Run:
    return parse_run({"schedule": "lockstep", "act_block": 4, "environment": {"copies": 8}, "actors": 2, **keys})


def test_the_newest_round_of_which_all_parts_are_there_is_gone_back_to_L1(tmp_path: Path) -> None:
    def cuts() -> LockstepCheckpoints:
        found = checkpoints_of(in_step(lockstep_checkpoint_rounds=5), ["one"], tmp_path)
        assert found is not None
        return found

    first = cuts()
    assert first.newest is None
    assert [number for number in range(15) if first.due(number)] == [4, 9, 14]
    parts = ["actor-0", "actor-1", "policy-one"]
    for number in (4, 9):
        for part in parts:
            first.write(part, number, STATE)
    first.write("actor-0", 14, STATE)
    again = cuts()
    assert again.newest == 9
    assert not again.due(9)
    assert again.read("actor-1")["numbers"].tolist() == [0, 1, 2]
    (folder,) = (tmp_path / "lockstep_checkpoints").iterdir()
    assert sorted(path.name for path in (folder / "4").iterdir()) == ["actor-1.safetensors", "policy-one.safetensors"]
    (folder / "9" / "actor-1.safetensors").write_bytes(b"")
    with raises(ConfigurationError, "lockstep_checkpoint_unreadable", file=folder / "9" / "actor-1.safetensors"):
        again.read("actor-1")
    assert checkpoints_of(in_step(seed=1), ["one"], tmp_path).newest is None  # type: ignore[union-attr]
    assert not folder.exists()
    assert checkpoints_of(in_step(lockstep_checkpoint_rounds=0), ["one"], tmp_path) is None
    assert checkpoints_of(in_step(), ["one"], None) is None


def test_without_room_for_a_cut_the_one_before_stays_and_it_is_said_L1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuts = LockstepCheckpoints(tmp_path, 1, ["actor-0"])
    cuts.write("actor-0", 0, STATE)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with caplog.at_level(logging.ERROR):
        cuts.write("actor-0", 1, STATE)
    assert "event=disk_full" in caplog.text
    assert LockstepCheckpoints(tmp_path, 1, ["actor-0"]).newest == 0


def test_the_log_of_rounds_tells_a_full_disk_in_a_sentence_and_the_run_goes_on_L1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = RoundLog(tmp_path / "rounds" / "one.jsonl", scripted.layout_of(scripted.config(PPO())), 2)
    weights = np.zeros(4, np.uint8)
    rounds.end(0, 2, 1, weights)
    kept = rounds.get_state()
    rounds.end(1, 3, 2, weights)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as changed, caplog.at_level(logging.ERROR):
        changed.setattr("workers.runtime.files.os.write", full)
        rounds.end(2, 4, 3, weights)
    assert "event=disk_full" in caplog.text
    rounds.set_state(kept)
    rounds.end(1, 3, 2, weights)
    rounds.close()
    assert [line[:10] for line in (tmp_path / "rounds" / "one.jsonl").read_text().splitlines()] == [
        '{"round": ',
        '{"round": ',
    ]


def test_a_world_that_tells_no_state_is_refused_unless_there_are_no_cuts_L1() -> None:
    world = EnvironmentConfig(id="gymnasium:Acrobot-v1")
    with raises(ConfigurationError, "lockstep_environment_without_state", environment=world.id):
        describe(world, cut=True)
    assert describe(world).agents
    scripted_policy = {"agent_1": {"algorithm": {"name": "scripted"}}}
    with raises(ConfigurationError, "lockstep_checkpoint_with_script", policy="agent_1"):
        in_step(policies=scripted_policy)
    assert not in_step(policies=scripted_policy, lockstep_checkpoint_rounds=0).lockstep_checkpoints


@pytest.mark.parametrize("frames", [1, 3])
def test_a_seat_that_is_put_back_finishes_the_segments_that_were_open_with_the_same_rows_L1(frames: int) -> None:
    policy = scripted.config(IQN(frames=frames) if frames > 1 else PPO(), 4)
    copies, cut, turns = 2, 6, 13
    ends: dict[int, tuple[list[int], list[int]]] = {3: ([1], []), 5: ([], [0]), 6: ([], [1]), 8: ([0], [])}

    def seat() -> tuple[scripted.Sender, AgentCollector]:
        sender = scripted.Sender(scripted.layout_of(policy), copies, 8)
        return sender, scripted.seat(sender, scripted.Performer(), copies)

    def act(chair: AgentCollector, first: int, last: int) -> None:
        for t in range(first, last):
            chair.act(scripted.present(t, copies, *ends.get(t, ([], []))), scripted.never)

    (whole, one), (rest, other) = seat(), seat()
    act(one, 0, cut)
    state = {name: array.copy() for name, array in one.get_state().items()}
    act(one, cut, turns)
    other.set_state(state, scripted.never)
    act(other, cut, turns)
    assert (one.segments == other.segments).all()
    assert one.episodes.take() == other.episodes.take()
    assert len(rest.finished) == len(whole.finished) - 1 == 2
    for expected, found in zip(whole.finished[1:], rest.finished, strict=True):
        for name in ("stream", "stream_sequence", "valid", "version_min", "version_max", "episode"):
            assert (expected[name] == found[name]).all(), name
        for name, column in whole.ring.columns.items():
            assert column[expected["slot"]].tobytes() == rest.ring.columns[name][found["slot"]].tobytes(), name


def test_a_stage_that_is_put_back_fills_the_batch_that_had_begun_L1() -> None:
    policy = scripted.config(PPO())
    sender = scripted.acted(policy, 2, copies=2)

    def stage() -> tuple[BatchAssembler, scripted.Source]:
        source = scripted.Source()
        context = BufferContext("one", scripted.layout_of(policy), source, scripted.counters())
        return BatchAssembler(context, scripted.Performer().interface, 3), source

    (first, came), (second, comes) = stage(), stage()
    came.arrive(sender.ring, sender.finished[0])
    assert not first.fill(Version(1, 1))
    second.set_state(first.get_state())
    for one, source in ((first, came), (second, comes)):
        source.arrive(sender.ring, sender.finished[1])
        assert one.fill(Version(1, 1))
    expected, found = first.take_batch(), second.take_batch()
    for name in ("observation", "action", "reward", "valid", "final_row", "final_observation"):
        assert getattr(expected, name).numpy().tobytes() == getattr(found, name).numpy().tobytes(), name
    assert first.provenance() == second.provenance()
