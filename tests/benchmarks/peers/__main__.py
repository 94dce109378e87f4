"""Other systems beside ours on the same workload, in turn; `make bench-peers` installs them and runs this.

    python -m tests.benchmarks.peers [--workload W1] [--pairs 3] [--seconds 5] [PEER...]

Out flow: lines of JSON: one for each run, then for each peer the medians of its runs and of ours between them, with
the ratios ours : peer. `processor_us_per_env_step` is what neighbours on the machine change least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.watching import watched
from tests.tools import ROOT
from workers.bench.pipeline import watch
from workers.bench.workloads import workload

__all__ = ["compared", "parsed"]

PEERS = {
    "stable-baselines3": ("train_stable_baselines3", ("W1",)),
    "pufferlib": ("train_pufferlib", ("W1", "W3")),
    "sample-factory": ("train_sample_factory", ("W1", "W3")),
    "torchrl": ("train_torchrl", ("W1",)),
    "rllib": ("train_rllib", ("W1",)),
}
"""Module of each, and the workloads that it can do; its agents share a policy."""
_FIGURES = ("env_steps_per_second", "processor_us_per_env_step", "cores", "peak_pss_gib")
Figures = dict[str, Any]


def main() -> None:
    """Prints as it goes."""
    given = parsed(sys.argv[1:])
    for peer in given.peers or [peer for peer, (_, can) in PEERS.items() if given.workload in can]:
        runs: dict[str, list[Figures]] = {peer: [], "ours": []}
        for _ in range(given.pairs):
            for who, measure in ((peer, _peer), ("ours", _ours)):
                runs[who].append(measure(who, given))
                _tell({"workload": given.workload, "of": who, **runs[who][-1]})
        _tell({"workload": given.workload, **compared(peer, runs[peer], runs["ours"])})


def parsed(arguments: list[str]) -> argparse.Namespace:
    """What is to be measured; an error where a peer cannot do the workload."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"all that can do it by default: {', '.join(PEERS)}")
    parser.add_argument("--workload", choices=("W1", "W3"), default="W1")
    parser.add_argument("--pairs", type=int, default=3, help="runs of the peer and of ours, in turn")
    parser.add_argument("--windows", type=int, default=4, help="of each run, whose median counts")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--warm", type=float, default=5.0, help="seconds of learning before the first window")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="where peers are installed")
    given = parser.parse_args(arguments)
    for peer in given.peers:
        if peer not in PEERS or given.workload not in PEERS[peer][1]:
            parser.error(f"{peer} has no script for {given.workload}; choose others of {', '.join(PEERS)}")
    return given


def compared(peer: str, theirs: list[Figures], ours: list[Figures]) -> Figures:
    """Medians of both, and ours over theirs."""
    medians = {
        who: {key: statistics.median(run[key] for run in runs) for key in _FIGURES}
        for who, runs in ((peer, theirs), ("ours", ours))
    }
    ratios = {key: medians["ours"][key] / medians[peer][key] for key in _FIGURES}
    return {"peer": peer, "theirs": medians[peer], "ours": medians["ours"], "ours_over_theirs": ratios}


def _peer(peer: str, given: argparse.Namespace) -> Figures:
    python = given.environments / peer / "bin" / "python"
    command = [str(python.absolute()), "-m", f"tests.benchmarks.peers.{PEERS[peer][0]}", given.workload]
    return _with_cost(watched(command, given.windows, given.seconds, given.warm))


def _ours(_: str, given: argparse.Namespace) -> Figures:
    data, _run = workload(given.workload, {})
    with tempfile.TemporaryDirectory() as folder:
        figures = watch(Path(folder) / "ours", data, given.windows, given.seconds, given.warm)
    cores = sum(share for key, share in figures.items() if key.startswith("cpu."))
    return _with_cost({**figures, "cores": cores})


def _with_cost(figures: Figures) -> Figures:
    return {**figures, "processor_us_per_env_step": 1e6 * figures["cores"] / figures["env_steps_per_second"]}


def _tell(line: Figures) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
