"""What an actor's turn costs beside its forward passes.

Out flow: figures by key. `loop.overhead_fraction`: (turn - forward passes) / turn, in a world that costs nothing, of
three agents in 128 copies that see 64 numbers, with a policy each. A forward pass is all that a policy does: network,
choice of actions, their log-probabilities, values.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from protocol.config.run import Run, parse_run
from workers.tools.bench.actor_loop import ActorLoop

_RUN: Run = parse_run({"environment": {"id": "synthetic", "copies": 128}})
_TURNS = 64
"""Turns of a round: those of a segment, so that each round finishes as many."""
_SHORT = 4
"""Rounds in a pair of `rounds`: these are short ones."""


def measure(rounds: int) -> dict[str, float]:
    """Whole turns and the forward passes of one, again and again on what was seen in it, in turn: medians of the ratio
    pair by pair, in seconds of this thread's processor, which neighbours on the machine take no part of."""
    acting = ActorLoop(_RUN)
    try:
        acting.run(2 * _TURNS)  # memory is there and in use
        pairs = [(_turn_seconds(acting), _forward_seconds(acting)) for _ in range(_SHORT * rounds)]
        return {
            "loop.overhead_fraction": statistics.median(1 - forward / turn for turn, forward in pairs),
            "loop.us_per_turn": 1e6 * statistics.median(turn for turn, _ in pairs),
        }
    finally:
        acting.close()


def _turn_seconds(acting: ActorLoop) -> float:
    """Of a turn."""
    started = time.thread_time()
    acting.run(_TURNS)
    return (time.thread_time() - started) / _TURNS


def _forward_seconds(acting: ActorLoop) -> float:
    """Of a turn's forward passes."""
    inputs, noise = acting.inputs(), np.random.Generator(np.random.Philox(0))
    started = time.thread_time()
    for _ in range(_TURNS):
        for performer, observation in inputs:
            performer.act(observation, noise)
    return (time.thread_time() - started) / _TURNS
