"""Other systems beside ours on the same workload, in turn; `make bench-peers` installs them and runs this.

    python -m tests.benchmarks.peers [--workload W1] [--policies 1] [--pairs 3] [--seconds 5] [PEER...]

Out flow: lines of JSON: one for each run, then for each peer the medians of its runs and of ours between them, with
the ratios ours : peer. `policies` says whether the agents share one or have one each, which ours always have.
`processor_us_per_env_step` is what neighbours on the machine change least. With `--until 475` the figures are the
seconds and the environment steps until that mean return. With `--world spread` ours steps that world in the place of
W2's own, which it is turn for turn; such lines of ours say so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from protocol.errors import RookeryError
from tests.benchmarks.peers.stepping import GUARDS, PICTURES
from tests.benchmarks.peers.watching import LONGEST, solved, watched
from tests.tools import ROOT
from workers.environments.registry import describe
from workers.tools.bench.pipeline.pipeline import watch
from workers.tools.bench.pipeline.run_under_test import started
from workers.tools.bench.pipeline.workloads import workload

__all__ = ["compared", "parsed"]

_POLICIES = {"W1": 1, "W2": 3, "W3": 3, "W4": 2, "W5-84": 1, "W5-10": 1, "W5-10-three": 3}
"""Those of ours: one for each agent."""
_SHARED = [(name, 1) for name in ("W1", "W2", "W3", *PICTURES)]
_EACH = [(name, 3) for name in ("W2", "W3", "W5-10-three")]
PEERS = {
    "stable-baselines3": {
        ("W1", 1): "train_stable_baselines3",
        ("W2", 1): "train_stable_baselines3_rows",
        **{(name, 1): "train_stable_baselines3_pictures" for name in PICTURES},
    },
    "pufferlib": dict.fromkeys(_SHARED, "train_pufferlib"),
    "sample-factory": dict.fromkeys([*_SHARED, *_EACH], "train_sample_factory"),
    "torchrl": {("W1", 1): "train_torchrl", ("W2", 3): "train_torchrl_agents"},
    "rllib": {("W1", 1): "train_rllib", ("W2", 3): "train_rllib_agents", ("W3", 3): "train_rllib_agents"},
    "plain-loop": {("W4", 2): "train_plain_loop"},
}
"""The module by which each learns a workload with so many policies: one that all agents share, or one for each."""
_FIGURES = (
    *("env_steps_per_second", "processor_us_per_env_step", "cores", "peak_pss_gib"),
    *("seconds", "seconds_from_start", "env_steps"),
)
_SCORED = ("W1", "W2")
_OFTEN, _AGAIN = 0.05, 0.25
"""Seconds between two looks for a first step; and for a return, which a run tells twice a second."""
Figures = dict[str, Any]


def main() -> None:
    """Prints as it goes."""
    given = parsed(sys.argv[1:])
    if given.guards:
        os.environ[GUARDS] = "1"
    for peer, policies in given.runs:
        runs: dict[str, list[Figures]] = {peer: [], "ours": []}
        for _ in range(given.pairs):
            runs[peer].append(_peer(peer, policies, given))
            _tell({"workload": given.workload, "of": peer, "policies": policies, **runs[peer][-1]})
            runs["ours"].append(_ours(given))
            ours = {"workload": given.workload, "of": "ours", "policies": _POLICIES[given.workload]}
            _tell({**ours, **_world(given), **runs["ours"][-1]})
        which = {"workload": given.workload, "policies": policies, "our_policies": _POLICIES[given.workload]}
        _tell({**which, **_world(given), **compared(peer, runs[peer], runs["ours"])})


def parsed(arguments: list[str]) -> argparse.Namespace:
    """What is to be measured, `runs` (peer, policies) in turn; an error where a peer cannot do the workload."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"all that can do it by default: {', '.join(PEERS)}")
    parser.add_argument("--workload", choices=tuple(_POLICIES), default="W1")
    parser.add_argument("--policies", type=int, choices=(1, 2, 3), help="of the peer's agents; default: all it can")
    parser.add_argument("--pairs", type=int, default=3, help="runs of the peer and of ours, in turn")
    parser.add_argument("--windows", type=int, default=4, help="of each run, whose median counts")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--warm", type=float, default=5.0, help="seconds of learning before the first window")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="where peers are installed")
    parser.add_argument("--guards", action="store_true", help="give the peer W2's world as its package makes it")
    parser.add_argument("--world", metavar="ID", help="let ours step this world in the place of W2's")
    parser.add_argument("--until", type=float, metavar="RETURN", help="seconds to that mean return instead")
    given = parser.parse_args(arguments)
    can = {peer: [n for name, n in ways if name == given.workload] for peer, ways in PEERS.items()}
    wanted = [given.policies] if given.policies else [1, 2, 3]
    if given.until is not None and given.workload not in _SCORED:
        parser.error(f"only {' and '.join(_SCORED)} tell peers' returns; leave out --until")
    if given.world is not None:
        _check_world(given, parser)
    given.runs = [(peer, n) for peer in given.peers or PEERS for n in wanted if n in can.get(peer, [])]
    for peer in given.peers:
        if peer not in dict(given.runs):
            asked = f"{given.workload} with {given.policies} policies" if given.policies else given.workload
            parser.error(f"{peer} has no script for {asked}; choose others of {', '.join(PEERS)}")
    if not given.runs:
        parser.error(f"no peer has a script for {given.workload} with {given.policies} policies; choose another number")
    return given


