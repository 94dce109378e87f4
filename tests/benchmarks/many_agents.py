"""A herd: 2720 copies of three agents that share a policy, in two groups, as the preset `many_agents` has them.

Out flow: figures by key. `herd.segments`: whole segments after one pass, in which every agent fills one.
`herd.rss_gib`: the most memory that the actor and the process of its environment had. `herd.stitched_rows`: rows that
do not follow from the row before them, or do not fit to what the neighbouring stream held at that moment.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.config.yaml_file import read_run
from protocol.experience.ring_buffer import Ring
from workers import freeze_startup_objects
from workers.environments.worlds.synthetic import SHOWN, SyntheticSettings
from workers.runtime import torch_setup
from workers.tools.bench.rollout import ActorLoop

__all__ = ["follows", "many_agents"]

_PRESET = Path(__file__).parents[2] / "launch" / "presets" / "herd.yaml"
_SECONDS = 300.0
_KIB = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit in which the system tells of memory."""


def many_agents() -> dict[str, float]:
    """One pass in a fresh process, whose memory nobody used before."""
    command = [sys.executable, "-m", __name__]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def follows(ring: Ring, slots: slice, s: SyntheticSettings) -> NDArray[np.bool_]:
    """[n, T]: rows of segments of `synthetic` that follow from the row before them, and whose reward is that of their
    action. The streams are those of neighbouring rows of one world, so each sees one step later what the next one sees
    now; a row from another moment is found out."""
    columns = {name: column[slots] for name, column in ring.columns.items()}
    seen, action, ended = columns["observation"], columns["action"][:, :-1], columns["truncated"][:, :-1]
    step = np.rint(seen[..., 1] * s.episode_steps)
    right = seen[:, :-1, SHOWN : SHOWN + s.actions].argmax(axis=-1)
    good: NDArray[np.bool_] = np.where(ended, 0, action) == seen[:, 1:, 0]
    good &= np.where(ended, 0, step[:, :-1] + 1) == step[:, 1:]
    good &= columns["reward"][:, :-1] == (action == right)
    good[:-1] &= (seen[:-1, 1:, SHOWN:] == seen[1:, :-1, SHOWN:]).all(axis=-1)
    return good


def _pass() -> dict[str, float]:
    run = read_run(_PRESET)
    groups, length = run.environment.async_factor, run.policy.segment_length
    settings = SyntheticSettings(**run.environment.settings)
    whole = stitched = 0

    def look(policy: str, ring: Ring, slots: slice) -> None:
        nonlocal whole, stitched
        good = follows(ring, slots, settings)
        records = ring.segments(slots)
        fresh = (records["stream_sequence"] == 0) & (records["valid"] == length)
        whole += int((good.all(axis=1) & fresh).sum())
        stitched += int((~good).sum())

    acting = ActorLoop(run, look)
    acting.run(groups * (length + 1))
    acting.close()
    pages = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "herd.segments": whole,
        "herd.rss_gib": pages * _KIB / 2**30,
        "herd.stitched_rows": stitched,
    }


if __name__ == "__main__":
    freeze_startup_objects()
    torch_setup.configure_torch()
    sys.stdout.write(json.dumps(_pass()))
