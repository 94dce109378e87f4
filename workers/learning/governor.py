"""How often data are replayed: neither the learner nor the actors may run away from the other.

The rule of Reverb's sample-to-insert rate limiter (Cassirer et al. 2021, section 3.3): with
`diff = (inserted - start) * ratio - sampled`, a batch may be drawn while it leaves `diff >= 0`, and rows may come in
while `diff <= slack`.
"""

from __future__ import annotations

from protocol.errors import ConfigurationError

__all__ = ["Governor"]


class Governor:
    """Counts rows. `slack` (in sampled rows) must cover the largest insertion and a batch, or both sides would wait."""

    def __init__(self, ratio: float, start: int, batch: int, insertion: int, paces: bool) -> None:
        self._ratio, self._start, self._batch = ratio, start, batch
        self._slack = ratio * insertion + batch
        self._paces = paces
        self.inserted = 0
        self.sampled = 0
        if ratio * insertion <= 0 or batch < 1:
            raise ConfigurationError("replay_ratio and batch_size must be positive; raise them")

    @property
    def may_sample(self) -> bool:
        """Whether a batch may be drawn now."""
        return self.inserted >= self._start and self._diff >= self._batch

    @property
    def may_insert(self) -> bool:
        """Whether the actors may go on (always, unless the flow paces them)."""
        return not self._paces or self.inserted < self._start or self._diff <= self._slack

    @property
    def _diff(self) -> float:
        return (self.inserted - self._start) * self._ratio - self.sampled
