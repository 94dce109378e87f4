"""A learner that goes on from a checkpoint makes the same updates, bit for bit, as one that never stopped (G1)."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError
from protocol.experience.ring_buffer import RECORD, Ring
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from protocol.weights.manifest import Version, pack
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.datasets.test_reader import whole
from tests.workers.learning.test_policy_learner import Bench
from workers.learning import checkpoint_writer
from workers.learning.buffers.replay_checkpoint import kept_arrays, restored
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.planning.policy_plan import plan_policies
from workers.policies import checkpoint

SEEN = Box(shape=(3,))
WORLDS = {
    "choices": World(id="choices", agents=(Agent(name="one", observation=SEEN, action=Discrete(n=4)),)),
    "numbers": World(
        id="numbers", agents=(Agent(name="one", observation=SEEN, action=Box(shape=(2,), low=-1.0, high=1.0)),)
    ),
}
COPIES, LENGTH = 4, 8
SLOT = sum(RECORD[i].itemsize for i in range((RECORD.names or ()).index("slot")))
"""Where a record says in which slot it lies."""
REPLAY = {
    "batch_size": 16,
    "learning_starts": 32,
    "buffer_capacity": 1024,
    "replay_ratio": 1000.0,
    "error_buffer": 1e9,
    "anneal_learning_rate": True,
    "checkpoint_replay": 1024,
}
VALUES = REPLAY | {"epsilon_decay_freq": 2, "target_update_freq": 3, "priority_alpha": 0.6, "noisy": True}
STREAM = {"name": "ppo", "minibatches": 2, "epochs": 2, "normalize_observation": True}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ppo": ("choices", STREAM, {}),
    "ppo by priority": ("choices", STREAM | {"priority_alpha": 0.5}, {}),
    "ppo recurrent": ("choices", STREAM, {"core": {"name": "lstm", "size": 6}}),
    "impala": ("choices", {"name": "impala", "segments": None}, {"core": {"name": "gru", "size": 6}}),
    "iqn by priority": ("choices", VALUES | {"name": "iqn"}, {}),
    "c51": ("choices", VALUES | {"name": "c51", "atoms": 7, "dueling": True}, {}),
    "dqn": ("choices", VALUES | {"name": "dqn", "priority_alpha": 0.0}, {}),
    "sac": ("numbers", REPLAY | {"name": "sac", "priority_alpha": 0.3}, {}),
}


class Learning:
    """A member of one of KINDS, and rows for it."""

    def __init__(self, kind: str, folder: Path | None = None, incarnation: int = 1, **changes: Any) -> None:
        world, algorithm, network = KINDS[kind]
        run = parse_run(
            {
                "environment": {"copies": COPIES},
                "policy": {
                    "algorithm": algorithm | changes,
                    "network": {"hidden": [8], **network},
                    "segment_length": LENGTH,
                    "learning_rate": 0.01,
                },
                "steps": 2_000,
            }
        )
        self.plan = plan_policies(run, WORLDS[world])["one"]
        self.source, self.counters = scripted.Source(), scripted.counters()
        device = torch.device("cpu")
        context = LearnerContext(run, incarnation, device, self.counters, lambda *_: None, folder)
        self.member = PolicyLearner(self.plan, 1.0, self.source, context)
        self.member.resume(None, Version(0, 0))

    def feed(self, blocks: int, seed: int, actor: str = "actor-0") -> None:
        """Announces random segments: `blocks` of each copy."""
        ring = ring_of(self.plan.layout, blocks * COPIES, seed)
        for block in range(blocks):
            records = ring.segments(slice(block * COPIES, (block + 1) * COPIES))
            self.source.arrive(ring, records, actor=actor)

    def learn(self, updates: int) -> None:
        """So many updates, or it is an error."""
        for _ in range(updates):
            assert self.member.step()

    def save(self) -> None:
        """A checkpoint, on disk."""
        save(self.member)
        self.member.close()

    def state(self) -> dict[str, NDArray]:
        """All that decides what comes next."""
        state: dict[str, NDArray] = {name: t.numpy().copy() for name, t in self.member.policy.state_dict().items()}
        state |= {f"update.{name}": tensor.numpy() for name, tensor in self.member.update.state().items()}
        state["progress"] = np.array(self.member.progress)
        if self.member._replay is not None:
            kept = self.member._replay.state(10**6)
            records = kept.pop("records").copy() if "records" in kept else np.empty(0)
            state |= {f"replay.{name}": array for name, array in kept.items()}
            if len(records):  # wherever they lie now
                state["replay.records"] = np.delete(records, np.s_[SLOT : SLOT + 4], 1)
        return state


def save(member: PolicyLearner) -> None:
    """A checkpoint, on its way."""
    assert member._checkpoints is not None
    member._save(member._checkpoints, 10.0)


def ring_of(layout: Any, slots: int, seed: int) -> Ring:
    """A ring full of random rows."""
    ring, rng = Ring.create(None, layout, slots), np.random.default_rng(seed)
    everything = slice(0, slots)
    ring.begin(everything)
    for name, column in ring.columns.items():
        if column.dtype.kind == "f":
            column[...] = rng.normal(size=column.shape) * (0.1 if name in ("state", "log_probability") else 1.0)
    if ring.columns["action"].dtype.kind == "f":
        ring.columns["action"].clip(-1, 1, out=ring.columns["action"])
    else:
        ring.columns["action"][...] = rng.integers(4, size=ring.columns["action"].shape)
    ring.columns["terminated"][...] = rng.random(ring.columns["terminated"].shape) < 0.1
    ring.columns["truncated"].fill(False)
    ring.columns["version"].fill(pack(Version(1, 1)))
    ring.columns["final_row"].fill(-1)
    ring.table["stream"] = np.arange(slots) % COPIES
    ring.table["version_min"] = ring.table["version_max"] = pack(Version(1, 1))
    ring.finish(everything, 1, LENGTH, 0)
    return ring


def same(first: dict[str, NDArray], second: dict[str, NDArray]) -> None:
    """Bit for bit."""
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_resumed_learner_does_is_what_it_would_have_done_G1(tmp_path: Path, kind: str) -> None:
    """Weights, targets, moments, normalisers, exploration, priorities, schedules, and every random draw."""
    stream = KINDS[kind][1]["name"] in ("ppo", "impala")
    whole, first = Learning(kind), Learning(kind, tmp_path)
    for learner in (whole, first):
        learner.feed(3 if stream else 5, seed=1)
        learner.feed(2, seed=2, actor="actor-1") if not stream else None
        learner.learn(3)
    first.save()
    again = Learning(kind, tmp_path, incarnation=2)
    if stream:  # what came before the checkpoint is used up
        whole.feed(3, seed=3)
        again.feed(3, seed=3)
    before = whole.state()
    same(before, again.state())
    for learner in (whole, again):
        learner.learn(3)
    same(whole.state(), again.state())
    assert not np.array_equal(before["update.adam.first"], whole.state()["update.adam.first"])


def test_a_resumed_learner_draws_from_kept_and_new_rows_alike(tmp_path: Path) -> None:
    first = Learning("iqn by priority", tmp_path)
    first.feed(4, seed=1)
    first.learn(2)
    first.save()
    again = Learning("iqn by priority", tmp_path, incarnation=2)
    assert again.member._replay is not None
    assert again.member._replay.rows == 4 * COPIES * LENGTH
    again.feed(30, seed=2, actor="actor-7")
    drawn = set()
    for _ in range(60):
        assert again.member.step()
        drawn |= {origin.actor for origin in again.member._replay.provenance()}
        assert again.member._replay.rows <= 1024
    assert drawn == {"actor-0", "actor-7"}
    assert again.counters["received.one"] == 30 * COPIES, "what an earlier incarnation received is in its own books"
    assert again.source.given_back == []


def test_without_kept_rows_the_buffer_fills_up_again_and_new_rows_have_the_greatest_priority(tmp_path: Path) -> None:
    first = Learning("iqn by priority", tmp_path, checkpoint_replay=0)
    first.feed(4, seed=1)
    first.learn(4)
    first.save()
    again = Learning("iqn by priority", tmp_path, incarnation=2, checkpoint_replay=0)
    assert again.member._replay is not None
    assert first.member._replay is not None
    assert again.member._replay.rows == 0
    assert not again.member.step()
    again.feed(2, seed=2)
    again.learn(1)
    greatest = [one.member._replay.state(0)["greatest"][0] for one in (first, again) if one.member._replay]
    assert greatest[1] >= greatest[0] > 1


def test_a_member_that_goes_back_in_its_process_keeps_the_rows_that_are_there_and_learns_from_them(
    tmp_path: Path,
) -> None:
    learning = Learning("iqn by priority", tmp_path)
    learning.feed(4, seed=1)
    learning.learn(2)
    learning.save()
    saved = learning.state()
    learning.feed(3, seed=2)
    learning.learn(2)
    replay = learning.member._replay
    assert replay is not None
    learning.member.restart(None)
    assert replay.rows == 7 * COPIES * LENGTH
    after = learning.state()
    np.testing.assert_array_equal(after["update.adam.first"], saved["update.adam.first"])
    assert len(after["replay.records"]) == 7 * COPIES
    learning.learn(3)


def test_the_newest_rows_are_kept_and_no_more_than_asked(tmp_path: Path) -> None:
    first = Learning("dqn", tmp_path, checkpoint_replay=100)
    first.feed(8, seed=1)
    first.learn(1)
    first.save()
    kept = checkpoint.load(tmp_path / "checkpoints" / "one" / "1").replay
    assert len(kept["records"]) == 100 // LENGTH
    assert first.member._replay is not None
    np.testing.assert_array_equal(kept["column.reward"], first.member._replay.state(10**6)["column.reward"][-12:])


@pytest.mark.parametrize(("overwritten", "rings"), [([0, 1], [0] * COPIES), ([0, 1, 2], None)])
def test_what_is_overwritten_while_it_is_kept_leaves_what_can_be_loaded(
    overwritten: list[int], rings: list[int] | None
) -> None:
    learning = Learning("dqn")
    for actor in range(3):
        learning.feed(1, seed=actor, actor=f"actor-{actor}")
    mine = [arrival.ring for arrival in learning.source.queue]
    replay = learning.member._replay
    assert replay is not None
    replay.fill()
    admitted = replay._all
    kept = admitted.kept(admitted.newest(10**6), None)
    for number in overwritten:
        mine[number].begin(slice(0, COPIES))
    arrays = kept_arrays(kept, admitted.rings)
    if rings is None:
        assert arrays == {}
    else:
        assert arrays["ring"].tolist() == rings
        restored(arrays, learning.plan.layout, learning.plan.interface.place)


def test_rows_that_refer_to_common_observations_cannot_be_kept() -> None:
    population = DictPopulation(agents=WORLDS["choices"].agents, common=Box(shape=(1,)))
    data = {"policy": {"algorithm": {"name": "iqn", "checkpoint_replay": 1}}}
    key = "policy.algorithm.checkpoint_replay"
    with raises(ConfigurationError, "replay_kept_with_common_observations", policy="one", key=key):
        plan_policies(parse_run(data), World(id="w", population=population))


@pytest.fixture(scope="module")
def saved_by(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a checkpoint of each of two kinds."""
    found = {}
    for kind in ("ppo", "iqn by priority"):
        found[kind] = tmp_path_factory.mktemp("saved")
        learning = Learning(kind, found[kind])
        learning.feed(4, seed=1)
        learning.learn(1)
        learning.save()
    return found


