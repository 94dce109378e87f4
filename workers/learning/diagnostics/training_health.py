"""Whether a policy's learning is sound: data first, then sharing, shape, computation, gradient, update, learning.

In flows: announced segments before they are read, batches, and what an update said of itself. Out flows: counters of
findings (workers/metrics/diagnostics.py), a line in the log for each when it is first found, and measurements.
Most batches are not looked at: the first ones are, and those that are logged.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.errors import TrainingFault
from protocol.experience.layout import Layout
from protocol.experience.receiver import Arrival
from protocol.memory.shared_file import Counters
from protocol.spaces import Box
from protocol.spaces.primitive import Discrete
from workers.algorithms.common.batches import (
    Learnable,
    ObservationBatch,
    SegmentBatch,
    TransitionBatch,
    non_tensor_field,
)
from workers.learning.diagnostics.batch_statistics import Sample, distinct_rows, sample, statistics
from workers.learning.diagnostics.explained_variance import explained_variance
from workers.learning.diagnostics.finite import not_finite
from workers.learning.diagnostics.value_bounds import ValueBounds
from workers.metrics.diagnostics import FINDINGS, LAYERS, LOOKED_AT, bound_counters, counter
from workers.policies.interface import Interface
from workers.policies.networks.layers import RowEncoder

log = logging.getLogger(__name__)

_FIRST = 10
"""Batches at the start that are all looked at."""
_LOOKS, _ROWS = 3, 128
"""Looks in a row, and rows in them, after which something is found: a small batch may look alike by chance."""
_LONG = 2_000
"""Rows without a reward, or with errors beyond all measure, that are worth a note: a new critic errs much."""
_AT_ONCE = 64
"""Announced segments that are compared with the memory they lie in."""
_PICTURE = 24
"""Rows and columns from which on numbers are taken for a picture."""
_FAINT = 8
"""Times that what an image is divided by exceeds its greatest byte."""
_NEGLIGIBLE = 1e-3
"""Part of the configured learning rate below which weights may well stand still."""


class _Streak:
    """Looks in a row in which something held."""

    def __init__(self, rows: int = _ROWS) -> None:
        self._least, self.rows, self.looks, self.broken = rows, 0, 0, False

    def add(self, holds: bool, rows: int) -> bool:
        """One more look at `rows` rows; whether it has held for long enough."""
        if not rows:
            return False
        self.rows, self.looks = (self.rows + rows, self.looks + 1) if holds else (0, 0)
        self.broken |= not holds
        return self.looks >= _LOOKS and self.rows >= self._least


class _Episodes:
    """How many ended, and in how many rows, since the first look that saw an end: copies may all be about to end when a
    learner begins."""

    def __init__(self) -> None:
        self._rows = self._limits = self._ends = self._looks = 0

    def cut_short(self, batch: SegmentBatch, gamma: float) -> bool:
        """One more look. Whether most episodes so far were cut off, after less than half of the 1 / (1 - gamma) steps
        that `gamma` counts."""
        real = torch.arange(batch.truncated.shape[1], device=batch.valid.device) < batch.valid[:, None]
        over = (batch.terminated | batch.truncated) & real
        ends = int(over.sum())
        if self._looks:
            self._rows, self._ends = self._rows + int(batch.valid.sum()), self._ends + ends
            self._limits += int((over & ~batch.terminated).sum())
        self._looks += ends > 0
        if self._looks <= _LOOKS:
            return False
        return self._limits * 2 > self._ends and 2 * self._rows * (1 - gamma) < self._ends


class TrainingHealth:
    """Of one policy in a learner. A new policy's actions vary; `new` False: it was trained before and may be sure.
    `encoder`: what reads its observations; None: they are one vector."""

    def __init__(
        self,
        policy: str,
        interface: Interface,
        layout: Layout,
        learning_rate: float,
        counters: Counters,
        bounds: ValueBounds,
        encoder: RowEncoder | None = None,
    ) -> None:
        self._policy, self._interface, self._layout, self._counters = policy, interface, layout, counters
        self._least_rate = learning_rate * _NEGLIGIBLE
        self.new = True
        self._looks = self._rows = 0
        self._episodes, self._bounds = _Episodes(), bounds
        self._streaks = {
            name: _Streak(_LONG if name in ("reward_zero", "reward_scale") else _ROWS) for name in FINDINGS
        }
        self._told: set[str] = set()
        self._before: Tensor | None = None
        """The first observation of the last look."""
        self._digest = 0
        self._usable = True
        """Whether the last batch was what an update can take."""
        scales = (
            {}
            if encoder is None
            else {part.path: encoder.scale(part.path) for part in interface.observation_encoding.parts}
        )
        self._images = {path: scale for path, scale in scales.items() if scale is not None}
        """Images of bytes by path, and what each is divided by."""
        self._look_at_spaces(encoder)

    @property
    def due(self) -> bool:
        """Whether the next batch is one of the first, which are all looked at."""
        return self._looks < _FIRST or self._rows < _ROWS

    def _look_at_spaces(self, encoder: RowEncoder | None) -> None:
        """Finds what can be known before the first step."""
        shown = [part for part in self._interface.observation_encoding.parts if _is_picture(part.space.shape)]
        pictures = [part for part in shown if encoder is None or encoder.flattens(part.path)]
        if pictures:
            size = sum(math.prod(part.space.shape) for part in pictures)
            self.find("picture_as_vector", f"field={pictures[0].column} numbers={size}")

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Compares what was announced with what lies in memory, before it is used."""
        if not arrivals or not self.due or "version" not in arrivals[0].ring.columns:
            return
        ring, records = arrivals[0].ring, arrivals[0].records[:_AT_ONCE]
        with ring.reading():
            versions = ring.columns["version"][records["slot"], self._layout.before :][:, : self._layout.length]
            intact = ring.intact(records)
        low, high = records["version_min"][:, None], records["version_max"][:, None]
        real = np.arange(versions.shape[1]) < records["valid"][:, None]
        other = (real & ((versions < low) | (versions > high))).any(1) & intact
        if other.any():
            self.find("memory_disagrees", f"segments={int(other.sum())}")

    def on_no_data(self) -> None:
        """There was too little for a batch: has nothing that was announced ever been there?"""
        received, torn = (self._counters[f"{name}.{self._policy}"] for name in ("received", "torn"))
        if received and self._holds("nothing_whole"):
            self._release("nothing_whole")
        elif not received and torn >= _AT_ONCE and not self._holds("nothing_whole"):
            self.find("nothing_whole", f"segments={int(torn)}")

    def check(self, batch: Learnable) -> None:
        """Raises TrainingFault for a batch that no update should see: no tensors, or not of the layout's shape."""
        self._usable = False
        strange = non_tensor_field(batch)
        if strange is not None:
            self.find("not_tensors", f"field={strange.field}")
            raise strange
        wrong = self._misshapen(batch)
        if wrong:
            name, found, expected = wrong
            self.find("wrong_shape", f"field={name} found={list(found)} expected={list(expected)}")
            raise TrainingFault("shape_differs_from_layout", field=name, value=list(found), expected=list(expected))
        self._usable = True

    def analyse(self, batch: Learnable, metrics: Mapping[str, float]) -> dict[str, float]:
        """Judges `batch` and what its update said of itself; returns the batch's measurements."""
        seen = sample(batch, self._interface)
        if not seen.rows:
            return {}
        self._looks += 1
        self._rows += seen.rows
        self._counters.add(f"{LOOKED_AT}.{self._policy}")
        bounded = self._bounds.look(seen, metrics)
        beyond = {name: value > bound for name, (value, bound) in bounded.items()}
        verdicts = {**self._data(seen), **self._computation(metrics), **beyond}
        if self._images and not self._streaks["image_faint"].broken:
            verdicts["image_faint"] = self._faint(batch.observation.cpu().numpy())
        if isinstance(batch, SegmentBatch):
            verdicts["limit_before_horizon"] = self._episodes.cut_short(batch, self._bounds.gamma)
        long = {name: self._streaks[name].add(holds, seen.rows) for name, holds in verdicts.items()}
        for layer in LAYERS:
            for name in [name for name in verdicts if FINDINGS[name].layer == layer]:
                if long[name] and not self._failing_below(layer):
                    details = f"rows={self._streaks[name].rows}"
                    if name in bounded:
                        value, bound = bounded[name]
                        details += f" value={value:.4g} limit={bound:.4g}"
                        for place, number in zip(bound_counters(name, self._policy), (value, bound), strict=True):
                            self._counters.set(place, number)
                    self.find(name, details)
                elif not verdicts[name] and self._holds(name):
                    self._release(name)
        told = statistics(seen, self._interface)
        if isinstance(batch, SegmentBatch) and "intrinsic_max" not in metrics:  # values tell the bonus, too
            explained = explained_variance(batch, self._bounds.gamma)
            return told if explained is None else {**told, "explained_variance": explained}
        return told

    def refused(self, batch: Learnable) -> bool:
        """An update found `batch`, or what it computed, not finite: which of the two? True if it can be kept."""
        if self._usable:
            bad = not_finite(batch)
            self.find("not_finite" if bad else "loss_not_finite", f"fields={','.join(bad)}" if bad else "")
        return self._usable

    def find(self, name: str, details: str = "") -> None:
        """Counts a finding, and says it when it is new."""
        self._counters.add(counter(name, self._policy))
        if name in self._told:
            return
        self._told.add(name)
        one = FINDINGS[name]
        level = logging.ERROR if one.level == "fault" else logging.WARNING
        text = "event=health layer=%s policy=%s finding=%s level=%s %s says=%s remedy=%s"
        log.log(level, text, one.layer, self._policy, name, one.level, details or "-", one.says, one.remedy)

    def _release(self, name: str) -> None:
        self._counters.set(counter(name, self._policy), 0)
        log.info("event=health_recovered layer=%s policy=%s finding=%s", FINDINGS[name].layer, self._policy, name)

    def _holds(self, name: str) -> bool:
        return self._counters[counter(name, self._policy)] > 0

    def _failing_below(self, layer: str) -> bool:
        """Whether a layer below fails, of which more than its symptoms cannot be seen. What was read from other memory
        than the actor's says nothing of the world either."""
        below = LAYERS[: LAYERS.index(layer)] if layer != "data" else ("sharing",)
        return any(self._holds(one.name) for one in FINDINGS.values() if one.layer in below and one.level == "fault")

    def _data(self, seen: Sample) -> dict[str, bool]:
        """What holds of this batch alone, and of it and the last one."""
        observation, reward = seen.observation, seen.scalars.get("reward")
        first, self._before = self._before, observation[0].clone()
        constant = bool((observation == (observation[0] if first is None else first)).all())
        zero = not observation.any()
        varying = {leaf.evaluation_only for leaf in self._interface.place.observed.leaves if _varies(leaf.space)}
        same = constant and not zero
        holds = {"observation_zero": zero and False in varying, "observation_constant": same and False in varying}
        if seen.privileged.shape[1] and True in varying:
            holds["privileged_constant"] = bool((seen.privileged == seen.privileged[0]).all())
        # once there was one, they are rare and no more
        if reward is not None and not self._streaks["reward_zero"].broken:
            holds["reward_zero"] = not reward.any()
        if self.new and not self._streaks["action_constant"].broken and seen.free.any():
            holds["action_constant"] = self._one_action(seen)
        if self._looks <= _FIRST and not (constant and (reward is None or len(reward.unique()) == 1)):
            digest, last = _digest(seen), self._digest
            self._digest = digest
            holds["batch_repeated"] = digest == last and distinct_rows(torch.cat([observation, seen.action], 1)) > 1
        return holds

    def _faint(self, rows: NDArray) -> bool:
        """Whether an image in all of these rows is next to black."""
        leaves = self._interface.observation_encoding.leaves(rows)
        return any(float(leaves.get(path, rows).max()) * _FAINT < scale for path, scale in self._images.items())

    def _one_action(self, seen: Sample) -> bool:
        """Whether all that was done, where something else might have been, is the same."""
        done = torch.cat([seen.action.float(), seen.amount], 1)[seen.free]
        several = max(self._interface.action_encoding.head_sizes, default=2) > 1
        return several and bool((done == done[0]).all())

    def _computation(self, metrics: Mapping[str, float]) -> dict[str, bool]:
        holds = {}
        if "grad_norm" in metrics:
            still = metrics["grad_norm"] == 0
            holds["gradient_zero"] = still
            if "weight_delta" in metrics:
                rate = metrics.get("learning_rate", math.inf)
                holds["weights_unmoved"] = not still and metrics["weight_delta"] == 0 and rate > self._least_rate
        return holds

    def _misshapen(self, batch: Learnable) -> tuple[str, Sequence[int], Sequence[int]] | None:
        """The first field of another shape than its layout's: name, shape found and expected."""
        shown = self._interface.observation_encoding.shape
        expected: dict[str, tuple[int, ...]] = {}
        rows: tuple[int, ...]
        if isinstance(batch, TransitionBatch):
            rows = (len(batch.reward),)
            frames = tuple(batch.observation.shape[1:2])
            expected |= dict.fromkeys(("observation", "next_observation"), (*rows, *frames, *shown))
            expected |= dict.fromkeys(("reward", "discount"), rows)
        else:
            n, length = len(batch.valid), self._layout.length
            rows = (n, length)
            expected["observation"] = (n, length + 1, *shown)
            expected["final_observation"] = (*batch.final_row.shape, *shown)
        if isinstance(batch, SegmentBatch):
            expected |= dict.fromkeys(("reward", "terminated", "truncated", "log_probability"), rows)
            if batch.value is not None:
                expected["value"] = rows
            if batch.privileged is not None and self._interface.privileged is not None:
                width = self._interface.privileged.width
                expected["privileged"] = (n, length + 1, width)
                expected["final_privileged"] = (*batch.final_row.shape, width)
        if not isinstance(batch, ObservationBatch):
            heads = len(self._interface.action_encoding.head_sizes)
            expected["action"] = rows if self._interface.action_encoding.single else (*rows, heads)
        for name, shape in expected.items():
            found = tuple(getattr(batch, name).shape)
            if found != shape:
                return name, found, shape
        return None


def _is_picture(shape: Sequence[int]) -> bool:
    return len(shape) in (2, 3) and sorted(shape)[-2] >= _PICTURE


def _varies(space: object) -> bool:
    """Whether an observation of `space` can be anything but one value."""
    if isinstance(space, Box):
        return space.low is None or space.low != space.high
    return not (isinstance(space, Discrete) and space.n == 1)


def _digest(seen: Sample) -> int:
    """Of the bytes of what was seen, done and earned."""
    value = 0
    for column in (seen.observation, seen.action, seen.amount, *seen.scalars.values()):
        value = zlib.crc32(np.ascontiguousarray(column.numpy()).view(np.uint8).reshape(-1).data, value)
    return value
