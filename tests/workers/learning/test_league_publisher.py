"""A player of a league joins the library in time, and begins again with all that it began with if it is to (J7)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from protocol.config.run import parse_run
from protocol.weights.manifest import Version
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import COPIES, HERE, Bench
from workers.league import policy_pool
from workers.learning.league_publisher import LeaguePublisher
from workers.planning.league_plan import ADDED, PlayerPlan
from workers.planning.policy_plan import PolicyPlan
from workers.policies.export.safetensors import acting_weights
from workers.policies.networks.actor_critic import ActorCritic

ROWS = 4 * COPIES
"""That come with each segment of every copy: one update."""


def league_bench(folder: Path, fresh: bool, rows_before: int = 0, device: torch.device = HERE) -> Bench:
    """One who joins after every second update, and at most three times."""
    algorithm = {"name": "ppo", "anneal_entropy": True, "epochs": 1, "minibatches": 1, "segments": COPIES}
    policy = {"algorithm": algorithm, "network": {"hidden": [4]}, "segment_length": 4, "learning_rate": 0.1}
    run = parse_run({"policy": policy, "environment": {"copies": COPIES}, "steps": 1_000})
    league = parse_run({"agents": {"a": "one", "b": "one"}, "league": {"snapshot_every": 2 * ROWS}})
    player = PlayerPlan("one", (0,), ("one",), "uniform", 0.0, fresh, most=3)

    def freezing(plan: PolicyPlan) -> LeaguePublisher:
        return LeaguePublisher(player, league, plan.interface, scripted.WORLD, plan.config, folder)

    return Bench(run, rows_before=rows_before, freezing=freezing, device=device)


def weights(bench: Bench) -> list[float]:
    """Every parameter."""
    return [float(value) for one in bench.member.policy.parameters() for value in one.flatten()]


def rates(bench: Bench, updates: int) -> list[float]:
    """Learning rate of each update, after which the member joins if it is time."""
    found = []
    for _ in range(updates):
        bench.feed(1)
        assert bench.member.step()
        found.append(bench.member.measured["learning_rate"])
        bench.member.freeze_if_due()
    return found


def test_who_begins_again_has_its_first_weights_and_the_schedules_of_its_beginning_J7(tmp_path: Path) -> None:
    bench = league_bench(tmp_path, fresh=True)
    first = weights(bench)
    bench.member.resume(None, Version(0, 0))
    assert rates(bench, 1) == pytest.approx([0.05])
    assert weights(bench) != first
    assert rates(bench, 1) == pytest.approx([0.0])
    assert weights(bench) == first
    assert rates(bench, 2) == pytest.approx([0.05, 0.0])
    assert [entry.number for entry in policy_pool.entries(tmp_path, "one")] == [0, 1, 2]
    again = league_bench(tmp_path, fresh=True, rows_before=5 * ROWS)  # another incarnation goes on in the third's part
    again.member.resume(None, Version(1, 9))
    assert again.member.progress == pytest.approx(0.5)
    assert rates(again, 3) == pytest.approx([0.0, 0.0, 0.0])  # nobody joins any more


def test_who_goes_on_keeps_its_weights_and_the_schedules_of_the_run_J7(tmp_path: Path) -> None:
    bench = league_bench(tmp_path, fresh=False)
    bench.member.resume(None, Version(0, 0))
    there = [1 - number * ROWS / 1_000 for number in range(1, 5)]
    assert rates(bench, 4) == pytest.approx([0.1 * left for left in there])
    files = [entry.path(tmp_path).read_bytes() for entry in policy_pool.entries(tmp_path, "one")]
    assert len(files) == 3
    assert len(set(files)) == 3


def test_who_is_added_by_people_joins_once_and_is_no_snapshot(tmp_path: Path) -> None:
    bench = league_bench(tmp_path, fresh=True)
    bench.member.resume(None, Version(0, 0))
    own = bench.member.policy.state_dict()
    league, name = bench.member.freezing, f"one/{ADDED}"
    assert league is not None
    assert league.missing([{"member": name}]) == [{"member": name}]
    league.join(name, save({key: torch.full_like(tensor, 0.5) for key, tensor in own.items()}))
    assert league.missing([{"member": name}]) == []
    assert rates(bench, 2) == pytest.approx([0.05, 0.0])  # its own schedule
    entries = policy_pool.entries(tmp_path, "one")
    assert [entry.number for entry in entries] == [0, 1, ADDED]
    written = load(entries[-1].path(tmp_path).read_bytes())
    assert all((tensor == 0.5).all() for key, tensor in written.items() if key.startswith("policy_"))
    again = league_bench(tmp_path, fresh=True).member.freezing
    assert again is not None
    assert again.count == 2


def test_who_learns_on_a_device_joins_with_the_weights_of_there(cuda: torch.device, tmp_path: Path) -> None:
    bench = league_bench(tmp_path, fresh=False, device=cuda)
    bench.member.resume(None, Version(0, 0))
    rates(bench, 2)
    policy = bench.member.policy
    assert isinstance(policy, ActorCritic)
    written = load(policy_pool.entries(tmp_path, "one")[-1].path(tmp_path).read_bytes())
    assert all(torch.equal(written[name], tensor.cpu()) for name, tensor in acting_weights(policy).items())
    assert next(policy.parameters()).device.type == cuda.type
