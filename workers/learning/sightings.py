"""An auxiliary's way from ring to update: what others saw, copied once into the next batch, then settled.

Legend: `B` segments of a batch, `T` segment length, `K` entries of the side table, `n` segments copied at once.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.arrivals import Arrival
from protocol.counters import Counters
from protocol.layout import Layout
from protocol.ring import RECORD, place_of
from protocol.version import Version
from workers.learning.batches import Observations
from workers.learning.carrier import Carrier
from workers.learning.provenance import Origin
from workers.learning.source import Source, take_in

__all__ = ["Sightings"]

_COLUMNS = ("observation", "final_observation", "final_row")


class Sightings:
    """A pre-allocated batch of `segments` segments that fills up. Memory is pinned where a GPU reads it."""

    def __init__(
        self, name: str, layout: Layout, segments: int, source: Source, counters: Counters, device: torch.device
    ) -> None:
        self._name, self._source, self._counters, self._carrier = name, source, counters, Carrier(device)
        self._capacity = segments
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, NDArray] = {}
        for field in layout.fields:
            kind = np.int64 if field.name == "final_row" else np.dtype(field.dtype)
            tensor = self._carrier.memory(torch.from_numpy(np.zeros(layout.shape(field, segments), kind)))
            self._tensors[field.name], self._arrays[field.name] = tensor, tensor.numpy()
        self._tensors["valid"] = self._carrier.memory(torch.zeros(segments, dtype=torch.int64))
        self._valid = self._tensors["valid"].numpy()
        self._records, self._actors = np.zeros(segments, RECORD), [("", 0)] * segments
        self.count = 0

    def fill(self, now: Version) -> bool:
        """Copies what has arrived until the batch is full; True if it is. What was seen does not grow old: `now`
        decides nothing."""
        take_in(self._source, self._name, lambda: self._capacity - self.count, self._copy)
        self._counters.set(f"held.{self._name}", self.count)
        full = self.count == self._capacity
        if full:
            self._source.answer()
        return full

    def take(self) -> Observations:
        """The full batch on the device; empty afterwards, and its memory reused by the next `fill`."""
        self.count = 0
        sent = self._carrier.send(self._tensors)
        self._carrier.arrive(sent)
        return Observations(**sent)

    def provenance(self) -> list[Origin]:
        """Where each segment of the batch that was taken last came from; to be asked before the next `fill`."""
        return [Origin.of(actor, record) for actor, record in zip(self._actors, self._records, strict=True)]

    def _copy(self, arrival: Arrival, records: NDArray[np.void]) -> None:
        self._carrier.rest()
        source, at = place_of(records["slot"]), self.count
        with arrival.ring.reading():
            for name in _COLUMNS:
                self._arrays[name][at : at + len(records)] = arrival.ring.columns[name][source]
            intact = arrival.ring.intact(records)
        if not intact.all():
            torn = len(records) - int(intact.sum())
            for target in self._arrays.values():
                kept = target[at : at + len(records)][intact]
                target[at : at + len(kept)] = kept
            self._counters.add(f"torn.{self._name}", torn)
            self._counters.add(f"dropped.recycled.{self._name}", torn)
            records = records[intact]
        n = len(records)
        self._valid[at : at + n] = records["valid"]
        self._records[at : at + n] = records
        self._actors[at : at + n] = [(arrival.actor, arrival.incarnation)] * n
        self.count += n
        self._counters.add(f"received.{self._name}", n)
        self._counters.add(f"rows_received.{self._name}", int(records["valid"].sum()))
