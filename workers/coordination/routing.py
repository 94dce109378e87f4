"""How a worker reaches each learner: straight, or by way of the relays of its own node and of the learner's. Pure.

In flows: the learners' routes and what relays offer, a route each of what they can pass on now. Out flow: routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from protocol.messages.core import Route


def route_via_relays(routes: Iterable[Route], offers: Mapping[str, Sequence[Route]], node: str) -> list[Route]:
    """`routes` as a worker on `node` is told them; `offers` by node.

    On the learner's node, and where a node is not known, everything goes straight. From elsewhere experience goes by
    the relay of the learner's node, and weights come by that of the worker's own. Acknowledgements are always the
    learner's.
    """
    return [_way(route, offers, node) if node and route.node not in ("", node) else route for route in routes]


def _way(route: Route, offers: Mapping[str, Sequence[Route]], node: str) -> Route:
    update: dict[str, str | int] = {}
    for offer in offers.get(node, ()):
        if offer.policy == route.policy and offer.weights_relay:
            update |= {"weights": offer.weights, "weights_relay": offer.weights_relay}
    for offer in offers.get(route.node, ()):
        if offer.policy == route.policy and offer.experience_relay:
            update |= {"experience": offer.experience, "experience_relay": offer.experience_relay}
    return route.model_copy(update=update)
