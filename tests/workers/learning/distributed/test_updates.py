"""What several ranks make of a policy is what one process makes of it with the joined batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.learning.distributed.part import CASES, train

SIZE = 2


def trained(folder: Path, rounds: int) -> None:
    """Lets ranks make so many updates in each case, as processes of their own that meet in `folder`."""
    command = [sys.executable, "-m", "tests.workers.learning.distributed.part"]
    rest = [str(SIZE), str(folder / "store"), str(rounds), str(folder)]
    started = [subprocess.Popen([*command, str(rank), *rest]) for rank in range(SIZE)]
    try:
        assert [process.wait(600) for process in started] == [0] * SIZE
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_ranks_make_the_updates_of_one_process_with_the_joined_batch(tmp_path: Path, rounds: int) -> None:
    """Weights, statistics, moments and metrics to within 1e-6, of all ranks to the bit: with normalised advantages,
    clipped gradients, several epochs and minibatches, memory, and parts of which a rank has nothing."""
    trained(tmp_path, rounds)
    for case in CASES:
        one = train(case, rounds, SIZE)
        ranks = [load_file(tmp_path / f"{case}.{rank}") for rank in range(SIZE)]
        for name, there in one.items():
            for rank in ranks:
                assert torch.equal(rank[name], ranks[0][name]), (case, name)
            assert float((there.double() - ranks[0][name].double()).abs().max()) <= 1e-6, (case, name)
