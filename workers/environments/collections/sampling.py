"""Which member of a collection the next episode is played in.

In flows: the score of each episode that ended, or what a coordinator says of those of all actors. Out flow: a member's
ID for each one that begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from protocol.config.environment import Adversarial, Curriculum
from protocol.config.run import EnvironmentConfig


class MemberSampler(ABC):
    """Chooses by what it was told so far; all chance comes from the generator it was made with."""

    @abstractmethod
    def choose(self) -> str:
        """The member in which an episode begins."""

    def ended(self, member: str, score: float) -> None:
        """An episode of `member` ended; `score` is the mean return of those who took part."""
        return

    def update(self, curriculum: Mapping[str, Any]) -> None:
        """What is known from all actors (workers/coordination/curriculum.py); from now on that counts, and not what
        `ended` tells.
        """
        return


class PriorSampler(MemberSampler):
    """Each with its own probability, whatever happened before; `weights` need not sum to 1."""

    def __init__(self, weights: Mapping[str, float], generator: np.random.Generator) -> None:
        self._members, self._generator = [*weights], generator
        self.update({"prior": weights})

    def update(self, curriculum: Mapping[str, Any]) -> None:
        """`prior`: other weights of the same members."""
        weights = curriculum.get("prior")
        if weights is None:
            return
        share = np.array([weights[member] for member in self._members], np.float64)
        share /= share.max()  # first, as the sum may overflow
        self._share = share / share.sum()

    def choose(self) -> str:
        """Drawn anew."""
        return self._members[self._generator.choice(len(self._members), p=self._share)]


class CurriculumSampler(MemberSampler):
    """A curriculum: what is mastered opens what comes after it, for good."""

    def __init__(self, members: list[str], curriculum: Curriculum, generator: np.random.Generator) -> None:
        self._members, self._curriculum, self._generator = members, curriculum, generator
        self._scores = _Scores([*curriculum.threshold], curriculum.episodes)
        self.mastered: set[str] = set()
        self._led = False

    def update(self, curriculum: Mapping[str, Any]) -> None:
        """`mastered`."""
        self._led, self.mastered = True, {*curriculum["mastered"]}

    @property
    def open(self) -> list[str]:
        """Those that may be played."""
        after = self._curriculum.after
        return [member for member in self._members if self.mastered.issuperset(after.get(member, ()))]

    def choose(self) -> str:
        """One that is open and not mastered yet, or now and then one that is."""
        # There always is one not mastered: what nothing comes after never is.
        behind = [member for member in self._members if member in self.mastered]
        again = behind and self._generator.random() < self._curriculum.rehearsal
        among = behind if again else [member for member in self.open if member not in self.mastered]
        return among[self._generator.integers(len(among))]

    def ended(self, member: str, score: float) -> None:
        """Mastered once the mean of enough episodes reaches the threshold."""
        threshold = self._curriculum.threshold.get(member)
        if threshold is None or self._led:
            return
        self._scores.add(member, score)
        if self._scores.full(member) and self._scores.mean(member) >= threshold:
            self.mastered.add(member)


class AdversarialSampler(MemberSampler):
    """An adversary: the member in which the policies have done worst so far, after some tries of each."""

    def __init__(self, members: list[str], adversarial: Adversarial, generator: np.random.Generator) -> None:
        self._members, self._adversarial, self._generator = members, adversarial, generator
        self._scores = _Scores(members, adversarial.episodes)
        self._begun = dict.fromkeys(members, 0)
        self._ended = dict.fromkeys(members, 0)
        self._told: Mapping[str, float] | None = None

    def update(self, curriculum: Mapping[str, Any]) -> None:
        """`scores`, of those that were tried."""
        self._told = curriculum["scores"]

    def choose(self) -> str:
        """The least tried one until all are tried, then the worst, or now and then any."""
        untried = [member for member in self._members if not self._tried(member)]
        if untried:  # those that are tried take turns with them until the others' episodes have ended
            among = self._members if self._told is None else untried
            chosen = min(among, key=lambda member: self._begun[member])
        elif self._generator.random() < self._adversarial.exploration:
            chosen = self._members[self._generator.integers(len(self._members))]
        else:
            score = self._scores.mean if self._told is None else self._told.__getitem__
            chosen = min(self._members, key=score)
        self._begun[chosen] += 1
        return chosen

    def _tried(self, member: str) -> bool:
        return self._ended[member] >= self._adversarial.tries if self._told is None else member in self._told

    def ended(self, member: str, score: float) -> None:
        """Of the last episodes in each, the mean counts."""
        self._ended[member] += 1
        self._scores.add(member, score)


class _Scores:
    """The last `episodes` scores of each member."""

    def __init__(self, members: list[str], episodes: int) -> None:
        self._last = {member: deque[float](maxlen=episodes) for member in members}

    def add(self, member: str, score: float) -> None:
        self._last[member].append(score)

    def full(self, member: str) -> bool:
        last = self._last[member]
        return len(last) == last.maxlen

    def mean(self, member: str) -> float:
        last = self._last[member]
        return sum(last) / len(last)


def choice_of(config: EnvironmentConfig, generator: np.random.Generator) -> MemberSampler:
    """What the structure of `config` asks for in training; without one there is a single member."""
    assert config.members is not None
    members = [*config.members]
    if config.curriculum is not None:
        return CurriculumSampler(members, config.curriculum, generator)
    if config.adversarial is not None:
        return AdversarialSampler(members, config.adversarial, generator)
    equal = members if config.split is None else config.split.train
    return PriorSampler(config.prior or dict.fromkeys(equal, 1.0), generator)
