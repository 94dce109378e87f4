"""How often data are replayed: neither the learner nor the actors may run away from the other.

The rule of Reverb's rate limiter (Cassirer et al. 2021, section 3.3; `SampleToInsertRatio`), for rows that come and go
many at once. With `diff = inserted * samples_per_insert - sampled`, at least `min_size_to_sample` rows inserted and
`offset = samples_per_insert * min_size_to_sample`,

* a batch may be drawn if diff stays at or above `offset - error_buffer`,
* rows may come in if diff stays at or below `offset + error_buffer`.
"""

from __future__ import annotations

import math

from protocol.errors import ConfigurationError


class RateLimiter:
    """Counts rows: batches of `batch`, insertions of at most `insertion`.

    `error_buffer` None: no batch is drawn before its rows have come (nothing below the offset), and two of the largest
    insertions and a batch above it.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        batch: int,
        insertion: int,
        error_buffer: float | None = None,
    ) -> None:
        if not (samples_per_insert > 0 and math.isfinite(samples_per_insert)) or batch < 1 or insertion < 1:
            raise ConfigurationError("sampling_not_positive", key="policy.algorithm.replay_ratio")
        if min_size_to_sample < 1:
            raise ConfigurationError("learning_starts_not_positive", key="policy.algorithm.learning_starts")
        step = batch + samples_per_insert * insertion
        if error_buffer is not None and error_buffer < step / 2:
            raise ConfigurationError(
                "error_buffer_too_small",
                value=error_buffer,
                batch_size=batch,
                rows=insertion,
                ratio=samples_per_insert,
                expected=math.ceil(step / 2),
                key="policy.algorithm.error_buffer",
            )
        self._ratio, self._batch = samples_per_insert, batch
        self.min_size_to_sample, self.insertion = min_size_to_sample, insertion
        offset = samples_per_insert * min_size_to_sample
        below, above = (0.0, step + samples_per_insert * insertion) if error_buffer is None else (error_buffer,) * 2
        self._min_diff, self._max_diff = offset - below, offset + above
        self.inserted = 0
        self.sampled = 0

    @property
    def diff(self) -> float:
        """Rows that may still be sampled for those that came in."""
        return self.inserted * self._ratio - self.sampled

    @property
    def may_sample(self) -> bool:
        """Whether a batch may be drawn now."""
        return self.inserted >= self.min_size_to_sample and self.diff - self._batch >= self._min_diff

    def may_insert(self, rows: int) -> bool:
        """Whether `rows` more rows may come in; ValueError for more at once than it was made for."""
        if rows > self.insertion:
            raise ValueError(f"{rows} rows at once, at most {self.insertion} were announced")
        return self.inserted < self.min_size_to_sample or self.diff + rows * self._ratio <= self._max_diff
