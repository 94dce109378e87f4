"""Who may connect to whom: the NetworkPolicies of the manifests, enforced by nft in a network namespace of the test's
own, and every connection tried."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.flows.network import ip_command
from tests.flows.runs import PYTHON
from tests.k8s.manifests import Built, Document, pods
from tests.k8s.policies import Pod, rules
from tests.tools import require, skip_or_fail

_TRY = """
import json, socket, sys
addresses, ports = json.loads(sys.argv[1])
listening = []
for port in ports:
    listener = socket.create_server(("0.0.0.0", port), backlog=1000)
    listening.append(listener)
for one in addresses:
    for other in addresses:
        for port in ports:
            if one != other:
                try:
                    socket.create_connection((addresses[other], port), 20, (addresses[one], 0)).close()
                except OSError:
                    continue
                print(one, other, port)
"""
_WIRE = (5611, 5612, 5613)
HTTP = (5609, 5619, 5629, 5649)
PORTS = (53, 5600, *_WIRE, *HTTP, 7777)
"""All that are tried; the last one is nobody's."""


@pytest.fixture
def namespace() -> Iterator[str]:
    """Its name; root is needed."""
    ip, name = ip_command(), f"rookery{os.getpid()}-policies"
    made = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        skip_or_fail("no network namespaces", made.stderr.strip())
    try:
        subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run([ip, "netns", "del", name], check=False)


def connected(namespace: str, documents: list[Document]) -> set[tuple[str, str, int]]:
    """(pod, other pod, port) of all connections that come about between the run's pods, one of another's in the same
    namespace, a DNS, and a Prometheus in its namespace."""
    ip, nft = ip_command(), require("nft")
    labels = {role: template["metadata"]["labels"] for role, template in pods(documents).items()}
    there = {
        name: Pod(f"10.78.0.{number}", tuple(labels[name.partition("-")[0]].items()))
        for number, name in enumerate(("coordinator", "learner-0", "learner-1", "actor-0", "actor-1", "evaluator-0"), 1)
    }
    there["stranger"] = Pod("10.78.0.20", (("app", "other"),))
    there["dns"] = Pod("10.78.0.21", (), "kube-system")
    there["prometheus"] = Pod("10.78.0.22", (), "monitoring")
    for pod in there.values():
        subprocess.run([ip, "-n", namespace, "address", "add", f"{pod.address}/32", "dev", "lo"], check=True)
    inside = [ip, "netns", "exec", namespace]
    subprocess.run([*inside, nft, "-f", "-"], input=rules(documents, [*there.values()]), text=True, check=True)
    addresses = {name: pod.address for name, pod in there.items()}
    asked = json.dumps([addresses, PORTS])
    said = subprocess.run([*inside, PYTHON, "-c", _TRY, asked], capture_output=True, text=True, check=True).stdout
    return {(one, other, int(port)) for one, other, port in (line.split() for line in said.splitlines())}


@pytest.mark.parametrize("overlay", ["local", "cpu", "trusting"])
def test_pods_reach_what_the_wire_needs_and_nothing_else(built: Built, namespace: str, overlay: str) -> None:
    found = connected(namespace, built[overlay])
    learners, others = {"learner-0", "learner-1"}, {"actor-0", "actor-1", "evaluator-0"}
    ours, outside = {"coordinator"} | learners | others, {"dns", "prometheus"}
    wanted = set(itertools.product(learners | others, ["coordinator"], [5600]))
    wanted |= set(itertools.product(learners | others, learners, _WIRE))
    wanted |= set(itertools.product(ours | {"stranger"}, outside, [53]))  # where a cluster's DNS is is not known
    wanted |= set(itertools.product(outside, outside, PORTS))
    if overlay == "cpu":
        wanted |= set(itertools.product(["prometheus"], ours, HTTP))
    if overlay == "trusting":
        wanted |= set(itertools.product(learners, learners, PORTS))
    wanted = {(one, other, port) for one, other, port in wanted if one != other}
    assert found - wanted == set()
    assert wanted - found == set()
