"""Runs whose learners, and actors, compute on a GPU; where there is none, on one that is not there (tests/late).

The workers have that by the folder that Python looks into when it starts (tests/late/site).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from tests.flows import runs
from tests.flows.test_lockstep import found_in, here, in_step, newest_checkpoints
from tests.flows.test_replay import BOTH, made, orders
from tests.forge import Forge, forging
from tests.late.cuda import begin_cuda, late_cuda

SITE = Path(__file__).resolve().parents[1] / "late" / "site"
RECURRENT = {"hidden": [16], "core": {"name": "lstm", "size": 8}}


def in_this_process() -> AbstractContextManager[object]:
    """Where there is one, nothing is to be done."""
    return nullcontext() if torch.cuda.is_available() else late_cuda()


@pytest.fixture(scope="module", autouse=True)
def there(forge: Forge | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if torch.cuda.is_available():
        begin_cuda()
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EXTRA_PATH", "forged_path"):
            patch.setattr(runs, name, str(SITE))
        with forging(runs.environment(forked=True), tmp_path_factory.mktemp("forge") / "forge.out", forge) as own:
            patch.setattr(runs, "forge", own)
            yield


def logged(folder: Path, event: str, worker: str) -> list[str]:
    """Lines of all workers of a kind that tell of it."""
    paths = sorted((folder / "run" / "logs").glob(f"{worker}*"))
    return [line for path in paths for line in path.read_text().splitlines() if f"event={event} " in line]


@pytest.mark.slow
def test_learners_and_actors_record_what_they_do_and_a_run_on_a_gpu_comes_to_its_end_E9_E11(tmp_path: Path) -> None:
    """One policy remembers and one replays, in one learner, side by side."""
    data = runs.config(
        steps=2_000,
        policies={"agent_0": {"network": RECURRENT}, "agent_1": {"algorithm": runs.IQN}},
        learners="cohort",
        device="cuda",
        act_device="cuda",
    )
    result = runs.train(data, tmp_path)
    assert result.returncode == 0, result.stderr
    assert logged(tmp_path, "captured", "learner")
    assert logged(tmp_path, "captured", "actor")
    for worker in ("learner", "actor"):
        assert not logged(tmp_path, "capture_failed", worker)
    summary = runs.summary_of(tmp_path)
    assert all(summary["train_steps"][policy] > 10 for policy in ("agent_0", "agent_1"))


@pytest.mark.slow
def test_the_pipeline_gives_the_bits_of_the_sequential_reference_on_a_gpu_too_L1(tmp_path: Path) -> None:
    data = in_step(
        policies={"agent_0": {"network": RECURRENT}, "agent_1": {"algorithm": runs.IQN}},
        num_learner_processes=1,
        device="cuda",
        steps=1_600,
    )
    with in_this_process():
        expected = here({**data, "actors": 1}, tmp_path / "sequential")
    (tmp_path / "workers").mkdir()
    result = runs.train({**data, "actors": 2}, tmp_path / "workers")
    assert result.returncode == 0, result.stderr
    assert found_in(tmp_path / "workers") == expected


@pytest.mark.slow
def test_what_a_gpu_learned_from_a_record_is_learned_again_there_to_the_same_bits_L1(tmp_path: Path) -> None:
    """One operation at a time both times: a graph sums up in another order."""
    data = runs.config(steps=4_000, policies=BOTH, actors=2, device="cuda")
    result = runs.train(data, tmp_path, "--record")
    assert result.returncode == 0, result.stderr
    first, again = tmp_path / "run", tmp_path / "again"
    with in_this_process():
        made({**data, "replay": str(first)}, again)
    assert orders(again, "replayed/*.jsonl") == orders(first, "datasets/*/order.jsonl")
    assert newest_checkpoints(again) == newest_checkpoints(first)
