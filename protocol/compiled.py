"""What `compile: true` cannot go with, of a policy. Pure.

In flow: a policy's configuration. Out flow: ValueError in one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.algorithms import PPO, Streamed
from protocol.errors import ConfigurationError
from protocol.off_policy import DQN, IQN

if TYPE_CHECKING:
    from protocol.config import PolicyConfig

__all__ = ["check_compiled"]


def check_compiled(config: PolicyConfig) -> None:
    """ValueError unless its steps can be made in memory that never moves, by one process."""
    algorithm = config.algorithm
    if not isinstance(algorithm, Streamed | IQN | DQN):
        raise ConfigurationError("compile_not_supported", algorithm=algorithm.name, key="compile")
    why = ""
    if isinstance(algorithm, Streamed) and algorithm.central_critic:
        why = "central_critic, whose steps are"
    elif isinstance(algorithm, PPO) and algorithm.priority_alpha:
        why = "priority_alpha, by which the host draws and so steps are"
    elif config.ranks > 1:
        why = "ranks, which meet within a step that is"
    elif config.record:
        why = "record, whose segments are learned again to the bit by steps that are"
    if why:
        raise ConfigurationError("compile_conflict", reason=why, key="compile")
