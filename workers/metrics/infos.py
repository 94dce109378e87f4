"""What worlds tell of their episodes (`info`), as curves: counters of actors in, means by policy and name out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from protocol.messages.simulator import LONGEST_INFO, MOST_INFOS
from workers.metrics.diagnostics import CUT, INFOS_CUT, INFOS_NOT_FINITE, counter, cut_counter
from workers.metrics.segment_accounting import Page

log = logging.getLogger(__name__)

MOST, ALL, LONGEST = MOST_INFOS, 600, LONGEST_INFO
"""Names of a policy that there are curves of, the first that are told; of all policies, as they must fit into a
heartbeat; characters of such a name."""


def info_counters(policy: str, name: str) -> tuple[str, str]:
    """Counters of the episodes that told `name`, and of the sum of what they told."""
    return f"infos.{policy}/{name}", f"info_sums.{policy}/{name}"


def infos_counted(
    known: Collection[str], infos: Iterable[tuple[str, str, int, float]], policies: int
) -> dict[str, float]:
    """What is to be added to which counters, of which there are the `known`: of (policy, name, episodes, sum), where
    the name is empty of numbers that are none. Of names that are too many for one of so many `policies` it is said that
    they are left out."""
    most = max(1, min(MOST, ALL // policies))
    added, there = dict[str, float](), {*known}
    kinds = Counter(map(_kind, there))
    for policy, name, count, total in infos:
        places, cut = info_counters(policy, name), cut_counter(policy, name)
        fits = len(name) <= LONGEST and name.isprintable() and kinds[_kind(places[0])] < most
        found: dict[str, float] = {counter(INFOS_CUT if name else INFOS_NOT_FINITE, policy): count}
        if name and (fits or places[0] in there):
            found = {places[1]: total, places[0]: count}  # the sum first: whoever reads between them sees it at last
        elif name and cut not in there and kinds[_kind(cut)] < CUT:
            log.warning("event=%s policy=%s name=%a most=%d", INFOS_CUT, policy, name, most)
            found[cut] = 0
        kinds.update(map(_kind, found.keys() - there))
        there |= found.keys()
        for place, value in found.items():
            added[place] = added.get(place, 0) + value
    return added


def _kind(counter: str) -> str:
    return counter.partition("/")[0]


class InfoCurves:
    """Of all `policies` that are played."""

    def __init__(self, policies: Iterable[str]) -> None:
        self.newest: dict[str, dict[str, float]] = {policy: {} for policy in policies}
        """policy -> `info/NAME` -> mean over the episodes that ended between the last two looks in which any did."""
        self.told = 0.0
        """How many numbers are in the totals."""
        self._totals: dict[str, dict[str, tuple[float, float]]] = {policy: {} for policy in self.newest}
        """policy -> name -> (episodes, sum) so far."""

    def add(self, policy: str) -> None:
        """One more that is played."""
        self.newest[policy], self._totals[policy] = {}, {}

    def look(self, actors: Page) -> None:
        """At the sums of what all actors counted."""
        for told, count in actors.items():
            place = told.removeprefix("infos.")
            policy, _, name = place.partition("/")
            totals = self._totals.get(policy)
            if place == told or totals is None or not name.isprintable():
                continue
            if name not in totals and len(totals) >= MOST:
                continue
            before, now = totals.get(name, (0.0, 0.0)), (count, actors.get(f"info_sums.{place}", 0.0))
            if count > before[0]:
                self.told += count - before[0]
                self.newest[policy][f"info/{name}"] = (now[1] - before[1]) / (count - before[0])
            if count >= before[0]:  # or else not all actors are back whom a coordinator before this one knew
                totals[name] = now

    def to_plain(self) -> dict[str, Any]:
        """What is to be kept: the totals."""
        return dict(self._totals)

    def restore(self, kept: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Goes on from what was kept."""
        for policy, totals in kept.items():
            self._totals[policy] = {name: (count, total) for name, (count, total) in totals.items()}

    def whole(self) -> dict[str, dict[str, dict[str, float]]]:
        """policy -> name -> `episodes` of the whole run that told it, and the `mean` of what they told."""
        return {
            policy: {name: {"episodes": int(count), "mean": total / count} for name, (count, total) in totals.items()}
            for policy, totals in self._totals.items()
        }
