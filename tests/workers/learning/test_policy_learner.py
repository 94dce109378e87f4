"""A member trains on what arrives, publishes on time, and goes on where it or its predecessor was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from protocol.config.run import IQN, PPO, Run
from protocol.config.trainable import Start
from protocol.errors import ConfigurationError, TrainingFault
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from protocol.weights.publisher import WeightSource
from tests.faults import raises
from tests.workers import scripted
from workers.algorithms.common import gradient_threads
from workers.learning.buffers.prioritized import PrioritizedSample
from workers.learning.league_publisher import LeaguePublisher
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.policies import checkpoint
from workers.policies.export.start import take_start

COPIES = 4
HERE = torch.device("cpu")


class Bench:
    """A member with its surroundings."""

    def __init__(
        self,
        run: Run,
        folder: Path | None = None,
        incarnation: int = 1,
        rows_before: int = 0,
        freezing: Callable[[PolicyPlan], LeaguePublisher] | None = None,
        device: torch.device = HERE,
        start: bytes = b"",
        two_threads: bool = False,
    ) -> None:
        self.plan: PolicyPlan = plan_policies(run, scripted.WORLD)["one"]
        self.source, self.counters = scripted.Source(), Counters(None, *scripted.LearnerReport.names(["one"]))
        self.published: list[tuple[Version, NDArray[np.uint8]]] = []
        self.member = PolicyLearner(
            self.plan,
            1.0,
            self.source,
            LearnerContext(
                run, incarnation, device, self.counters, self._publish, folder, start=start, two_threads=two_threads
            ),
            rows_before,
            freezing=None if freezing is None else freezing(self.plan),
        )

    def _publish(self, _: str, weights: WeightSource, version: Version) -> None:
        self.published.append((version, (weights if isinstance(weights, np.ndarray) else weights()).copy()))

    def save(self) -> None:
        """A checkpoint now, on disk."""
        checkpoints = self.member._checkpoints
        assert checkpoints is not None
        self.member._save(checkpoints, 10.0)
        self.member.close()

    def feed(self, segments: int) -> None:
        """Announces `segments` segments of every copy."""
        sender = scripted.acted(self.plan.config, segments, COPIES)
        for records in sender.finished:
            self.source.arrive(sender.ring, records)


def run_of(algorithm: PPO | IQN, **policy: object) -> Run:
    """One agent, four copies, segments of four."""
    algorithm_settings = algorithm.model_dump(exclude_unset=True) | {"name": algorithm.name}
    return Run.model_validate(
        {
            "environment": {"copies": COPIES},
            "policy": {
                "algorithm": algorithm_settings,
                "model_config": {"hidden": [8]},
                "segment_length": 4,
                **policy,
            },
            "steps": 1_000,
        }
    )


STREAM = PPO(epochs=1, minibatches=2, normalize_return=False)
REPLAY = IQN(batch_size=8, learning_starts=8, buffer_capacity=256, replay_ratio=100.0, n_step=1)


def test_a_batch_larger_than_what_learning_starts_with_is_waited_for_E8() -> None:
    """A rate limiter that stopped the rows before there were enough for the first batch would stop everything."""
    algorithm = IQN(batch_size=64, learning_starts=1, buffer_capacity=256, replay_ratio=8.0, n_step=1)
    bench = Bench(run_of(algorithm))
    bench.member.resume(None, Version(0, 0))
    bench.feed(8)
    while bench.source.queue or bench.member.update.train_steps == 0:
        before = len(bench.source.queue), bench.member.update.train_steps
        bench.member.step()
        assert (len(bench.source.queue), bench.member.update.train_steps) != before


def test_a_learner_of_a_run_that_is_stopped_takes_in_at_once_what_was_made_and_owes_no_update() -> None:
    bench = Bench(run_of(REPLAY))
    bench.member.resume(None, Version(0, 0))
    bench.feed(8)
    assert bench.member.step()
    updates = bench.member.update.train_steps
    assert bench.source.queue, "what is made faster than it is trained on waits"
    bench.member.hurries = True
    assert not bench.member.step()
    assert not bench.source.queue
    assert bench.member.update.train_steps == updates


@pytest.mark.parametrize("algorithm", [STREAM, REPLAY], ids=["stream", "replay"])
def test_who_is_frozen_settles_what_comes_unread_and_learns_on_where_it_stood(algorithm: PPO | IQN) -> None:
    bench = Bench(run_of(algorithm, publish_interval=100))
    member = bench.member
    member.resume(None, Version(0, 0))
    bench.feed(8)
    for _ in range(2):
        assert member.step()
    settled = bench.counters["received.one"]
    member.obey({"frozen": ["one"]})
    stood, progress, weights = member.update.train_steps, member.progress, member.published.source()
    kept = weights() if callable(weights) else weights
    assert np.array_equal(bench.published[-1][1], kept), "actors have what it had learned"
    bench.feed(8)
    assert not member.step()
    assert member.finish()
    assert not bench.source.queue
    assert bench.counters["received.one"] == bench.counters["trained.one"] + bench.counters["held.one"]
    assert settled + bench.counters["dropped.frozen.one"] == 16 * COPIES
    assert (member.update.train_steps, member.progress, bench.counters["received.one"]) == (stood, progress, settled)
    member.obey({"frozen": []})
    bench.feed(8)
    while member.progress == progress:
        assert member.step()


def test_what_a_frozen_policy_has_learned_is_kept_at_once(tmp_path: Path) -> None:
    bench = Bench(run_of(STREAM), tmp_path)
    member, kept = bench.member, tmp_path / "checkpoints" / "one"
    member.resume(None, Version(0, 0))
    bench.feed(2)
    for frozen in ([], [], ["one"]):
        member.obey({"frozen": frozen})
        member.step()
        member.save_if_due()
        assert member._checkpoints is not None
        assert member._checkpoints.wait(10.0)
    assert sorted(path.name for path in kept.iterdir() if path.name.isdecimal()) == ["2", "4"]
    member.close()


@pytest.mark.parametrize("frozen", [False, True])
def test_who_is_frozen_keeps_what_it_published_after_its_checkpoint(tmp_path: Path, frozen: bool) -> None:
    first = Bench(run_of(STREAM, publish_interval=100), tmp_path)
    first.member.resume(None, Version(0, 0))
    first.feed(2)
    first.member.step()
    saved = first.member.weights.bytes_view().tobytes()
    first.save()
    first.member.step()
    first.member.obey({"frozen": ["one"]})  # and it dies
    last, found = first.published[-1]
    second = Bench(run_of(STREAM), tmp_path, incarnation=2)
    second.member.frozen = frozen
    second.member.resume(found, last)
    version, weights = second.published[-1]
    assert version.version == last.version + 1
    assert saved != found.tobytes()
    assert weights.tobytes() == (found.tobytes() if frozen else saved)


def test_a_rate_is_followed_when_the_roster_has_another_and_not_each_time_it_is_told() -> None:
    bench = Bench(run_of(STREAM))
    bench.member.obey({"rates": {"one": 0.5}})
    bench.member.set_learning_rate(0.25)  # as a hook does
    bench.member.obey({"rates": {"one": 0.5, "other": 0.1}})
    bench.member.resume(None, Version(0, 0))
    bench.feed(1)
    assert bench.member.step()
    assert bench.member.measured["learning_rate"] == 0.25


def test_weights_are_published_before_training_and_every_so_many_train_steps_C3_C13() -> None:
    bench = Bench(run_of(STREAM, publish_interval=4))
    bench.member.resume(None, Version(0, 0))
    assert [version for version, _ in bench.published] == [Version(1, 1)]
    bench.feed(4)
    updates = 0
    while bench.member.step():
        updates += 1
    assert updates == 4
    assert bench.member.update.train_steps == 8  # two minibatches an update
    assert [version.version for version, _ in bench.published] == [1, 2, 3]
    assert bench.counters["trained.one"] == 4 * COPIES
    assert not np.array_equal(bench.published[0][1], bench.published[-1][1])


def test_a_policy_that_is_never_waited_for_learns_on_two_threads_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_threads, "_FASTER", 0.0)  # whatever they gain here
    monkeypatch.setattr("workers.learning.policy_learner.available_cores", lambda: 2.0)
    bench = Bench(run_of(STREAM), two_threads=True)
    bench.member.resume(None, Version(0, 0))
    bench.feed(6)
    used = []
    while bench.member.step():
        used.append(bench.member.measured["gradient_threads"])
    assert used == [1, 1, 2, 2, 2, 2]
    assert bench.counters["trained.one"] == 6 * COPIES
    bench.member.close()


@pytest.mark.parametrize(
    ("run", "cores"),
    [
        (run_of(STREAM), 1.5),
        (run_of(REPLAY), 2.0),
        (run_of(PPO.model_validate({"entry": "workers.algorithms.ppo:PPOUpdate"})), 2.0),
        (run_of(STREAM, record=True), 2.0),
    ],
)
def test_what_would_be_another_update_stays_on_one_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run, cores: float
) -> None:
    """A core and a half have no room for two, and a record is to be learned again to the bit."""
    monkeypatch.setattr("workers.learning.policy_learner.available_cores", lambda: cores)
    assert Bench(run, tmp_path, two_threads=True).member._threads is None


def test_what_is_started_from_is_published_first_thaws_and_is_not_taken_for_new(tmp_path: Path) -> None:
    """A policy that was trained before may be sure of what it does."""
    other = Bench(run_of(STREAM))
    save_file({name: one + 1 for name, one in other.member.policy.state_dict().items()}, tmp_path / "w.safetensors")
    run = run_of(STREAM, start={"path": str(tmp_path / "w.safetensors"), "freeze": {"only": "hidden", "steps": 33}})
    assert run.policy.start is not None
    bench = Bench(run, start=take_start("one", other.member.policy, run.policy.start))
    bench.member.resume(None, Version(0, 0))
    assert not bench.member._health.new
    expected = other.member.policy.state_dict()["value_weight"] + 1
    assert torch.equal(bench.member.policy.state_dict()["value_weight"], expected)
    assert np.array_equal(bench.published[0][1], bench.member.published.bytes_view())
    moved = []
    for _ in range(3):
        before = {name: one.clone() for name, one in bench.member.policy.state_dict().items()}
        bench.feed(1)
        while bench.member.step():
            pass
        moved.append([not torch.equal(before[name], bench.member.policy.state_dict()[name]) for name in before])
    names = [*bench.member.policy.state_dict()]
    assert [dict(zip(names, each, strict=True))["layer_0_weight"] for each in moved] == [False, False, True]
    assert all(dict(zip(names, each, strict=True))["policy_weight"] for each in moved)


def test_no_more_rows_are_counted_as_trained_than_short_segments_have() -> None:
    bench = Bench(run_of(STREAM))
    bench.member.resume(None, Version(0, 0))
    sender = scripted.acted(bench.plan.config, 1, COPIES)
    (records,) = sender.finished
    records["valid"] = [1, 4, 2, 3]
    bench.source.arrive(sender.ring, records)
    assert bench.member.step()
    assert bench.counters["trained.one"] == COPIES
    assert bench.counters["rows_trained.one"] == bench.counters["rows_received.one"] == 10


@pytest.mark.parametrize("algorithm", [STREAM, IQN(batch_size=64, learning_starts=64, buffer_capacity=256)])
def test_a_policy_that_never_had_enough_for_an_update_says_so_at_the_end(algorithm: PPO | IQN) -> None:
    """H1: the run is complete, and nothing was learned."""
    bench = Bench(run_of(algorithm, **({"segment_length": 16} if algorithm is STREAM else {})))
    bench.member.resume(None, Version(0, 0))
    bench.member.finish()
    assert bench.counters["health.never_a_batch.one"] == 0, "nothing came: nobody acts, or this policy has no agent"
    source = scripted.acted(bench.plan.config, 1, 1)
    bench.source.arrive(source.ring, source.finished[0])
    assert not bench.member.step()
    bench.member.finish()
    assert bench.counters["health.never_a_batch.one"] == 1


def test_a_restart_resumes_a_checkpoint_and_not_newer_weights_without_their_optimiser_G1(tmp_path: Path) -> None:
    run = run_of(STREAM)
    first = Bench(run, tmp_path)
    first.member.resume(None, Version(0, 0))
    first.feed(1)
    assert first.member.step()
    first.save()
    second = Bench(run, tmp_path, incarnation=2)
    second.member.resume(np.zeros_like(first.published[0][1]), Version(1, 40))
    assert torch.equal(first.member.weights.storage, second.member.weights.storage)
    assert second.member.update.train_steps == first.member.update.train_steps > 0
    assert second.published[0][0] == Version(2, 41)


def test_without_a_checkpoint_the_last_published_weights_are_taken_with_a_fresh_optimiser_G1(tmp_path: Path) -> None:
    first = Bench(run_of(STREAM))
    first.member.resume(None, Version(0, 0))
    first.feed(2)
    while first.member.step():
        pass
    first.member.publish()
    version, weights = first.published[-1]
    second = Bench(run_of(STREAM), tmp_path, incarnation=2)
    second.member.resume(weights, version)
    assert np.array_equal(second.published[0][1], weights)
    assert second.published[0][0] == Version(2, version.version + 1)
    assert second.member.update.train_steps == 0


def test_a_checkpoint_of_another_network_stops_the_learner_with_a_sentence(tmp_path: Path) -> None:
    first = Bench(run_of(STREAM), tmp_path)
    first.save()
    second = Bench(run_of(STREAM, model_config={"hidden": [9]}), tmp_path)
    with raises(ConfigurationError, "checkpoint_of_other_network"):
        second.member.resume(None, Version(0, 0))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_an_update_that_is_refused_is_counted_and_the_third_in_a_row_ends_the_learner_U15() -> None:
    bench = Bench(run_of(STREAM))
    bench.member.resume(None, Version(0, 0))
    sender = scripted.acted(bench.plan.config, 4, COPIES)
    sender.ring.columns["reward"].fill(np.inf)
    for records in sender.finished:
        bench.source.arrive(sender.ring, records)
    for expected in (COPIES, 2 * COPIES):
        assert bench.member.step()
        assert bench.counters["rejected.one"] == expected
    with raises(TrainingFault, "update_not_finite"):
        bench.member.step()
    assert bench.counters["trained.one"] == 0
    bench.member.publish()
    assert np.array_equal(bench.published[0][1], bench.published[-1][1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_single_refused_updates_are_told_each_though_others_were_before(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(run_of(STREAM))
    bench.member.resume(None, Version(0, 0))
    for _ in range(2):
        sender = scripted.acted(bench.plan.config, 1, COPIES)
        sender.ring.columns["reward"].fill(np.inf)
        for records in sender.finished:
            bench.source.arrive(sender.ring, records)
        assert bench.member.step()
        bench.feed(1)
        assert bench.member.step()
    told = [record for record in caplog.records if record.getMessage().startswith("event=update_refused")]
    assert len(told) == 2
    assert list(bench.member.refusals.counters().values()) == [2]


def test_draws_know_how_far_the_run_is_and_what_their_errors_were(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = REPLAY.model_copy(update={"priority_alpha": 0.5, "priority_beta": 0.4})
    bench = Bench(run_of(algorithm), rows_before=500)
    bench.member.resume(None, Version(0, 0))
    bench.feed(2)
    replay, betas = bench.member._replay, []
    assert replay is not None
    priorities = replay._priorities
    assert priorities is not None
    draw = priorities.draw

    def watched(size: int, beta: float, rng: np.random.Generator) -> PrioritizedSample | None:
        betas.append(beta)
        return draw(size, beta, rng)

    monkeypatch.setattr(priorities, "draw", watched)
    assert bench.member.step()
    assert betas == [pytest.approx(0.4 + 0.6 * bench.member.progress)]
    assert bench.member.progress > 0.5
    assert replay._drawn is not None
    found = priorities.weights(replay._drawn.record)[np.arange(8), replay._drawn.row]
    errors = bench.member.update.priorities.numpy()  # type: ignore[union-attr]
    expected = dict(zip(zip(replay._drawn.record, replay._drawn.row, strict=True), errors, strict=True))
    for place, weight in zip(zip(replay._drawn.record, replay._drawn.row, strict=True), found, strict=True):
        assert weight == pytest.approx((expected[place] + 1e-6) ** 0.5, rel=1e-5)


def given(bench: Bench, value: float, folder: Path) -> bytes:
    """The file of a start that has this value everywhere."""
    own = bench.member.policy
    save_file({name: torch.full_like(one, value) for name, one in own.state_dict().items()}, folder / "sent")
    return take_start("one", own, Start(path=str(folder / "sent")))


def test_other_weights_are_published_at_once_and_kept_and_not_given_again(tmp_path: Path) -> None:
    bench = Bench(run_of(STREAM), tmp_path)
    bench.member.resume(None, Version(0, 0))
    bench.feed(8)
    while bench.member.step():
        pass
    bench.save()
    steps, version = bench.member.update.train_steps, bench.member.version.version
    bench.member.heard(5.0, None)
    bench.member.replace(given(bench, 0.25, tmp_path), 7)
    told, weights = bench.published[-1]
    assert (told.version, bench.member.update.train_steps) == (version + 1, steps + 1)
    assert all((one == 0.25).all() for one in bench.member.policy.parameters())
    assert not bench.member.update.state()["adam.first"].any()
    bench.member.save_if_due()
    bench.member.close()
    again = Bench(run_of(STREAM), tmp_path, incarnation=2)
    again.member.resume(None, Version(1, 1))
    assert again.member.replaced == 7
    assert again.member.mean_return is None
    saved = [checkpoint.load(tmp_path / f"checkpoints/{bench.member.name}/{step}") for step in (steps, steps + 1)]
    assert [(one.manifest.replaced, one.manifest.mean_return) for one in saved] == [(0, None), (7, None)]
    assert again.published[-1][0].version == told.version + 1
    assert np.array_equal(again.published[-1][1], weights)


def test_a_member_that_goes_back_to_before_it_was_given_weights_is_given_them_again(tmp_path: Path) -> None:
    bench = Bench(run_of(STREAM), tmp_path)
    bench.member.resume(None, Version(0, 0))
    bench.feed(8)
    while bench.member.step():
        pass
    bench.save()
    bench.member.replace(given(bench, 0.25, tmp_path), 7)
    bench.member.restart(None)
    assert bench.member.replaced == 0
