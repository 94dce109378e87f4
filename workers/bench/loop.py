"""What an actor's turn costs beside its forward passes.

Out flow: figures by key. `loop.overhead_fraction`: (turn - forward passes) / turn, in a world that costs nothing, of
three agents in 128 copies that see 64 numbers, with a policy each. A forward pass is all that a policy does: network,
choice of actions, their log-probabilities, values.
"""

from __future__ import annotations

import time

import numpy as np

from protocol.config import Run, parse_run
from workers.bench.acting import Acting

__all__ = ["loop"]

_RUN: Run = parse_run({"environment": {"id": "synthetic", "copies": 128}})
_TURNS = 64
"""Turns of a round: those of a segment, so that each round finishes as many."""
_SHORT = 8
"""Rounds in a pair."""


def loop(rounds: int) -> dict[str, float]:
    """Whole turns and the forward passes of one, again and again on what was seen in it, in turn; the fastest round of
    each counts, as with `timeit`: neighbours on the machine can only delay."""
    acting = Acting(_RUN)
    try:
        acting.run(2 * _TURNS)  # memory is there and in use
        whole, forward = [], []
        for _ in range(_SHORT * rounds):
            whole.append(_seconds(acting))
            forward.append(_forward_seconds(acting))
        turn, passes = min(whole), min(forward)
        return {"loop.overhead_fraction": 1 - passes / turn, "loop.us_per_turn": turn * 1e6}
    finally:
        acting.close()


def _seconds(acting: Acting) -> float:
    """Of a turn."""
    started = time.perf_counter()
    acting.run(_TURNS)
    return (time.perf_counter() - started) / _TURNS


def _forward_seconds(acting: Acting) -> float:
    """Of a turn's forward passes."""
    inputs, noise = acting.inputs(), np.random.Generator(np.random.Philox(0))
    started = time.perf_counter()
    for _ in range(_TURNS):
        for performer, observation in inputs:
            performer.act(observation, noise)
    return (time.perf_counter() - started) / _TURNS
