"""Updates in bfloat16: products are rounded, and nothing else is; stacks and fixed steps round as policies alone do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from protocol.config.run import DQN, IQN
from tests.workers.algorithms import test_c51, test_central_critic, test_rnd, test_sac, test_value_decomposition
from tests.workers.algorithms.stacked import test_stacked_ppo as streamed
from tests.workers.algorithms.stacked import test_stacked_q_learning as replayed
from workers.algorithms.common.batches import update_each
from workers.algorithms.common.time_major import to_time_major
from workers.algorithms.cuda_graphs.branches import Branches
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.ppo import PPOUpdate, objective
from workers.algorithms.rnd import RNDUpdate
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.algorithms.stream import evaluate
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.distributions import Heads
from workers.policies.networks.recurrent import Kind
from workers.policies.tensors.scratch import ScratchBuffers
from workers.runtime.torch_setup import FLOAT32, Precision

ROUNDED = Precision("bfloat16")
HOST = torch.device("cpu")
CORES: dict[Kind | None, int] = {None: 0, "gru": streamed.U, "lstm": 2 * streamed.U}


def _streamed(heads: Heads = Heads((3,)), core: Kind | None = None) -> tuple[Any, Any]:  # noqa: B008
    noise = torch.Generator().manual_seed(0)
    return streamed.updates(heads, core, epochs=1)[0], streamed.segments(noise, heads.continuous, CORES[core])


def _central() -> tuple[Any, Any]:
    policy, config = test_central_critic.setting()
    return PPOUpdate(policy, config), test_central_critic.segments(policy)


def _replayed(kind: type[DQN | IQN], **algorithm: Any) -> tuple[Any, Any]:
    return replayed.updates(kind, **algorithm)[0], replayed.transitions(torch.Generator().manual_seed(0), weight=True)


def _c51() -> tuple[Any, Any]:
    return test_c51.C51Update(*test_c51.setting(noisy=True, dueling=True)), test_c51.transitions()


def _team() -> tuple[Any, Any]:
    update = test_value_decomposition.updater(name="qmix")
    return update, test_value_decomposition.transitions(update.policy)


QUICK = {"ppo", "iqn", "sac"}
KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "ppo": _streamed,
    "ppo amounts": lambda: _streamed(Heads((3,), 2)),
    "ppo lstm": lambda: _streamed(core="lstm"),
    "ppo gru": lambda: _streamed(core="gru"),
    "ppo central": _central,
    "iqn": lambda: _replayed(IQN, noisy=True, dueling=True),
    "dqn": lambda: _replayed(DQN, activation="relu"),
    "c51": _c51,
    "sac": lambda: (test_sac.updater(), test_sac.transitions()),
    "qmix": _team,
    "rnd": lambda: (
        RNDUpdate(test_rnd.networks(), test_rnd.CONFIG),
        test_rnd.seen(torch.randn(9, 3, generator=torch.Generator().manual_seed(0))),
    ),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow]) for kind in KINDS]
)
def test_the_loss_is_the_same_but_for_rounding_and_all_that_is_kept_stays_float32(kind: str) -> None:
    found = {}
    for arithmetic in (FLOAT32, ROUNDED):
        update, batch = KINDS[kind]()
        update.arithmetic = arithmetic
        found[arithmetic] = update.update(batch)
        optimizer = update.optimizer
        kept = {"weights": optimizer.parameters, "first": optimizer.first, "second": optimizer.second}
        for name, tensor in kept.items():
            assert tensor.dtype == torch.float32, name
            assert bool(tensor.isfinite().all()), name
            assert bool((tensor != tensor.bfloat16()).any()), f"{name} are rounded"
    exact, rounded = found[FLOAT32], found[ROUNDED]
    assert exact.keys() == rounded.keys()
    assert rounded["loss"] != exact["loss"]
    assert rounded["loss"] == pytest.approx(exact["loss"], rel=0.05, abs=0.02)
    assert rounded["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.1, abs=0.02)


def test_value_targets_and_ratios_are_float32_and_rows_of_the_actor_have_ratio_1_but_for_rounding() -> None:
    update, given = _streamed()
    batch = to_time_major(given)
    minibatch = batch.minibatch(torch.arange(streamed.B), ScratchBuffers())
    with ROUNDED.autocast(HOST):
        rounded = objective(update.policy, minibatch, update.algorithm)
        ratio = evaluate(update.policy, minibatch).ratio
    exact = evaluate(update.policy, minibatch).ratio
    assert rounded.targets is not None
    assert rounded.targets.dtype == ratio.dtype == rounded.total.dtype == torch.float32
    torch.testing.assert_close(ratio, exact, rtol=0.03, atol=0.01)


@pytest.mark.parametrize(
    ("way", "core"),
    [
        ("stacked", None),
        ("fixed", None),
        pytest.param("branches", None, marks=pytest.mark.slow),
        ("fixed", "lstm"),
        ("branches", "lstm"),
    ],
)
def test_policies_together_round_as_each_does_alone(way: str, core: Kind | None) -> None:
    alone, together = streamed.updates(core=core), streamed.updates(core=core)
    for update in (*alone, *together):
        update.arithmetic = ROUNDED
    noise = torch.Generator().manual_seed(0)
    parts = [[update] for update in together] if way == "branches" else [together]
    stack = Branches([StackedPPO(part, fixed=way != "stacked") for part in parts], GraphCache(HOST))
    for _ in range(2):
        given = [streamed.segments(noise, 0, CORES[core]) for _ in range(streamed.K)]
        update_each(alone, given, [0.0] * streamed.K)
        stack.update(given, [0.0] * streamed.K)
    # Adam's step is a learning rate long, whichever way rounding turns it: 4 steps of 3e-3
    assert 0 < streamed.difference(alone, together) < 0.02


@pytest.mark.parametrize("kind", [IQN, pytest.param(DQN, marks=pytest.mark.slow)])
def test_values_together_round_as_each_does_alone(kind: type[DQN | IQN]) -> None:
    alone, together = replayed.updates(kind), replayed.updates(kind)
    for update in (*alone, *together):
        update.arithmetic = ROUNDED
    noise = torch.Generator().manual_seed(0)
    given = [replayed.transitions(noise) for _ in range(replayed.K)]
    expected = update_each(alone, given, [0.0] * replayed.K)
    found = GroupUpdate(together).update(given, [0.0] * replayed.K)
    assert found != update_each(replayed.updates(kind), given, [0.0] * replayed.K), "nothing is rounded"
    for one, other in zip(expected, found, strict=True):
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        assert other["loss"] == pytest.approx(one["loss"], rel=0.02)
