"""The returns and lengths of one policy's episodes: episodes in, means over parts of the run and of the newest out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.metrics.segment_accounting import Pages
from workers.runtime.files import AppendFile, SafeWriter

PARTS, WINDOWS = 200, 20
"""Equal parts of a run for which returns are told apart; how often the 5 % that are compared go into it."""
_WINDOW = PARTS // WINDOWS
FIRST = ("first_going", "first_ended", "first_returns")
"""Counters of an actor, each of a policy: how many of the episodes that began in the first 5 % of its steps go on, how
many have ended, and the sum of their returns."""
PlacedEpisodes = tuple[str, int, int, int, float, int]
"""(policy, agent steps of the actor, agent steps of the run, episodes, sum of returns, sum of lengths)."""
Cohort = tuple[float, float, float]
"""The same, of a whole run."""
_OPEN = 0.05
"""Share of a cohort that may go on, or have been lost with its actor, for the others' mean to stand for all."""
_NEWEST, _LEAST = 100, 20
"""Episodes that the newest mean is over, and from how many on there is one."""


class ReturnsCurve:
    """The run's `steps` agent steps in 200 equal parts, each with its episodes, in `copies` of the world."""

    def __init__(self, steps: int, copies: int = 1) -> None:
        self._steps, self._copies = steps, copies
        self._parts: dict[int, list[float]] = {}
        """part -> [episodes, sum of returns, sum of lengths], where any ended."""
        self._settled: int | None = None
        """The part in which the last of the first episodes ended."""

    def add(self, at: int, count: int, total_return: float, total_length: int) -> None:
        """`count` episodes ended when the run had made about `at` agent steps."""
        entry = self._parts.setdefault(self._part(at), [0, 0.0, 0])
        entry[0] += count
        entry[1] += total_return
        entry[2] += total_length

    @property
    def history(self) -> list[float]:
        """Mean returns in order, of the parts in which episodes ended."""
        return [self._parts[part][1] / self._parts[part][0] for part in sorted(self._parts)]

    def settle(self, at: int, cohort: Cohort | None) -> None:
        """By about `at` steps all of the first `cohort` had ended, if they have: until then it is the short ones that
        end, and a policy that ends its episodes early where it does well seems to do so always."""
        over = at * WINDOWS >= self._steps
        if self._settled is None and over and cohort is not None and _mean_of(cohort) is not None:
            self._settled = self._part(at)

    def summary(self, cohort: Cohort | None = None) -> dict[str, float | None]:
        """Mean return over the first, the last and the best 5 % of the run (of its parts in which episodes ended).

        The first is that of the `cohort`, the episodes that began there, or None where they have not ended; the best is
        looked for from then on, or where they never have from the end of those 5 %, in as many parts more as it takes
        each copy to end an episode: copies that began together end the long ones together, and in between the short
        ones only. Without a cohort the first is of those that ended there.
        """
        first = None if cohort is None else _mean_of(cohort)
        if not self._parts:
            return {"first": first, "last": None, "best": first}
        begin, end = min(self._parts), max(self._parts) - _WINDOW + 1
        last = self._mean(end)
        if cohort is None:
            first = self._mean(begin)
        else:
            begin = _WINDOW if self._settled is None else self._settled
        windows = [first, last, *(self._mean(start, self._copies) for start in range(begin, end))]
        return {"first": first, "last": last, "best": max(mean for mean in windows if mean is not None)}

    @property
    def length(self) -> float | None:
        """Mean steps of the episodes of the last 5 % of the run, those of `summary`."""
        return self._mean(max(self._parts) - _WINDOW + 1, of=2) if self._parts else None

    def whole(self) -> dict[str, float | None]:
        """`episodes` of the whole run and their `return_mean`."""
        episodes, returns = (sum(entry[k] for entry in self._parts.values()) for k in (0, 1))
        return {"episodes": episodes, "return_mean": returns / episodes if episodes else None}

    def to_plain(self) -> dict[str, Any]:
        """For a file."""
        parts = {str(part): entry for part, entry in self._parts.items()}
        return {"steps": self._steps, "parts": parts, "settled": self._settled}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Begins with what `to_plain` said, of a run that may have been to make another number of steps."""
        for part, (count, returns, lengths) in plain["parts"].items():
            self.add(-(-int(part) * plain["steps"] // PARTS), count, returns, lengths)
        if plain["settled"] is not None:
            self._settled = self._part(-(-plain["settled"] * plain["steps"] // PARTS))

    def _part(self, at: int) -> int:
        return min(PARTS - 1, at * PARTS // self._steps)

    def _mean(self, start: int, least: int = 0, of: int = 1) -> float | None:
        """Of the returns, or `of` another of the sums, over the window that begins with part `start`, or over more
        until `least` episodes have ended; None if they have not."""
        count, total = 0.0, 0.0
        for part in range(start, PARTS):
            if part >= start + _WINDOW and count >= least:
                break
            if part in self._parts:
                count, total = count + self._parts[part][0], total + self._parts[part][of]
        return total / count if count >= max(1, least) else None


def first_cohort(policy: str, actors: Pages) -> Cohort | None:
    """What became of the first episodes of `policy`; None where no actor tells. What was going on in an actor that
    another incarnation has followed is lost, and nobody waits for it."""
    pages = {key: page for key, page in actors.items() if f"{FIRST[0]}.{policy}" in page}
    newest = dict(sorted(pages))
    going = sum(pages[key][f"{FIRST[0]}.{policy}"] for key in newest.items())
    ended, returns = (sum(page.get(f"{kind}.{policy}", 0.0) for page in pages.values()) for kind in FIRST[1:])
    return (going, ended, returns) if pages else None


def _mean_of(cohort: Cohort) -> float | None:
    going, ended, returns = cohort
    return returns / ended if ended and going <= _OPEN * ended else None


class EpisodeJournal:
    """Episodes that actors told since the books were saved, for a coordinator that takes over from one that died."""

    def __init__(self, path: Path, disk: SafeWriter) -> None:
        self._path, self._disk = path, disk
        self._file: AppendFile | None = None

    def left(self) -> Iterator[tuple[str, int, PlacedEpisodes]]:
        """(actor, incarnation, episodes) of what is there; a last line that was cut off by a death is not."""
        for line in self._path.read_text().splitlines(keepends=True) if self._path.exists() else ():
            if line.endswith("\n"):
                actor, incarnation, *entry = json.loads(line)
                yield actor, incarnation, tuple(entry)

    def append(self, actor: str, incarnation: int, entries: Sequence[PlacedEpisodes]) -> None:
        """Where the disk is full they are lost with this coordinator only."""
        if entries:
            if self._file is None:
                self._file = AppendFile(self._path, self._disk)
                self._file.shorten(self._path.read_bytes().rfind(b"\n") + 1)  # a line that was cut off takes no more
            self._file.append("".join(f"{json.dumps([actor, incarnation, *entry])}\n" for entry in entries).encode())

    def clear(self) -> None:
        """The books are saved."""
        if self._file is not None:
            self._file.shorten(0)

    def close(self) -> None:
        """Closes its file."""
        if self._file is not None:
            self._file.close()


class RecentReturns:
    """The newest hundred episodes, or as few more as they were told of at once."""

    def __init__(self) -> None:
        self._told: deque[tuple[int, float]] = deque()
        self._count = 0

    def add(self, count: int, total_return: float) -> None:
        """`count` more episodes ended."""
        self._told.append((count, total_return))
        self._count += count
        while self._count - self._told[0][0] >= _NEWEST:
            self._count -= self._told.popleft()[0]

    @property
    def mean(self) -> float | None:
        """None while there are too few."""
        return sum(total for _, total in self._told) / self._count if self._count >= _LEAST else None
