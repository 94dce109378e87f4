"""What the pods of the base take, beside what they ask for: `python -m tests.k8s.footprint [--seconds S] [--actors N]`.

As root; the pods are those of tests/k8s/pods_here.py, with the base's own configuration. Memory is what cannot be taken
away from a pod: the anonymous pages of its processes and its shared memory. Cores are those used from the first update
on. Prints a table.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path

import psutil
import yaml

from tests.flows import runs
from tests.k8s.manifests import build, pods, with_keys
from tests.k8s.pods_here import Cluster, cluster


def main() -> None:
    """Starts them, waits, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--actors", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rookery-footprint-") as name:
        k8s = with_keys(Path(name) / "k8s")
        overlay = k8s / "overlays" / "base"
        overlay.mkdir()
        listed = {"namespace": "rookery", "resources": ["../../base"], "components": ["../../components/keys"]}
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(listed))
        with cluster(build(overlay)) as here:
            _measure(here, given.seconds, given.actors)


def _measure(here: Cluster, seconds: float, actors: int) -> None:
    started = {"coordinator": ("coordinator", "coordinator")}
    started |= {f"learner-{number}": ("learner", f"learner-{number}.learner") for number in range(2)}
    started |= {f"actor-{number}": ("actor", "") for number in range(actors)}
    for pod, (role, name) in started.items():
        here.start(role, pod, name)
    steps = 'rookery_run_train_steps_total{policy="agent_0"}'
    runs.until(lambda: steps in here.ask("coordinator", 5609, "/metrics")[1], 120, "an update")
    before, begin = {pod: _seconds(here, pod) for pod in started}, time.monotonic()
    most = dict.fromkeys(started, (0.0, 0.0))
    while time.monotonic() < begin + seconds:
        time.sleep(2)
        most = {pod: max(most[pod], _memory(here, pod), key=sum) for pod in started}
    wall = time.monotonic() - begin
    print("| pod | cores | asked for | MiB, and of these shared | limit |\n|---|--:|--:|--:|--:|")  # noqa: T201 - a tool
    for pod, (role, _) in started.items():
        sizes = pods(here.documents)[role]["spec"]["containers"][0]["resources"]
        cores, (own, shared) = (_seconds(here, pod) - before[pod]) / wall, most[pod]
        row = f"{cores:.2f} | {sizes['requests']['cpu']} | {own + shared:.0f} ({shared:.0f})"
        print(f"| `{pod}` | {row} | {sizes['limits']['memory']} |")  # noqa: T201 - a tool


def _processes(here: Cluster, pod: str) -> list[psutil.Process]:
    first = psutil.Process(here.pods[pod].popen.pid)
    return [first, *first.children(recursive=True)]


def _seconds(here: Cluster, pod: str) -> float:
    """Of processors."""
    return sum(sum(one.cpu_times()[:2]) for one in _processes(here, pod))


def _memory(here: Cluster, pod: str) -> tuple[float, float]:
    """MiB of processes' own, and of shared memory."""
    own = 0
    for one in _processes(here, pod):
        found = re.search(r"^Pss_Anon:\s+(\d+) kB", Path(f"/proc/{one.pid}/smaps_rollup").read_text(), re.MULTILINE)
        own += int(found[1]) if found else 0
    shared = sum(path.stat().st_blocks * 512 for path in (here.folder / "shm" / pod).rglob("*"))
    return own / 2**10, shared / 2**20


if __name__ == "__main__":
    main()
