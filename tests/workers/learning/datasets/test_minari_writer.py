"""What was recorded becomes episodes of Minari, and read from there it means what it meant (J5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from gymnasium import spaces
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces.gymnasium import agent_from_gymnasium
from tests.faults import kinds_in, raises
from tests.tools import skip_or_fail
from tests.workers.learning.datasets.test_reader import COPIES, Bench
from workers.learning.datasets.minari_datasets import MinariDataset, episodes, write_minari
from workers.learning.datasets.reader import RecordedDataset
from workers.learning.datasets.trajectory import Trajectory
from workers.tools.dataset import main

try:
    import minari
except ImportError:
    skip_or_fail("minari is not installed")


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets lie in a folder of this test."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def stretch(sequence: int, seen: list[float], ends: str, finals: tuple[float, ...] = (), stream: int = 0) -> Trajectory:
    """A row for each letter of `ends` (t: terminated, c: cut off, -: neither) after one of history, whose observation
    is -1; `seen` has one more than there are rows."""
    n = len(ends)

    def flags(letter: str) -> NDArray[np.bool_]:
        return np.array([False, *(one == letter for one in ends), False])

    columns = {
        "observation": np.array([[-1.0], *([one] for one in seen)], np.float32),
        "action": np.array([9, *(int(one) % 3 for one in seen)]),
        "action_mask": np.array([[True, False, True]] * (n + 2)),
        "reward": np.array([99, *(10 * one for one in seen)], np.float32),
        "terminated": flags("t"),
        "truncated": flags("c"),
    }
    cut = np.flatnonzero(columns["truncated"]) - 1
    last = {"final_observation": np.array([[one] for one in finals], np.float32).reshape(-1, 1)}
    return Trajectory("actor-0", 1, stream, sequence, 1, n, columns, cut, last)


class Scripted(RecordedDataset):
    """Stretches as they are given."""

    def __init__(self, *given: Trajectory) -> None:
        self.name, self._given = "scripted", given
        seen = spaces.Box(-100.0, 100.0, (1,), np.float32)
        self.agent = agent_from_gymnasium("agent", seen, spaces.Discrete(3), "agent", action_mask=True)

    def lengths(self) -> list[int]:
        return [one.valid for one in self._given]

    def stretches(self):
        yield from self._given


GIVEN = (
    stretch(1, [3, 4, 5, 6], "tc-", finals=(70.0,)),  # ends two episodes and begins a third; arrives first
    stretch(0, [0, 1, 2, 3], "---"),
    stretch(3, [20, 21, 22], "--"),  # sequence 2 was dropped
    stretch(4, [22, 23], "t"),
    stretch(0, [50, 51], "-", stream=1),
)


def test_segments_of_a_stream_join_to_episodes_with_what_was_seen_after_the_last_action_J5() -> None:
    found = [
        (one.columns["observation"][:, 0].tolist(), one.behind["observation"].tolist(), one.terminated)
        for one in episodes(GIVEN)
    ]
    assert found == [
        ([0, 1, 2, 3], [[3]], True),  # behind a termination: the observation before it
        ([4], [[70]], False),  # cut off by the world: its true last one
        ([5], [[6]], False),  # cut off by the gap: what came next
        ([20, 21, 22], [[22]], True),
        ([50], [[51]], False),
    ]


def test_what_minari_was_given_is_read_back_with_the_same_meaning_J5() -> None:
    assert write_minari(Scripted(*GIVEN), "test/there-v0", "as told") == (5, 10)
    kept = minari.load_dataset("test/there-v0")
    assert kept.storage.metadata["description"] == "as told"
    assert [one.observations[:, 0].tolist() for one in kept.iterate_episodes()][1] == [4, 70]
    reader = MinariDataset("test/there-v0")
    assert reader.agent == Scripted().agent
    assert reader.lengths() == [4, 1, 1, 3, 1]
    first, second, *_ = reader.stretches()
    assert first.columns["observation"][:, 0].tolist() == [0, 1, 2, 3, 3]
    assert first.columns["action"][:4].tolist() == [0, 1, 2, 0]
    assert first.columns["reward"][:4].tolist() == [0, 10, 20, 30]
    assert first.columns["terminated"][:4].tolist() == [False, False, False, True]
    assert first.columns["action_mask"].tolist() == [[True, False, True]] * 4 + [[True] * 3]
    assert (second.final_row.tolist(), second.finals["final_observation"].tolist()) == ([0], [[70]])


def test_the_command_writes_what_a_run_recorded_J5(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "run")
    bench.feed(3)
    bench.recorder.arrivals("one")
    bench.recorder.close()
    done = CliRunner().invoke(main, [str(tmp_path / "run"), "--minari", "test/run-v0"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    reader = MinariDataset("test/run-v0")
    assert sum(reader.lengths()) == sum(RecordedDataset(bench.folder, "one").lengths()) > COPIES
    assert done.output == f"test/run-v0: {len(reader.lengths())} episodes, {sum(reader.lengths())} rows\n"
    for arguments, kind, facts in (
        (["run", "--minari", "test/run-v0"], "minari_write_failed", ["'test/run-v0'"]),
        (["run", "--minari", "no id at all"], "minari_write_failed", ["'no id at all'"]),
        (["run", "--policy", "two", "--minari", "test/x-v0"], "policy_option_needed", ["'two'", "one"]),
        (["nowhere", "--minari", "test/x-v0"], "no_recorded_segments", [str(tmp_path / "nowhere")]),
    ):
        said = CliRunner().invoke(main, [str(tmp_path / arguments[0]), *arguments[1:]])
        assert said.exit_code == 2, said.output
        assert kinds_in(said.output) == [kind]
        assert [fact for fact in facts if fact not in said.output] == []
        assert said.output.count("\n") == 1


def test_nothing_recorded_is_refused_and_a_missing_package_named_J5(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(ConfigurationError, "recording_empty", dataset="scripted"):
        write_minari(Scripted(), "test/none-v0", "")
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with raises(ConfigurationError, "minari_missing"):
        write_minari(Scripted(*GIVEN), "test/none-v0", "")