Damage = Callable[[dict[str, NDArray]], object]


def put(name: str, index: Any, value: Any) -> Damage:
    """Writes `value` into an array."""

    def damage(arrays: dict[str, NDArray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: a.pop("governor"), "counts are missing"),
        (lambda a: a.pop("random"), "random state"),
        (put("random", 10, 9), "random state"),
        (put("governor", 0, -1), "counts cannot be"),
        (put("greatest", 0, np.nan), "counts cannot be"),
        (lambda a: a.pop("column.reward"), "'column.reward' is missing"),
        (lambda a: a.update(ring=a["ring"][:-1]), r"ring is int32 \[15\], expected int32 \[16\]"),
        (lambda a: a.update({"column.reward": a["column.reward"].astype(np.float64)}), "reward is float64"),
        (lambda a: a.update({"column.action": a["column.action"][:, :-1]}), "action is"),
        (put("column.action", (0, 0), 4), r"action.* 0\.\.3.*\[segment_action_outside_space\]"),
        (put("column.reward", (0, 0), np.inf), r"'reward'.*\[segment_field_not_finite\]"),
        (put("column.final_row", (0, 0), LENGTH), r"\[final_row_outside_layout\]"),
        (put("actor", 0, 5), "actors that there are not"),
        (put("ring", 0, -1), "rings or actors that there are not"),
        (put("first", 0, -1), "contradict each other"),
        (put("priority", (0, 0), -1.0), "no positive number"),
        (lambda a: a.update(actors=np.frombuffer(b"{", np.uint8)), ""),
        (lambda a: a.update(actors=np.frombuffer(b"[" * 99_999, np.uint8)), ""),
        (lambda a: a.update(actors=np.frombuffer(b"[[1]]", np.uint8)), ""),
        (lambda a: a.update(records=a["records"] * 0), r"\[record_rows_beyond_layout\]"),
        (lambda a: a.update(records=a["records"][:0]), ""),
        (lambda a: a.update(records=a["records"] | 255), "contradict each other"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_no_actor_could_have_written_are_refused_in_a_sentence(
    tmp_path: Path, saved_by: dict[str, Path], damage: Damage, said: str
) -> None:
    shutil.copytree(saved_by["iqn by priority"], tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.rglob("replay.safetensors")
    arrays = load_file(path)
    damage(arrays)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    with raises(ConfigurationError, "replay_unusable", file=path.parent) as told:
        Learning("iqn by priority", tmp_path, incarnation=2)
    assert re.search(said, whole(told.value))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("weights", {"policy_weight": torch.zeros(1)}),
        ("weights", {"more": torch.zeros(1)}),
        ("optimizer", {"adam.first": torch.zeros(3)}),
        ("optimizer", {"adam.first": None}),
        ("optimizer", {"generator": torch.zeros(3, dtype=torch.uint8)}),
        ("optimizer", {"generator": torch.zeros(3)}),
        ("optimizer", {"adam.steps": torch.zeros(3)}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_tensors_that_do_not_fit_the_policy_are_refused_in_a_sentence(
    tmp_path: Path, saved_by: dict[str, Path], file: str, change: dict[str, torch.Tensor | None]
) -> None:
    shutil.copytree(saved_by["ppo"], tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.rglob(f"{file}.safetensors")
    tensors = checkpoint.load_file(path) | change
    checkpoint.save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with raises(ConfigurationError, "checkpoint_does_not_fit_policy", file=path.parent) as told:
        Learning("ppo", tmp_path, incarnation=2)
    assert "\n" not in str(told.value)


STORED = Path(__file__).parent / "checkpoints"


@pytest.mark.parametrize(
    "stored", sorted(STORED.glob("format_*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_a_stored_checkpoint_of_every_format_still_loads(tmp_path: Path, stored: Path) -> None:
    """Files that earlier releases wrote; a resumed learner goes on from them."""
    place = tmp_path / "checkpoints" / "one"
    shutil.copytree(stored, place)
    (step,) = checkpoint.list_steps(place)
    told = json.loads((place / str(step) / "manifest.json").read_text())
    run = Run.model_validate({"environment": {"copies": COPIES}, "policy": told["config"], "steps": 1_000})
    bench = Bench(run, tmp_path, incarnation=2)
    bench.member.resume(None, Version(1, 0))
    assert bench.member.update.train_steps == told["train_steps"] == step
    assert bench.published[0][0] == Version(2, told["version"] + 1)
    for name, tensor in checkpoint.load(place / str(step)).weights.items():
        assert torch.equal(bench.member.policy.state_dict()[name], tensor)
    bench.feed(8)
    assert bench.member.step()
    bench.member.finish()
    bench.member.close()
    newest = checkpoint.load(place / str(checkpoint.list_steps(place)[-1])).manifest
    assert (newest.format, newest.mean_return) == (checkpoint.FORMAT, None)
    assert newest.step > step


def test_there_is_a_stored_checkpoint_of_every_format() -> None:
    assert {path.name for path in STORED.iterdir()} == {f"format_{n}" for n in range(1, checkpoint.FORMAT + 1)}


FULL = [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left on device")]


@pytest.mark.parametrize("fault", FULL, ids=["write", "safetensors"])
def test_a_full_disk_is_said_and_counted_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    learner = Learning("ppo", tmp_path)
    learner.feed(2, seed=1)
    learner.learn(1)

    def full(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        learner.save()
    assert counts(learner.counters) == (0, 1)
    said = [record.getMessage() for record in caplog.records if "checkpoint_failed" in record.getMessage()]
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "another --run-dir" in said[0]
    learner.learn(1)
    learner.save()
    assert counts(learner.counters) == (1, 1)
    assert [path.name for path in (tmp_path / "checkpoints" / "one").iterdir()] == ["8"]


def counts(counters: Counters) -> tuple[float, float]:
    """Checkpoints written and not written."""
    return counters["checkpoints.one"], counters["checkpoints_failed.one"]


def test_what_the_writer_dies_of_otherwise_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learning("ppo", tmp_path)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(checkpoint, "save", broken)
    save(learner.member)
    with pytest.raises(ZeroDivisionError):
        learner.member.close()


def test_a_checkpoint_is_due_when_the_mean_return_is_better_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learning("ppo", tmp_path)
    monkeypatch.setattr(checkpoint_writer, "_PAUSE", 0)
    place = tmp_path / "checkpoints" / "one"
    for seed, (mean_return, newest) in enumerate([(None, 4), (5.0, 8), (4.0, 8), (5.0, 8), (6.0, 20)]):
        learner.feed(4, seed=seed)
        learner.learn(1)
        learner.member.mean_return = mean_return
        learner.member.save_if_due()
        learner.member.close()
        assert checkpoint.list_steps(place)[-1] == newest
    monkeypatch.setattr(checkpoint_writer, "_PAUSE", math.inf)
    learner.member.mean_return = 7.0
    learner.member.save_if_due()
    learner.member.close()
    assert checkpoint.list_steps(place)[-1] == 20, "the one before took too long"


def test_an_evaluation_better_than_all_before_is_on_disk_at_once_and_said_by_that_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learning("ppo", tmp_path)
    monkeypatch.setattr(checkpoint_writer, "_PAUSE", math.inf)  # of better returns, which come all the time
    place, said = tmp_path / "checkpoints" / "one", []
    for seed, evaluation in enumerate([3.0, 3.0, 9.0, 9.0, 4.0]):
        learner.feed(4, seed=seed)
        learner.learn(1)
        learner.member.heard(5.0, evaluation)
        learner.member.save_if_due()
        learner.member.close()
        said.append(checkpoint.load(place / str(checkpoint.list_steps(place)[-1])).manifest.mean_return)
    assert said == [5.0, 5.0, 9.0, 9.0, 9.0]
    assert checkpoint.best(place) == checkpoint.list_steps(place)[-1]
    learner.save()
    assert checkpoint.best(place) == checkpoint.list_steps(place)[-2], "which may be worse again"


def test_training_goes_on_while_a_checkpoint_is_written_and_what_is_written_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes its time: further checkpoints wait for it, updates do not."""
    learner = Learning("ppo", tmp_path)
    learner.feed(4, seed=1)
    learner.learn(1)
    begun, go_on, real = threading.Event(), threading.Event(), checkpoint.save

    def slow(*arguments: Any) -> Path:
        begun.set()
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(checkpoint_writer.checkpoint, "save", slow)
    before = {name: tensor.clone() for name, tensor in learner.member.policy.state_dict().items()}
    learner.member.save_if_due()
    assert begun.wait(60)
    learner.learn(2)
    learner.member.save_if_due()
    checkpoints_of = learner.member._checkpoints
    assert checkpoints_of is not None
    assert not checkpoints_of.due(0)
    assert not checkpoints_of.wait(0.01)
    go_on.set()
    learner.member.close()
    place = tmp_path / "checkpoints" / "one"
    assert checkpoint.list_steps(place) == [4]
    for name, tensor in checkpoint.load(place / "4").weights.items():
        assert torch.equal(tensor, before[name]), name
    assert learner.counters["waits.checkpoint.one"] > 0


def test_a_disk_that_hangs_holds_up_the_end_for_a_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learning("ppo", tmp_path)
    go_on = threading.Event()
    monkeypatch.setattr(checkpoint, "save", lambda *_: go_on.wait(60))
    made = learner.member._checkpoints
    assert made is not None
    made.write(Version(1, 1), 0, None)
    made.close(0.05)
    assert "event=checkpoint_unfinished" in caplog.text
    made.write(Version(1, 2), 0, None, seconds=0.05)
    assert counts(learner.counters) == (0, 1)
    assert "took longer than 0.05 s" in caplog.text
    go_on.set()
    made.close(60)
