"""`python3 dns.py ADDRESS KUBECONFIG`: the cluster's DNS, for which Debian has no package.

In flow: questions, and what the API server tells of services and endpoints. Out flow: addresses of services, and of the
pods of headless ones.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ZONE = ".svc.cluster.local"
KEPT = 0.5
"""Seconds for which an answer of the API server is believed."""
_A, _IN, _HEADER = 1, 1, 12
_said: dict[str, tuple[float, dict[str, list[str]]]] = {}


def names(namespace: str, token: str) -> dict[str, list[str]]:
    """Name in front of NAMESPACE.svc.cluster.local -> addresses."""
    if namespace in _said and time.monotonic() - _said[namespace][0] < KEPT:
        return _said[namespace][1]
    found: dict[str, list[str]] = {}
    for service in _items(namespace, "services", token):
        address = service["spec"].get("clusterIP", "None")
        found[service["metadata"]["name"]] = [] if address == "None" else [address]
    for points in _items(namespace, "endpoints", token):
        name = points["metadata"]["name"]
        for pod in (pod for subset in points.get("subsets") or [] for pod in subset.get("addresses") or []):
            if "hostname" in pod:
                found[f"{pod['hostname']}.{name}"] = [pod["ip"]]
            if name in found and not any(address.startswith("10.96.") for address in found[name]):
                found[name].append(pod["ip"])
    _said[namespace] = (time.monotonic(), found)
    return found


def _items(namespace: str, kind: str, token: str) -> list[dict]:
    url = f"https://127.0.0.1:6443/api/v1/namespaces/{namespace}/{kind}"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=5, context=ssl._create_unverified_context()) as said:
        return json.load(said)["items"]


def answer(question: bytes, token: str) -> bytes:
    """One packet for one (RFC 1035, section 4): addresses for A, nothing for other kinds of a known name."""
    labels, at = [], _HEADER
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode().lower())
        at += question[at] + 1
    name, kind = ".".join(labels), struct.unpack_from(">H", question, at + 1)[0]
    known = None
    if name.endswith(ZONE):
        front, _, namespace = name.removesuffix(ZONE).rpartition(".")
        known = names(namespace, token).get(front)
    given = [socket.inet_aton(address) for address in known or []] if kind == _A else []
    flags = 0x8580 | (0 if known is not None else 3)  # authoritative answer, or no such name
    said = question[:2] + struct.pack(">HHHHH", flags, 1, len(given), 0, 0) + question[_HEADER : at + 5]
    return said + b"".join(struct.pack(">HHHIH", 0xC000 | _HEADER, _A, _IN, 2, 4) + one for one in given)


def main(address: str, kubeconfig: str) -> None:
    """Until it is killed with its machine."""
    found = re.search(r"token: (\w+)", Path(kubeconfig).read_text())
    assert found is not None
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        question, asker = server.recvfrom(2048)
        try:
            server.sendto(answer(question, found[1]), asker)
        except (urllib.error.URLError, OSError, IndexError, struct.error) as error:
            sys.stderr.write(f"event=unanswered from={asker[0]} error={error!r}\n")  # they ask again


if __name__ == "__main__":
    main(*sys.argv[1:])
