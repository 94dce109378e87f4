"""What no batch shows: whether a run learns, by what its episodes earn, and what was foreseen of it.

In flows: mean returns of the newest episodes, entropies, and what random players earn. Out flow: of each finding of a
policy (workers/metrics/diagnostics.py) the number and the limit that it is beyond.

Judged is the run as a whole: where policies play against each other one of them earns less because another learns, so
that what is found must hold of all; and where one's gain is the other's loss returns say nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.config.run import Run
from protocol.spaces import World
from workers.metrics.diagnostics import Excess
from workers.planning.foreseen import foreseen
from workers.planning.policy_plan import TrainingPlan

Random = Mapping[str, Mapping[str, float]]
"""agent -> {"random", "random_stderr", "random_episodes"}."""

_LEAST = 20
"""Random episodes from which on their mean says something."""
_SURE = 2.0
"""Standard errors that are better than random."""
_LUCK = 4.0
"""Times all that is earned, from which on the doubt in what a random player earns is luck of both signs, which says
nothing of who learns: one that finds a single reward of one sign has a doubt of twice what it earns."""
_CLEARLY = 8.0
"""Of the best, from which on something has been learned that may be lost."""
_KEPT, _FAR, _NEWEST = 0.5, 5.0, 100
"""Part of what was learned that must be left; and errors of a mean of so many episodes that what is lost comes to, as
the best of many looks is a lucky one."""
_ENTROPY = 0.01
"""Part of the uniform choice's."""
_EXPLAINED, _EARLY, _LOOKS = 0.05, 0.25, 10
"""Share of the variance of returns that a critic tells at least in one of the last so many looks, after so much of the
run."""


@dataclass(slots=True)
class RunFindings:
    """Of policies that learn. `agents`: policy -> an agent that it plays; `uniform`: policy -> entropy of a uniform
    choice, where it chooses among actions; `foreseen`: policy -> what was found before the first step."""

    agents: Mapping[str, str]
    uniform: Mapping[str, float]
    foreseen: Mapping[str, Mapping[str, Excess]] = field(default_factory=dict)
    _best: dict[str, float] = field(default_factory=dict)
    _explained: dict[str, deque[float]] = field(default_factory=dict)
    _entropy: dict[str, float] = field(default_factory=dict)
    """Also of policies whose learner has ended."""

    @classmethod
    def of(cls, plans: Mapping[str, TrainingPlan], run: Run, world: World) -> RunFindings:
        """Of `plans`, a policy each, in `run`."""
        agents = {policy: world.agents[plan.agents[0]].name for policy, plan in plans.items()}
        actions = {policy: plan.interface.action_encoding for policy, plan in plans.items()}
        uniform = {name: sum(map(math.log, one.head_sizes)) for name, one in actions.items() if not one.continuous}
        return cls(agents, uniform, foreseen(plans, world, run))

    def look(
        self,
        progress: float,
        means: Mapping[str, float],
        random: Random,
        entropy: Mapping[str, float],
        explained: Mapping[str, float],
    ) -> dict[str, dict[str, Excess]]:
        """policy -> what is found when `progress` of the run, in [0, 1], is over. `means` of the newest episodes;
        `explained` variance of what critics tell."""
        self._entropy |= entropy
        for policy, share in explained.items():
            self._explained.setdefault(policy, deque(maxlen=_LOOKS)).append(share)
        self._best |= {policy: max(mean, self._best.get(policy, -math.inf)) for policy, mean in means.items()}
        found: dict[str, dict[str, Excess]] = {policy: {**self.foreseen.get(policy, {})} for policy in self.agents}
        chance = {policy: random.get(agent, {}) for policy, agent in self.agents.items()}
        judged = all(policy in means and chance[policy].get("random_episodes", 0) >= _LEAST for policy in self.agents)
        if not judged or _zero_sum(random):
            return found
        bound = {policy: told["random"] + _SURE * told["random_stderr"] for policy, told in chance.items()}
        kept = {policy: self._must_be_left(policy, means[policy], told) for policy, told in chance.items()}
        behind = all(
            means[policy] <= bound[policy]
            and bound[policy] - told["random"] <= _LUCK * max(abs(told["random"]), abs(means[policy]))
            for policy, told in chance.items()
        )
        for policy, holds in found.items():
            if min(kept.values()) > -math.inf:
                holds["forgotten"] = means[policy], kept[policy]
            elif behind and progress >= 0.5:
                holds["no_better_than_random"] = means[policy], bound[policy]
            told = self._explained.get(policy, ())
            if behind and progress >= _EARLY and told and max(told) < _EXPLAINED:
                holds["critic_explains_nothing"] = max(told), _EXPLAINED
            if behind and self._entropy.get(policy, math.inf) < _ENTROPY * self.uniform.get(policy, -math.inf):
                holds["entropy_collapsed"] = self._entropy[policy], _ENTROPY * self.uniform[policy]
        return found

    def _must_be_left(self, policy: str, mean: float, chance: Mapping[str, float]) -> float:
        """What must be left of the best that was learned for sure, where less is; minus infinity elsewhere.

        The error is that of rewards as large as a random player's, found as much more often as more is earned: the
        variance of a count grows with the count. Where such a player finds none it is not known."""
        best, random, stderr = self._best[policy], chance["random"], chance["random_stderr"]
        if not random or best <= random + _CLEARLY * stderr:
            return -math.inf
        error = stderr * math.sqrt(chance["random_episodes"] / _NEWEST * max(1.0, best / random))
        kept = random + _KEPT * (best - random)
        return kept if mean < min(kept, best - _FAR * error) else -math.inf


def _zero_sum(random: Random) -> bool:
    """Whether what several agents earned by chance adds up to nothing, though it was something."""
    earned = [told["random"] for told in random.values() if "random" in told]
    return len(earned) > 1 and abs(sum(earned)) < 1e-6 * sum(map(abs, earned))
