"""The benchmarks measure what they say: every promised figure is there, and is a ratio to something that ran."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.tools import require
from workers.tools.bench.transport.load import TransportLoad

PROMISED = {
    "transport": [
        "same_node.large_ratio",
        "same_node.small_ratio",
        *(f"same_node.ratio_at_mib.{mib}" for mib in (4, 16, 64)),
        "tcp.large_ratio",
        *(f"tcp.ratio_at_mib.{mib}" for mib in (4, 16, 64)),
        "tcp.curve_ratio",
        "header.us_per_segment",
    ],
    "rollout": ["loop.overhead_fraction", "loop.us_per_turn"],
    "learner": ["learner.ratio_to_bare", "learner.rows_per_second", "cohort.speedup"],
    "weights": ["weights.large_ratio", "weights.small_ratio", "weights.large_ms", "weights.small_ms"],
}
"""Names that scripts rely on."""


@pytest.mark.slow
@pytest.mark.parametrize("what", PROMISED)
@pytest.mark.timeout(540)
def test_every_promised_figure_is_printed_as_one_json_object(what):
    ended = subprocess.run(
        [require("rookery"), "bench", what, "--rounds", "1", "--json"], capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    for name in PROMISED[what]:
        counted = name.endswith(("segments", "per_segment", "_per_second", "_per_turn", "_ms"))  # the others are ratios
        assert 0 < figures[name] < (1e7 if counted else 100), f"{name} is {figures.get(name)}"


def test_a_load_survives_the_command_line():
    load = TransportLoad(floats=252, segments=64, blocks=39, folder="/tmp")
    assert TransportLoad.from_json(load.to_json()) == load
    assert load.block(40) == slice(64, 128)
