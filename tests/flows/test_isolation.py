"""What a learner that stands still does to the others: nothing."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from protocol.memory.shared_file import read_counters
from tests.flows import runs


def steps_per_second(folder: Path, seconds: float) -> float:
    """How fast the run is now."""
    begin, at = runs.agent_steps(folder), time.monotonic()
    time.sleep(seconds)
    return (runs.agent_steps(folder) - begin) / (time.monotonic() - at)


def overwritten(folder: Path) -> float:
    """Segments that the actor wrote over, as it counts them itself."""
    pages = [read_counters(page) for page in (folder / "run" / "counters").glob("actor-0.*")]
    return sum(n for page in pages for name, n in page.items() if name.startswith("dropped.overwritten."))


@pytest.mark.parametrize(
    "policy",
    [
        {"algorithm": runs.PPO, "flow": "drop_oldest"},
        pytest.param({"algorithm": runs.IQN | {"buffer_capacity": 512}}, marks=pytest.mark.slow),
    ],
    ids=["stream", "replay"],
)
def test_stopped_learners_do_not_slow_the_actor_A2(tmp_path: Path, memory_dir: Path, policy: dict[str, Any]) -> None:
    """SIGSTOP of all learners; what cannot be kept is dropped and counted, and the books stay exact. A replay has this
    flow by default."""
    data = runs.paced(tmp_path, 1_000_000, pause=0.004, policy=policy)
    with runs.training(data, tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path) > 800 and len(runs.workers_of(tmp_path)) == 4)
        learners = [pid for name, pid in runs.workers_of(tmp_path).items() if name.startswith("learner")]
        ratios: list[float] = []
        while not ratios or (max(ratios) <= 0.7 and len(ratios) < 5):  # others may have the machine in a window
            before = steps_per_second(tmp_path, 1.5)
            for pid in learners:
                runs.kill(pid, signal.SIGSTOP)
            runs.until(lambda: overwritten(tmp_path) > 0, what="the ring is full")
            during = steps_per_second(tmp_path, 2.5)
            ratios.append(during / before)
            for pid in learners:
                runs.kill(pid, signal.SIGCONT)
            time.sleep(0.5)
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait() == 1
    assert max(ratios) > 0.7, ratios
    segments = runs.summary_of(tmp_path)["segments"]
    assert runs.balanced(segments, stream=policy["algorithm"]["name"] == "ppo"), segments
    assert segments["dropped"]["overwritten"] > 0
    assert runs.summary_of(tmp_path)["restarts"] == {}
    assert runs.files(memory_dir) == []


def test_a_learner_that_never_trains_changes_no_byte_while_the_other_learns_A3_A4(tmp_path: Path) -> None:
    """agent_1's learner waits for more rows than the run makes: its weights stay its first ones, bit for bit."""
    idle = {"algorithm": runs.IQN | {"learning_starts": 5_000, "buffer_capacity": 8_000}}
    data = runs.config(steps=4_000, policies={"agent_1": idle}, checkpoint_interval=0.001, keep_checkpoints=1_000)
    result = runs.train(data, tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["train_steps"]["agent_1"] == 0
    assert summary["train_steps"]["agent_0"] > 20
    assert summary["versions"]["agent_1"] == 1
    stored = {}
    for policy in ("agent_0", "agent_1"):
        places = sorted((tmp_path / "run" / "checkpoints" / policy).iterdir(), key=lambda path: int(path.name))
        stored[policy] = [(place / "weights.safetensors").read_bytes() for place in (places[0], places[-1])]
    assert stored["agent_0"][0] != stored["agent_0"][1]
    assert stored["agent_1"][0] == stored["agent_1"][1]
    alone = tmp_path / "alone"
    alone.mkdir()
    result = runs.train({**data, "steps": 16}, alone, "--sequential")
    untouched = load_file(alone / "run" / "checkpoints" / "agent_1" / "0" / "weights.safetensors")
    kept = load_file(tmp_path / "run" / "checkpoints" / "agent_1" / "0" / "weights.safetensors")
    assert untouched.keys() == kept.keys()
    assert all((untouched[name] == kept[name]).all() for name in kept)
