"""Recorded segments: bit for bit what lay in the ring, whole files or none, and nothing in them believed (J5)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from protocol.config.run import PPO, Run
from protocol.errors import ConfigurationError
from protocol.experience.ring_buffer import Ring, place_of
from protocol.memory.shared_file import Counters
from tests.faults import raises
from tests.workers import scripted
from workers.learning.datasets import recorder as recording
from workers.learning.datasets.dataset_manifest import FILES, MANIFEST, read_manifest
from workers.learning.datasets.reader import RecordedDataset, read_segments
from workers.learning.datasets.recorder import SegmentRecorder, begin
from workers.planning.policy_plan import PolicyPlan, plan_policies

COPIES = 3


def plan_of(**policy: Any) -> tuple[Run, PolicyPlan]:
    settings = {
        "segment_length": 4,
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 1},
        "record": True,
        **policy,
    }
    run = Run.model_validate({"environment": {"copies": COPIES}, "policy": settings, "steps": 1_000})
    return run, plan_policies(run, scripted.WORLD)["one"]


class Bench:
    """A recorder with its surroundings."""

    def __init__(self, folder: Path, incarnation: int = 1) -> None:
        self.run, self.plan = plan_of()
        self.source, self.counters = scripted.Source(), Counters(None, *scripted.LearnerReport.names(["one"]))
        self.folder = begin(self.run, self.plan, incarnation, folder)
        form = "one", self.plan.layout, self.folder, incarnation, self.counters
        self.recorder = SegmentRecorder(self.source, *form)

    def feed(self, segments: int, blocks: int | None = None) -> Ring:
        sender = scripted.acted(scripted.config(PPO(), 4), segments, COPIES, blocks)
        for records in sender.finished:
            self.source.arrive(sender.ring, records)
        return sender.ring

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob(FILES))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_is_recorded_is_what_lies_in_the_ring_bit_for_bit_J5(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.recorder._room = 4
    bench.recorder._arrays = bench.recorder._empty()
    ring = bench.feed(3)
    records = np.concatenate([arrival.records for arrival in bench.source.queue])
    assert bench.recorder.arrivals("one") is bench.source.queue
    bench.recorder.arrivals("one")  # nothing new
    bench.recorder.close()
    assert [path.name for path in bench.files] == [f"000001-00000{i}.safetensors" for i in range(3)]
    assert bench.counters["recorded.one"] == 9
    at = 0
    for path in bench.files:
        segments = read_segments(path, bench.plan.layout)
        n = len(segments.records["record.number"])
        assert n <= 4
        mine = records[at : at + n]
        for name, column in segments.columns.items():
            assert column.tobytes() == np.ascontiguousarray(ring.columns[name][place_of(mine["slot"])]).tobytes(), name
        for name in ("number", "stream", "stream_sequence", "version_min", "version_max", "valid", "before"):
            assert segments.records[f"record.{name}"].tolist() == mine[name].tolist()
        counted = [int.from_bytes(one.tobytes(), "little") for one in mine["episode"]]
        assert segments.records["record.episode"].tolist() == counted
        assert segments.actors == [("actor-0", 1)]
        at += n
    assert at == 9


def test_a_segment_that_was_overwritten_is_not_recorded_J5(bench: Bench) -> None:
    ring = bench.feed(2)
    gone = bench.source.queue[0].records["slot"][1]
    ring.begin(slice(int(gone), int(gone) + 1))
    bench.recorder.arrivals("one")
    bench.recorder.close()
    assert bench.counters["recorded.one"] == 5
    assert sorted(RecordedDataset(bench.folder, "one").lengths()) == [4] * 5


def test_what_a_killed_learner_left_unfinished_goes_and_what_it_finished_stays_J5(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.feed(1)
    first.recorder.arrivals("one")
    first.recorder.close()
    (first.folder / ".000001-000001.safetensors").write_bytes(b"half")
    second = Bench(tmp_path, incarnation=2)
    second.source.queue = first.source.queue  # sent again, as it was never settled
    second.feed(0)
    second.recorder.arrivals("one")
    second.recorder.close()
    names = sorted(path.name for path in first.folder.iterdir())
    assert names == ["000001-000000.safetensors", "000002-000000.safetensors", MANIFEST]
    dataset = RecordedDataset(first.folder, "one")
    assert dataset.lengths() == [4] * COPIES  # each once
    assert len(list(dataset.stretches())) == COPIES


def test_what_goes_wrong_with_writing_is_told_J5(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "save_file", full)
    bench.feed(1)
    bench.recorder.arrivals("one")
    with pytest.raises(OSError, match="No space left"):
        bench.recorder.close()
    assert bench.files == []


def test_a_learner_that_cannot_see_the_runs_folder_refuses_to_record_J5() -> None:
    run, plan = plan_of()
    with raises(ConfigurationError, "record_folder_not_shared", policy="one", key="policy.record"):
        begin(run, plan, 1, None)


def test_what_another_run_recorded_is_never_removed_J5(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.feed(1)
    first.recorder.arrivals("one")
    first.recorder.close()
    with raises(ConfigurationError, "record_folder_in_use", policy="one", key="policy.record"):
        Bench(tmp_path)
    assert RecordedDataset(first.folder, "one").lengths() == [4] * COPIES


def test_the_manifest_tells_whose_segments_and_of_what_form_J5(bench: Bench) -> None:
    manifest, layout = read_manifest(bench.folder)
    assert layout == bench.plan.layout
    assert manifest.agent == scripted.AGENT
    assert (manifest.policy, manifest.world) == ("one", bench.run.environment.id)
    bench.recorder.close()


def whole(fault: BaseException | None) -> str:
    """An error with its kind, and those that it was made of."""
    return f"{getattr(fault, 'coded', fault)}\n{whole(fault.__context__)}" if fault else ""


@pytest.mark.parametrize(
    ("change", "kind", "facts", "inner"),
    [
        ({"format": 2}, "format_not_supported", {"value": 2, "expected": 1}, ""),
        ({"length": 5}, "dataset_manifest_invalid", {}, "[manifest_layout_mismatch]"),
        ({"length": 0}, "dataset_manifest_invalid", {}, "equal to 1"),
        ({"fields": [["observation", "|O", [2], "row"]]}, "dataset_manifest_invalid", {}, "[layout_dtype_not_allowed]"),
        (
            {"fields": [["observation", "<f4", [-2], "row"]]},
            "dataset_manifest_invalid",
            {},
            "[manifest_field_malformed]",
        ),
        (
            {"fields": [["observation", "<f4", [2], "cell"]]},
            "dataset_manifest_invalid",
            {},
            "[manifest_field_malformed]",
        ),
        ({"more": 1}, "dataset_manifest_invalid", {}, ""),
    ],
)
def test_a_manifest_that_was_tampered_with_is_refused_J5(
    bench: Bench, change: dict[str, Any], kind: str, facts: dict[str, Any], inner: str
) -> None:
    bench.recorder.close()
    path = bench.folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with raises(ConfigurationError, kind, file=path, **facts) as told:
        RecordedDataset(bench.folder, "one")
    assert inner in whole(told.value)
    assert "\n" not in str(told.value)


def spoil(path: Path, change: Any) -> None:
    """Writes the file again with its tensors and metadata as `change` leaves them."""
    with safe_open(path, framework="np") as file:
        tensors, told = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    change(tensors, told)
    save_file(tensors, path, told)


def put(name: str, value: Any) -> Any:
    return lambda tensors, told: tensors[name].__setitem__(..., value)


SPOILT = {
    "another layout": (lambda tensors, told: told.update(layout="0" * 16), "its layout is '0000"),
    "a column missing": (lambda tensors, told: tensors.pop("reward"), "it holds reward against its layout"),
    "a column too many": (lambda tensors, told: tensors.update(more=np.zeros(3)), "it holds more against its layout"),
    "another dtype": (lambda t, told: t.update(reward=t["reward"].astype("<f8")), "reward is F64.*expected F32"),
    "another length": (lambda t, told: t.update(reward=t["reward"][1:]), r"reward is F32\[2, 5\], expected"),
    "no rows": (put("record.valid", 0), "a segment has 0 to 0 rows"),
    "too many rows": (put("record.valid", 5), "a segment has 5 to 5 rows"),
    "too much history": (put("record.before", 1), "1 of history"),
    "a stranger": (put("record.actor", 7), "of an actor that it does not name"),
    "a row beyond": (put("final_row", 4), r"\[final_row_outside_layout\]"),
    "no truth": (lambda t, told: t["terminated"].view(np.uint8).__setitem__(..., 2), "neither 0 nor 1"),
    "no actors": (lambda tensors, told: told.pop("actors"), "actors"),
    "actors of no form": (lambda tensors, told: told.update(actors="[1]"), "cannot unpack"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_was_tampered_with_is_refused_J5(bench: Bench, how: str) -> None:
    bench.feed(1)
    bench.recorder.arrivals("one")
    bench.recorder.close()
    change, why = SPOILT[how]
    spoil(bench.files[0], change)
    with raises(ConfigurationError, "recorded_segments_unreadable", file=bench.files[0]) as told:
        read_segments(bench.files[0], bench.plan.layout)
    assert re.search(why, whole(told.value))
    assert str(bench.files[0]) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("size", [0, 100, 2_000])
def test_a_file_that_was_cut_off_is_refused_J5(bench: Bench, size: int) -> None:
    bench.feed(4)
    bench.recorder.arrivals("one")
    bench.recorder.close()
    bench.files[0].write_bytes(bench.files[0].read_bytes()[:size])
    with raises(ConfigurationError, "recorded_segments_unreadable", file=bench.files[0]):
        read_segments(bench.files[0], bench.plan.layout)


def test_a_folder_without_segments_is_refused_and_one_of_several_policies_is_entered_J5(
    bench: Bench, tmp_path: Path
) -> None:
    bench.recorder.close()
    assert RecordedDataset(tmp_path / "datasets", "one").name == str(bench.folder)
    with raises(ConfigurationError, "policy_not_recorded", policy="two", key="policy.dataset.path"):
        RecordedDataset(tmp_path / "datasets", "two")
