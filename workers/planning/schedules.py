"""What changes over a run, by how much of it is over. Pure."""

from __future__ import annotations

from protocol.config.off_policy import ValueBased


def exploration_rate(config: ValueBased, train_steps: int, progress: float) -> float:
    """The share of actions drawn uniformly after `train_steps` steps, when `progress` in [0, 1] of the run is over.

    It falls along a line from `epsilon` to `epsilon_min`, where it arrives at `exploration_fraction` of the run; or
    with `epsilon_decay` as epsilon * (1 - decay) ** (steps // freq), not below `epsilon_min`. It never grows.
    """
    start, least = config.epsilon, min(config.epsilon, config.epsilon_min)
    if config.epsilon_decay is not None:
        return max(start * (1 - config.epsilon_decay) ** (train_steps // config.epsilon_decay_freq), least)
    share = min(1.0, progress / config.exploration_fraction)
    return (1 - share) * start + share * least
