"""What it costs to be watched: one run, in moments that take turns, and its rate in each kind of them.

    python -m tests.benchmarks.bench_watching [PRESET] [--rounds N] [--seconds S]

* `alone`: the coordinator is stopped (SIGSTOP): no page, no metrics, no curves; training does not need it for a while;
* `told`: it runs, writes `metrics.jsonl` and TensorBoard, and nobody looks;
* `watched`: a page is open (server-sent events), curves are asked for and every worker's `/metrics` is read, once a
  second, where Prometheus' default is once a minute.

Prints for each the median agent steps a second, and a second of processor time of all processes of the run, and the
medians over rounds of what these are of the same round's `alone`; and which part of the processor time of the run was
the coordinator's, the one figure that holds on a machine that does other work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from protocol.memory.shared_file import read_counters


class Rates(NamedTuple):
    """Agent steps a second, and a second of processor time; which part of this time the coordinator took."""

    a_second: float
    a_processor_second: float
    coordinator: float


_WAYS = ("alone", "told", "watched")
_SETTLE = 0.3
"""Seconds that each moment begins with and that do not count."""


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="treasure-hunt")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each moment")
    arguments = parser.parse_args()
    result = compare(arguments.preset, arguments.rounds, arguments.seconds)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


def compare(preset: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Rates of each way, medians over `rounds`, and their ratios to `alone` within a round."""
    found: dict[str, list[Rates]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory() as name, _training(preset, Path(name) / "run") as (folder, launcher):
        _moment("watched", folder, launcher, 1.0)  # what answers is loaded at the first question
        for number in range(rounds):
            turn = number % len(_WAYS)
            for way in (*_WAYS[turn:], *_WAYS[:turn]):
                found[way].append(_moment(way, folder, launcher, seconds))
    told: dict[str, Any] = {"preset": preset, "rounds": rounds}
    told["coordinator"] = {way: statistics.median(one.coordinator for one in found[way]) for way in _WAYS}
    for key in ("a_second", "a_processor_second"):
        rates = {way: [getattr(one, key) for one in moments] for way, moments in found.items()}
        told[key] = {way: statistics.median(values) for way, values in rates.items()}
        for way in _WAYS[1:]:
            ratios = [x / y for x, y in zip(rates[way], rates["alone"], strict=True)]
            told[key][f"{way}_of_alone"] = round(statistics.median(ratios), 4)
            told[key][f"{way}_of_alone_by_round"] = [round(ratio, 4) for ratio in ratios]
    return told


def _moment(way: str, folder: Path, launcher: psutil.Process, seconds: float) -> Rates:
    """Agent steps as the actor's own counters say."""
    coordinator, over = json.loads((folder / "coordinator.json").read_text()), threading.Event()
    token = (folder / "token").read_text().strip()
    watching = [threading.Thread(target=_watch, args=(coordinator["http"], token, over))]
    watching += [threading.Thread(target=_scrape, args=(url, over)) for url in _http(folder)]
    if way == "alone":
        os.kill(coordinator["pid"], signal.SIGSTOP)
    for thread in watching if way == "watched" else ():
        thread.start()
    try:
        time.sleep(_SETTLE)
        its = psutil.Process(coordinator["pid"])
        steps, (own, used), since = _steps(folder), _used(its, launcher), time.monotonic()
        time.sleep(seconds)
        made, (own_now, used_now) = _steps(folder) - steps, _used(its, launcher)
        spent = used_now - used
        return Rates(made / (time.monotonic() - since), made / spent, (own_now - own) / spent)
    finally:
        os.kill(coordinator["pid"], signal.SIGCONT)
        over.set()
        for thread in watching if way == "watched" else ():
            thread.join()


def _used(coordinator: psutil.Process, launcher: psutil.Process) -> tuple[float, float]:
    """Seconds of processor time so far: of the coordinator, of the whole run."""
    found = {one.pid: one.cpu_times() for one in (launcher, *launcher.children(recursive=True))}
    spent = {pid: times.user + times.system for pid, times in found.items()}
    return spent[coordinator.pid], sum(spent.values())


def _watch(url: str, token: str, over: threading.Event) -> None:
    """As the page does: listens to events, and asks for curves once."""
    right = {"Authorization": f"Bearer {token}"}
    curves, follow = (urllib.request.Request(f"{url}/api/{what}", headers=right) for what in ("curves", "events"))
    urllib.request.urlopen(curves, timeout=10).read()
    with urllib.request.urlopen(follow, timeout=10) as events:
        while not over.is_set():
            events.readline()


def _scrape(url: str, over: threading.Event) -> None:
    while not over.wait(1.0):
        urllib.request.urlopen(f"{url}/metrics", timeout=10).read()


def _steps(folder: Path) -> float:
    return sum(read_counters(path)["agent_steps"] for path in (folder / "counters").glob("actor-*"))


def _http(folder: Path) -> list[str]:
    """Where each worker serves its metrics: its log says so."""
    logs = "".join(path.read_text() for path in (folder / "logs").glob("*.out"))
    return re.findall(r"event=http address=(\S+)", logs)


@contextmanager
def _training(preset: str, folder: Path) -> Iterator[tuple[Path, psutil.Process]]:
    """A run that goes on for as long as is needed, at work."""
    rookery = Path(sys.executable).parent / "rookery"
    command = [str(rookery), "train", preset, "--steps", "1000000000", "--no-progress", "--run-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 120
            while not any((folder / "checkpoints").glob("*/*/manifest.json")):  # every learner has begun by then
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("the run did not begin; try `rookery train` by hand")
                time.sleep(0.1)
            yield folder, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


if __name__ == "__main__":
    main()
