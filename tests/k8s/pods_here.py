"""Pods without Kubernetes: the command lines of the manifests, as their user, with their keys, names and addresses.

Each pod is a process in one network namespace, which lends it an address of its own; the namespace's /etc/hosts is the
cluster's DNS, in which addresses may change. Needs root.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.flows import runs
from tests.flows.network import ip_command
from tests.k8s.manifests import named, pods
from tests.tools import require, skip_or_fail

__all__ = ["Cluster", "cluster"]

USER = 10_001
_CREATED = itertools.count()
_ASK = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=60) as answer:
        print(answer.status, answer.read().decode(), sep="\\n")
except urllib.error.HTTPError as answer:
    print(answer.code, answer.read().decode(), sep="\\n")
"""


@dataclass
class Cluster:
    """One namespace of pods. `folder` holds what the volumes would."""

    documents: list[dict[str, Any]]
    folder: Path
    stack: ExitStack
    network: str
    addresses: dict[str, str] = field(default_factory=dict)
    pods: dict[str, runs.Worker] = field(default_factory=dict)

    def start(self, role: str, pod: str, name: str = "") -> runs.Worker:
        """Starts a pod of `role`, at an address that no pod had before; `name`: what DNS calls it."""
        address = f"10.77.{len(self.addresses)}.{next(_CREATED) % 250 + 1}"
        subprocess.run([ip_command(), "-n", self.network, "address", "add", f"{address}/32", "dev", "lo"], check=True)
        self.addresses[name or pod] = address
        self._names()
        template = pods(self.documents)[role]["spec"]
        container = template["containers"][0]
        environment = self._environment(container, pod, address, self._keys(role))
        arguments = [_filled(argument, environment) for argument in container["args"]]
        arguments = [argument.replace("/runs/", f"{self.folder}/runs/") for argument in arguments]
        arguments = [argument.replace("/config/", f"{self.folder}/config/") for argument in arguments]
        security = template["securityContext"]
        assert security["runAsUser"] == security["fsGroup"] == USER
        user = [require("setpriv"), f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
        user += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # Python may lie in root's home
        given = [f"{key}={value}" for key, value in environment.items()]
        on = [ip_command(), "netns", "exec", self.network, *user, "env", *given]
        file = f"{pod}-{len(self.pods)}"
        self.pods[pod] = self.stack.enter_context(runs.started(arguments, self.folder, file, on))
        return self.pods[pod]

    def ask(self, pod: str, port: int, path: str) -> tuple[int, str]:
        """Status and body of what a pod answers there, as a probe asks; (0, "") if it does not."""
        url = f"http://{self.addresses[pod]}:{port}{path}"
        command = [ip_command(), "netns", "exec", self.network, runs.PYTHON, "-c", _ASK, url]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        status, _, body = said.partition("\n")
        return int(status or 0), body

    def _environment(self, container: dict[str, Any], pod: str, address: str, keys: Path) -> dict[str, str]:
        """What Kubernetes would put there, the address instead of any, and what makes it a machine of its own."""
        found = dict(named(self.documents, "ConfigMap", "worker")["data"])
        for one in container["env"]:
            source = one.get("valueFrom", {})
            if "configMapKeyRef" in source:
                found[one["name"]] = named(self.documents, "ConfigMap", "run")["data"][source["configMapKeyRef"]["key"]]
            elif "fieldRef" in source:
                found[one["name"]] = {"metadata.name": pod, "status.podIP": address}[source["fieldRef"]["fieldPath"]]
            else:
                found[one["name"]] = one.get("value", "1")
        memory = self.folder / "shm" / pod
        memory.mkdir(parents=True, exist_ok=True)
        os.chown(memory, USER, USER)
        return {**found, "BIND": address, "ROOKERY_KEYS": str(keys), "ROOKERY_MEMORY": str(memory), "ROOKERY_NODE": pod}

    def _keys(self, role: str) -> Path:
        """The projected volume: root's files, lent to the pod's group."""
        folder = self.folder / "keys" / role
        if not folder.exists():
            folder.mkdir(parents=True)
            files = dict(named(self.documents, "ConfigMap", "keys-public")["data"])
            secret = named(self.documents, "Secret", f"keys-{role}")["data"]
            files |= {name: base64.b64decode(value).decode() for name, value in secret.items()}
            for name, text in files.items():
                (folder / name).write_text(text)
                os.chown(folder / name, 0, USER)
                (folder / name).chmod(0o440)
        return folder

    def _names(self) -> None:
        """Written in place: the file is mounted over /etc/hosts of the processes that run."""
        lines = [f"{address} {name}" for name, address in self.addresses.items()]
        with Path(f"/etc/netns/{self.network}/hosts").open("w") as hosts:
            hosts.write("\n".join(["127.0.0.1 localhost", *lines, ""]))


def _filled(argument: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], argument)


@contextmanager
def cluster(documents: list[dict[str, Any]]) -> Iterator[Cluster]:
    """A namespace with nothing in it yet; everything ends with it."""
    ip, network = ip_command(), f"rookery{os.getpid()}-pods{next(_CREATED)}"
    made = subprocess.run([ip, "netns", "add", network], capture_output=True, text=True, check=False)
    if made.returncode:
        skip_or_fail("no network namespaces", made.stderr.strip())
    names, folder = Path("/etc/netns") / network, Path(tempfile.mkdtemp(prefix="test-rookery-pods-"))
    try:
        names.mkdir(parents=True)
        subprocess.run([ip, "-n", network, "link", "set", "lo", "up"], check=True)
        folder.chmod(0o755)
        for part in ("runs", "config"):
            (folder / part).mkdir()
        os.chown(folder / "runs", USER, USER)
        (folder / "config" / "run.yaml").write_text(named(documents, "ConfigMap", "run")["data"]["run.yaml"])
        with ExitStack() as stack:
            yield Cluster(documents, folder, stack, network)
    finally:
        subprocess.run([ip, "netns", "del", network], check=False)
        shutil.rmtree(names, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