def compared(peer: str, theirs: list[Figures], ours: list[Figures]) -> Figures:
    """Medians of both, and ours over theirs."""
    keys = [key for key in _FIGURES if key in theirs[0]]
    medians = {
        who: {key: statistics.median(run[key] for run in runs) for key in keys}
        for who, runs in ((peer, theirs), ("ours", ours))
    }
    ratios = {key: medians["ours"][key] / medians[peer][key] for key in keys}
    return {"peer": peer, "theirs": medians[peer], "ours": medians["ours"], "ours_over_theirs": ratios}


def _peer(peer: str, policies: int, given: argparse.Namespace) -> Figures:
    python = given.environments / peer / "bin" / "python"
    script = f"tests.benchmarks.peers.{PEERS[peer][given.workload, policies]}"
    command = [str(python.absolute()), "-m", script, given.workload, str(policies)]
    if given.until is not None:
        return solved(command, given.until)
    return _with_cost(watched(command, given.windows, given.seconds, given.warm))


def _ours(given: argparse.Namespace) -> Figures:
    data, _run = workload(given.workload, {"id": given.world} if given.world else {})
    with tempfile.TemporaryDirectory() as folder:
        if given.until is not None:
            return _solved(data, Path(folder) / "ours", given.until)
        figures = watch(Path(folder) / "ours", data, given.windows, given.seconds, given.warm)
    cores = sum(share for key, share in figures.items() if key.startswith("cpu."))
    return _with_cost({**figures, "cores": cores})


def _solved(data: Figures, folder: Path, target: float) -> Figures:
    """As `solved`, by what the run tells about twice a second."""
    begun = time.monotonic()
    with started(data, folder) as running:
        while not running.look().counted.get("env_steps"):
            time.sleep(_OFTEN)
        first = time.monotonic()
        while running.returns().get("return_last", -math.inf) < target:
            if time.monotonic() > first + LONGEST:
                raise RuntimeError(f"ours has no mean return of {target:g} after {LONGEST:g} s; ask for a lower one")
            running.look()  # says so if the run has ended
            time.sleep(_AGAIN)
        now, steps = time.monotonic(), running.look().counted["env_steps"]
    return {"seconds": now - first, "seconds_from_start": now - begun, "env_steps": steps}


def _check_world(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """An error unless W2 is to be measured in a world of as many agents who see as much."""
    if given.workload != "W2":
        parser.error("only W2 has a world that others are turn for turn; leave out --world")
    try:
        own, other = (describe(workload("W2", where)[1].environment) for where in ({}, {"id": given.world}))
    except RookeryError as fault:
        parser.error(str(fault))
    if [place.observed.shape for place in own.places] != [place.observed.shape for place in other.places]:
        parser.error(
            f"{given.world} is not W2's world by another name: its agents see something else; leave out --world"
        )


def _world(given: argparse.Namespace) -> Figures:
    """What a line of ours says of a world that is not the workload's."""
    return {"our_world": given.world} if given.world else {}


def _with_cost(figures: Figures) -> Figures:
    return {**figures, "processor_us_per_env_step": 1e6 * figures["cores"] / figures["env_steps_per_second"]}


def _tell(line: Figures) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
