"""A real Kubernetes of one node, from the scripts beside this file, and the questions that a test asks of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.manifests import build
from tests.leak_guard import MARK
from tests.tools import ROOT, skip_or_fail

__all__ = ["NAMESPACE", "Kubernetes", "kubernetes", "manifests"]

HERE = Path(__file__).parent
NAMESPACE = "rookery"
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "one"},
    "spec": {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/var/lib/volume", "type": "Directory"},
    },
}
"""What a provisioner of volumes would make: the cluster has none."""


class Refused(Exception):
    """What kubectl said when it failed."""


class Kubernetes:
    """kubectl of a cluster that is up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str, given: str | None = None, namespace: str = NAMESPACE) -> str:
        """What `kubectl ARGUMENTS` answers. Raises: `Refused`."""
        inside = ["env", "KUBECONFIG=/share/admin.yaml", "/share/bin/kubectl", f"--namespace={namespace}", *arguments]
        made = subprocess.run(
            [HERE / "machine.sh", "run", *inside], input=given, capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise Refused(f"kubectl {' '.join(arguments)}: {made.stderr.strip()}")
        return made.stdout

    def pods(self, component: str) -> dict[str, dict[str, Any]]:
        """Name -> pod of those that are there and not about to go."""
        said = self("get", "pods", "--selector", f"app.kubernetes.io/component={component}", "--output", "json")
        found = {pod["metadata"]["name"]: pod for pod in json.loads(said)["items"]}
        return {name: pod for name, pod in found.items() if "deletionTimestamp" not in pod["metadata"]}

    def ready(self, component: str, count: int) -> bool:
        """Whether as many pods are there, and all are ready."""
        pods = self.pods(component).values()
        return len(pods) == count and all(
            {"type": "Ready", "status": "True"}.items() <= condition.items()
            for pod in pods
            for condition in pod["status"].get("conditions", [{}])
            if condition.get("type", "Ready") == "Ready"
        )

    def metrics(self, pod: str, port: int) -> dict[str, float]:
        """Name and labels of a series -> its value, as a scraper sees them; nothing where nobody answers yet."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{port}/proxy/metrics"
        try:
            lines = self("get", "--raw", path).splitlines()
        except Refused:
            return {}
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def run_metrics(self) -> dict[str, float]:
        """Those of the run, which the coordinator tells."""
        return next((self.metrics(name, 5609) for name in self.pods("coordinator")), {})

    def made(self, series: str) -> float:
        """A counter of the run, summed over its labels."""
        return sum(value for name, value in self.run_metrics().items() if name.partition("{")[0] == series)

    def file(self, name: str) -> str:
        """Of the run's folder, which lies on the volume; empty where there is none."""
        path = self.folder / "root" / "var" / "lib" / "volume" / "first" / name
        return path.read_text() if path.exists() else ""

    def until(self, true: Callable[[], Any], seconds: float, what: str) -> float:
        """Waits for it, and tells how long that took; AssertionError, with what the pods say, when it does not come."""
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            if true():
                return time.monotonic() - begin
            time.sleep(0.5)
        raise AssertionError(f"after {seconds:g} s still not: {what}\n{self.said()}")

    def said(self) -> str:
        """Pods and the last words of each."""
        parts = [self("get", "pods", "--output", "wide"), self("get", "events")[-3000:]]
        for pod in self("get", "pods", "--output", "name").split():
            try:
                parts.append(f"{pod}:\n{self('logs', pod, '--tail', '8')}")
            except Refused as error:
                parts.append(f"{pod}: {error}")
        return "\n".join(parts)


def manifests(folder: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """`k8s/overlays/local` of the copy `folder` of k8s/ with the configuration `run`, and a volume."""
    (folder / "overlays" / "local" / "run.yaml").write_text(yaml.safe_dump(run))
    documents = build(folder / "overlays" / "local")
    for document in documents:
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", "actor"):  # as `k8s render` makes it
            document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = int(run["learner_timeout"]) + 5
    return [VOLUME, *documents]


@contextmanager
def kubernetes() -> Iterator[Kubernetes]:
    """The cluster up, on a machine and with images that are there; nothing of it stays up."""
    folder = Path(os.environ.get("ROOKERY_CLUSTER", ROOT / "build" / "cluster"))
    if not (folder / "share" / "rookery.tar").exists():
        skip_or_fail("the cluster is not built")
    for name in ("node.sh", "dns.py"):
        shutil.copy(HERE / name, folder / "share" / name)
    _step("machine.sh", "up")
    try:
        _step("machine.sh", "run", "bash", "/share/node.sh")
        yield Kubernetes(folder)
    finally:
        _step("machine.sh", "down")


def _step(script: str, *arguments: str) -> None:
    """Not as a part of this test run, whose end would otherwise take the pods for leaks."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    with tempfile.TemporaryFile("w+") as said:  # what stays up would hold a pipe open
        made = subprocess.run(
            [HERE / script, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            check=False,
        )
        said.seek(0)
        assert made.returncode == 0, f"{script} {' '.join(arguments)}:\n{said.read()[-4000:]}"
