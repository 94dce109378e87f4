"""NetworkPolicies as rules of nft, for pods that are addresses of one network namespace: what a cluster's network would
enforce. Only what our manifests use is known; anything else is an AssertionError."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.k8s.manifests import Document

__all__ = ["Pod", "rules"]

_WAYS = {
    "Egress": ("egress", "to", "output", "saddr", "daddr"),
    "Ingress": ("ingress", "from", "input", "daddr", "saddr"),
}


@dataclass(frozen=True)
class Pod:
    """One of a namespace, at its address."""

    address: str
    labels: tuple[tuple[str, str], ...]
    namespace: str = "rookery"


def rules(documents: list[Document], pods: list[Pod]) -> str:
    """A table: each packet of a new connection has to pass its own pod's policies, then those of the other. Who is
    chosen by no policy for a direction is free in it; replies are always let through."""
    policies = [document for document in documents if document["kind"] == "NetworkPolicy"]
    lines = ["table inet policies {"]
    for kind, (key, peers, hook, own, other) in _WAYS.items():
        lines.append(f"chain {key} {{ type filter hook {hook} priority 0; policy accept;")
        lines.append("ct state established,related accept")
        for pod in pods:
            chosen = [policy for policy in policies if kind in policy["spec"]["policyTypes"] and _chooses(policy, pod)]
            for policy in chosen:
                for rule in policy["spec"].get(key, []):
                    for peer in _peers(rule.get(peers), policy, pods):
                        what = "" if peer is None else f"ip {other} {peer.address} "
                        lines += [f"ip {own} {pod.address} {what}{ports} accept" for ports in _ports(rule)]
            if chosen:
                lines.append(f"ip {own} {pod.address} meta l4proto tcp reject with tcp reset")
        lines.append("}")
    return "\n".join([*lines, "}", ""])


def _chooses(policy: Document, pod: Pod) -> bool:
    return pod.namespace == policy["metadata"]["namespace"] and _matches(policy["spec"]["podSelector"], pod)


def _matches(selector: Document, pod: Pod) -> bool:
    labels = dict(pod.labels)
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def _peers(listed: list[Document] | None, policy: Document, pods: list[Pod]) -> Iterator[Pod | None]:
    """Those that one rule names; None stands for everybody."""
    if listed is None:
        yield None
    for peer in listed or []:
        assert set(peer) in ({"podSelector"}, {"namespaceSelector"}), peer
        for pod in pods:
            named = {"kubernetes.io/metadata.name": pod.namespace}
            if "namespaceSelector" in peer:
                found = peer["namespaceSelector"]["matchLabels"].items() <= named.items()
            else:
                found = pod.namespace == policy["metadata"]["namespace"] and _matches(peer["podSelector"], pod)
            if found:
                yield pod


def _ports(rule: Document) -> Iterator[str]:
    if "ports" not in rule:
        yield ""
    for port in rule.get("ports", []):
        yield f"{port.get('protocol', 'TCP').lower()} dport {port['port']}"
