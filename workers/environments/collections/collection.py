"""Several environments as one: each copy plays an episode of one member and, at its end, begins one of another.

In flows: actions for all copies. Out flow: one turn of all copies, whichever members they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.base import Environment, Episodes, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.checks.closing import closed_on_failure
from workers.environments.collections.common_world import common_world
from workers.environments.collections.episode_switch import switch_turn, without_news
from workers.environments.collections.member_copy import MemberCopy
from workers.environments.collections.merge_turns import TurnMerger
from workers.environments.collections.sampling import MemberSampler, choice_of


class Collection(Environment):
    """`config.copies` copies of the members of `config`, each made by `make` with a single copy, when it is needed.

    A copy that changes to another member leaves the environment it was in to whoever plays that member next, with the
    episode that has begun there. A member's agents need not act at once, nor its episodes end together: copies have
    their own pace. The same seed gives the same choices and episodes. Scores are those of these copies alone until
    somebody tells those of all (`set_curriculum`).

    ConfigurationError where members differ in agents, spaces or common observations, or cannot be made.
    """

    def __init__(self, config: EnvironmentConfig, make: Callable[[EnvironmentConfig], Environment]) -> None:
        assert config.members is not None
        self._config, self._make, self.copies = config, make, config.copies
        self._episodes: Episodes = {}
        self._stages: dict[str, list[MemberCopy]] = {member: [] for member in config.members}
        """All that are in use, in the order in which they were made."""
        self._made = dict.fromkeys(config.members, 0)
        """How many ever were: each draws by a number of its own."""
        self._fresh: dict[str, int] = {}
        """How many of these were used since the last reset: the first ones."""
        self._waiting: dict[str, list[MemberCopy]] = {}
        """Those that nobody plays now, with an episode begun."""
        self._playing: list[MemberCopy] = []
        """[E]"""
        with closed_on_failure(config.id, self.close):
            self.world = common_world({member: self._add(member).environment.world for member in config.members})
        self._many = [place.many for place in self.world.places]
        self._merger = TurnMerger(self.world, self.copies)
        self._seed = 0
        self._choice: MemberSampler | None = None
        self._curriculum: Mapping[str, Any] = {}

    def reset(self, seed: int) -> Turn:
        """New episodes in all copies, in members chosen anew: nothing is remembered of earlier scores."""
        self._seed = seed
        self._choice = choice_of(self._config, np.random.default_rng(seed))
        if self._curriculum:
            self._choice.update(self._curriculum)
        self._fresh = dict.fromkeys(self._stages, 0)
        self._waiting = {member: [] for member in self._stages}
        for stage in filter(self._outdated, self._playing):
            stage.environment.close()
        for stages in self._stages.values():
            for stage in stages:
                stage.turn = None
        self._playing = [self._take(self._choice.choose()) for _ in range(self.copies)]
        return self._merger.merge([self._begin(stage) for stage in self._playing])

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """Steps every copy's member; where an episode is over, another begins."""
        given = self._merger.split(actions)
        return self._merger.merge([self._advance(copy, given[copy]) for copy in range(self.copies)])

    def set_curriculum(self, curriculum: Mapping[str, Any]) -> None:
        """From now on scores are those of all actors, and members have other `settings`, if any are told; episodes that
        have begun are played to their ends."""
        before, self._curriculum = self._curriculum.get("settings", {}), curriculum
        for member, settings in curriculum.get("settings", {}).items():
            if member in self._stages and settings != before.get(member):
                self._config = self._config.with_settings({member: settings})
                playing = [stage for stage in self._playing if stage.member == member]
                for stage in (stage for stage in self._stages[member] if stage not in playing):
                    stage.environment.close()
                self._stages[member], self._waiting[member], self._fresh[member] = [], [], 0
        if self._choice is not None:
            self._choice.update(curriculum)

    def take_episodes(self) -> Episodes:
        """What ended since the last call."""
        taken = dict(self._episodes)
        self._episodes.clear()
        return taken

    def render(self, copy: int = 0) -> str:
        """That of the member which is played there."""
        return self._playing[copy].environment.render()

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """That of the member which is played there."""
        return self._playing[copy].environment.render_rgb(0, scale)

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_] | None:
        """That of the member which is played there."""
        return self._playing[copy].environment.agent_cells()

    def close(self) -> None:
        """Closes all environments that were made."""
        while self._playing:
            if self._outdated(stage := self._playing.pop()):
                stage.environment.close()
        for stages in self._stages.values():
            while stages:
                stages.pop().environment.close()

    def _advance(self, copy: int, actions: list[NDArray]) -> Turn:
        stage = self._playing[copy]
        try:
            turn = stage.step(actions)
        except EnvironmentFault as fault:
            raise _of(stage, fault) from fault.__cause__
        if not stage.over:
            return turn
        assert self._choice is not None
        self._choice.ended(stage.member, stage.score)
        following, outdated = self._choice.choose(), self._outdated(stage)
        if following == stage.member and not outdated:
            return turn
        if outdated:
            stage.environment.close()
        else:
            stage.turn = without_news(turn)
            self._waiting[stage.member].append(stage)
        self._playing[copy] = self._take(following)
        return switch_turn(turn, self._begin(self._playing[copy]), self._many)

    def _outdated(self, stage: MemberCopy) -> bool:
        """Whether its member has other settings by now."""
        return stage not in self._stages[stage.member]

    def _begin(self, stage: MemberCopy) -> Turn:
        member = [*self._stages].index(stage.member)
        source = np.random.SeedSequence(self._seed, spawn_key=(member, stage.number))
        try:
            return stage.begin(int(source.generate_state(1, np.uint64)[0]) >> 1)
        except EnvironmentFault as fault:
            raise _of(stage, fault) from fault.__cause__

    def _take(self, member: str) -> MemberCopy:
        """One that nobody plays: with an episode begun, or to be reset, or new."""
        if self._waiting[member]:
            return self._waiting[member].pop()
        number = self._fresh[member]
        self._fresh[member] += 1
        stages = self._stages[member]
        return stages[number] if number < len(stages) else self._add(member)

    def _add(self, member: str) -> MemberCopy:
        stages = self._stages[member]
        try:
            environment = CheckedEnvironment(self._make(self._config.member(member)))
        except ConfigurationError as fault:
            key = f"environment.members.{member}"
            raise fault.within(key, key=key, member=member) from fault.__cause__
        stages.append(MemberCopy(member, self._made[member], environment, self._episodes))
        self._made[member] += 1
        return stages[-1]


def _of(stage: MemberCopy, fault: EnvironmentFault) -> EnvironmentFault:
    return fault.within(f"member {stage.member}", member=stage.member)
