"""Peers are counted from outside, and only ever compared with runs of ours between their own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.peers.__main__ import PEERS, compared, parsed
from tests.benchmarks.peers.stepping import PLACE, Carts, Numbers
from tests.benchmarks.peers.watching import watched
from tests.tools import ROOT

_TRAINING = """
import pathlib, time
from tests.benchmarks.peers.stepping import Tally
tally = Tally()
pathlib.Path("left-behind-by-a-peer").touch()
while True:
    tally.count(10)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("peer", PEERS)
def test_each_peer_has_a_script_and_a_list_of_what_it_needs(peer: str) -> None:
    folder = Path(__file__).parent / "peers"
    assert importlib.util.find_spec(f"tests.benchmarks.peers.{PEERS[peer][0]}")
    lines = (folder / f"{peer}.txt").read_text().splitlines()
    assert all("==" in line for line in lines), "releases are named exactly"
    assert not any(line.startswith(("torch==", "nvidia")) for line in lines), "torch is ours"


def test_make_installs_those_that_there_are() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PEERS ?=")]
    assert line.split()[2:] == list(PEERS)


def test_a_peer_is_watched_from_outside_and_ended() -> None:
    told = watched([sys.executable, "-c", _TRAINING], windows=2, seconds=0.2, warm=0.0)
    assert 0 < told["env_steps_per_second"] < 1_100
    assert told["peak_pss_gib"] > 0.01
    assert 0 <= told["cores"] < 1
    assert not Path("left-behind-by-a-peer").exists(), "it writes into a folder of its own"


def test_a_peer_that_ends_says_why() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"], windows=1, seconds=0.1, warm=0.0)


def test_worlds_count_the_steps_of_all_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    carts, numbers = Carts(8), Numbers(4)
    carts.reset(seed=0)
    for _ in range(3):
        carts.step(np.zeros(8, np.int64))
    assert numbers.reset().shape == (12, 64)
    observation, reward, over = numbers.step(np.zeros(12, np.int64))
    assert (observation.shape, reward.shape, over.shape) == ((12, 64), (12,), (12,))
    assert sorted(int(np.fromfile(path, np.int64)[0]) for path in tmp_path.iterdir()) == [4, 24]


def test_carts_that_are_begun_anew_stand_in_the_middle_again() -> None:
    carts = Carts(4)
    carts.reset(seed=0)
    for _ in range(5):
        carts.step(np.ones(4, np.int64))
    which = np.array([True, False, True, False])
    carts.restart(which)
    assert carts.state is not None
    assert (np.abs(carts.state[:, which]) <= 0.05).all()
    assert (carts.steps[which] == 0).all()
    assert carts.steps[1] == 5


def test_medians_of_a_peer_are_told_beside_ours() -> None:
    def runs(*rates: float) -> list[dict[str, float]]:
        return [
            {"env_steps_per_second": rate, "processor_us_per_env_step": 1.0, "cores": 2.0, "peak_pss_gib": 0.5}
            for rate in rates
        ]

    told = compared("rllib", runs(10, 20, 90), runs(50, 60, 40))
    assert told["theirs"]["env_steps_per_second"] == 20
    assert told["ours_over_theirs"]["env_steps_per_second"] == 2.5


def test_a_peer_without_a_script_for_a_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--workload", "W3", "torchrl"])
    assert "torchrl has no script for W3" in capsys.readouterr().err
