"""A policy that several learner processes, its ranks, train together: what they are called, whose segments each gets,
and what cannot be trained so. Pure, no torch.

In flow: the configuration. Out flows: names, ranks; a ConfigurationError in one sentence.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from protocol.config.run import PPO, OnStream, PolicyConfig, Run
from protocol.errors import ConfigurationError


def rank_names(policy: str, ranks: int) -> list[str]:
    """The learners of a policy by name, in the order of their ranks."""
    return [f"learner-{policy}"] if ranks == 1 else [f"learner-{policy}-{rank}" for rank in range(ranks)]


def rank_of_learner(learner: str, ranks: int) -> int:
    """Which of its policy's ranks a learner is, by its name."""
    return 0 if ranks == 1 else int(learner.rpartition("-")[2])


def rank_for_actor(actor: str, ranks: int) -> int:
    """The rank that gets all segments of an actor, by its name: `actor-N`; whoever is called otherwise has the first's.
    An actor keeps its rank for all its life, as the ledger that knows what was received of it is that rank's."""
    number = actor.rpartition("-")[2]
    return int(number) % ranks if number.isdecimal() else 0


def ledger_path(folder: Path, policy: str, rank: int) -> Path:
    """Where a learner keeps what it received, in the run's folder."""
    return folder / "ledgers" / (f"{policy}~{rank}" if rank else policy)


def check_ranks(run: Run, name: str, config: PolicyConfig, policies: Collection[str]) -> None:
    """ConfigurationError unless policy `name` can be trained as its `ranks` say beside the other `policies`."""
    ranks, algorithm = config.ranks, config.algorithm
    if ranks == 1:
        return

    def refuse(why: str, remedy: str) -> None:
        raise ConfigurationError(
            "ranks_impossible", policy=name, count=ranks, reason=why, remedy=remedy, key="policy.ranks"
        )

    if not isinstance(algorithm, OnStream):
        refuse(f"and {algorithm.name} cannot be trained by several", "use ppo or impala")
        return
    if isinstance(algorithm, PPO) and algorithm.priority_alpha:
        refuse("and priority_alpha compares segments that no one of them has", "leave priority_alpha out")
    if algorithm.entry is not None:
        refuse(f"and the loss of {algorithm.entry} knows of one", "leave entry out")
    if algorithm.curiosity is not None:
        refuse("and a bonus for what is new is in the unit of what each of them saw", "leave curiosity out")
    if config.record or run.replay:
        refuse("and what is recorded is learned again by one process", "leave record and replay out")
    if run.lockstep:
        refuse("and schedule: lockstep keeps one learner in step", "remove schedule")
    if run.league is not None:
        refuse("and players of a league join the library from one process", "leave league out")
    if run.learners not in ("process", "auto"):
        refuse("and shares no process with other policies", "set learners: process or auto")
    if run.actors < ranks:
        refuse(f"each of which needs an actor of its own, and the run has {run.actors}", f"set actors: {ranks}")
    if taken := set(rank_names(name, ranks)) & {f"learner-{other}" for other in policies}:
        refuse(f"one of which would be called {min(taken)!r}, as another policy's learner", "rename that policy")
