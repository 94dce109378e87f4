"""Steps that torch.compile makes: the same as those of torch's operations one by one, compiled once for each shape."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.config.run import DQN, IQN, parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.workers.algorithms.stacked import test_stacked_ppo as streamed
from tests.workers.algorithms.stacked import test_stacked_q_learning as replayed
from workers.algorithms.common.batches import update_each
from workers.algorithms.cuda_graphs import step_compiler
from workers.algorithms.cuda_graphs.step_compiler import StepCompiler
from workers.algorithms.group_update import GroupUpdate, graphable
from workers.policies.networks.recurrent import Kind
from workers.runtime.torch_setup import Precision
from workers.sequential import Sequential

K = streamed.K
CORES: dict[Kind | None, int] = {None: 0, "gru": streamed.U, "lstm": 2 * streamed.U}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(autouse=True)
def _afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that was compiled before, here or by anybody on this machine, is used."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    """That were compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compiled(updates: list[Any]) -> list[Any]:
    """The same, to be compiled."""
    for update in updates:
        update.arithmetic = Precision(compiled=True)
        assert graphable(update)
    return updates


def _doubled(x: Tensor) -> Tensor:
    return x + x


def test_a_function_is_compiled_once_for_each_shape_and_whoever_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_compiler, "BACKEND", "eager")
    told: list[str] = []
    made, before, found = StepCompiler(lambda: told.append("began"), lambda: told.append("ended")), graphs(), []
    for rows in (2, 3, 2, 3):
        assert made.call(_doubled, torch.ones(rows)).tolist() == [2.0] * rows
        found.append(graphs() - before)
    assert found == [1, 2, 2, 2]
    assert told == ["began", "ended"] * 2


def _no_compiler(*_: Any) -> Any:
    raise RuntimeError("no C++ compiler was found")


def test_without_a_compiler_steps_are_made_as_they_are_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step_compiler, "BACKEND", _no_compiler)
    made, found = StepCompiler(), []
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            made.run_or_fall_back(lambda: found.append(made.call(_doubled, torch.ones(1)).item()))
    assert found == [2.0, 2.0]
    (said,) = [record.getMessage() for record in caplog.records if "compile" in record.getMessage()]
    assert said.startswith("event=compile_failed reason=")
    assert "no C++ compiler was found" in said
    assert said.endswith("remedy=updates run one operation at a time")


def test_what_is_no_fault_of_the_compiler_is_raised() -> None:
    def broken() -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        StepCompiler().run_or_fall_back(broken)


def test_the_reference_of_one_process_compiles_nothing(tmp_path: Path) -> None:
    run = parse_run({"environment": {"copies": 4}, "policy": {"compile": True}})
    with raises(ConfigurationError, "sequential_with_compile", policy="agent_0", key="policy.compile"):
        Sequential(run, tmp_path)


def compare(core: Kind | None = None, branches: bool = False, rounds: int = 3) -> None:
    """PPO's steps with those of each policy alone; nothing is compiled after the first round, and what a checkpoint or
    an export finds has the names that it always had."""
    alone, together = streamed.updates(core=core), compiled(streamed.updates(core=core))
    stack, noise, before = GroupUpdate(together, branches, StepCompiler()), torch.Generator().manual_seed(0), graphs()
    made: list[int] = []
    for _ in range(rounds):
        given = [streamed.segments(noise, 0, CORES[core]) for _ in range(K)]
        update_each(alone, given, [0.0] * K)
        stack.update(given, [0.0] * K)
        made.append(graphs() - before)
    assert made == [2] * rounds, "loss and Adam's step are a graph each, for all policies and batches of one shape"
    assert streamed.difference(alone, together) < 1e-5
    for one, other in zip(alone, together, strict=True):
        assert one.policy.state_dict().keys() == other.policy.state_dict().keys()


@pytest.mark.parametrize("branches", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_graphs_compute_what_updates_alone_do(branches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last stage, the kernels: the slow form has these too."""
    monkeypatch.setattr(step_compiler, "BACKEND", "aot_eager")
    compare(branches=branches)


@pytest.mark.slow
def test_compiled_graphs_round_products_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_compiler, "BACKEND", "aot_eager")
    exact, alone, together = (streamed.updates() for _ in range(3))
    for update in alone:
        update.arithmetic = Precision("bfloat16")
    for update in together:
        update.arithmetic = Precision("bfloat16", compiled=True)
    given = [streamed.segments(torch.Generator().manual_seed(i)) for i in range(K)]
    update_each(exact, given, [0.0] * K)
    update_each(alone, given, [0.0] * K)
    before = graphs()
    GroupUpdate(together, compiler=StepCompiler()).update(given, [0.0] * K)
    assert graphs() == before + 2
    # Adam's step is a learning rate long, whichever way rounding turns it: 2 steps of 3e-3
    assert streamed.difference(alone, together) < 0.01
    assert streamed.difference(exact, together) > 1e-4, "nothing is rounded"


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("core", [None, "lstm", "gru"])
def test_compiled_kernels_make_of_policies_what_they_would_be_alone(core: Kind | None) -> None:
    compare(core, rounds=20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_where_no_compiler_is_installed_policies_learn_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    alone, together = streamed.updates(), compiled(streamed.updates())
    stack, noise = GroupUpdate(together, compiler=StepCompiler()), torch.Generator().manual_seed(0)
    given = [streamed.segments(noise) for _ in range(K)]
    update_each(alone, given, [0.0] * K)
    with caplog.at_level(logging.WARNING):
        stack.update(given, [0.0] * K)
    told = [said for record in caplog.records if (said := record.getMessage()).startswith("event=")]
    assert [said.split()[0] for said in told] == ["event=compile_failed"]
    assert streamed.difference(alone, together) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [IQN, DQN])
def test_values_are_compiled_as_well(kind: type[DQN | IQN], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_compiler, "BACKEND", "aot_eager")
    alone, together = replayed.updates(kind), compiled(replayed.updates(kind))
    stack, noise, before = GroupUpdate(together, compiler=StepCompiler()), torch.Generator().manual_seed(0), graphs()
    made: list[int] = []
    for _ in range(3):
        given = [replayed.transitions(noise) for _ in range(K)]
        update_each(alone, given, [0.0] * K)
        stack.update(given, [0.0] * K)
        made.append(graphs() - before)
    assert made == [2] * 3, "loss and Adam's step are a graph each, for all policies and batches of one shape"
    assert replayed.difference(alone, together) < 1e-5
