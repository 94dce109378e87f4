"""What acting costs with groups that overlap, with 8160 agents and through adapters.

    python -m tests.benchmarks.bench_rollout [--rounds 15]

Prints one JSON object: figures by key. See overlap.py, many_agents.py and adapters.py for what each is; what a turn
costs beside its forward passes is in `rookery bench rollout`.
"""

from __future__ import annotations

import argparse
import json

from tests.benchmarks.adapters import overhead
from tests.benchmarks.many_agents import many_agents
from tests.benchmarks.overlap import overlap
from workers.runtime import torch_setup

__all__ = ["measure"]


def measure(rounds: int) -> dict[str, float]:
    """All figures, from `rounds` interleaved pairs where there are pairs."""
    return {**overlap(), **many_agents(), **overhead(rounds)}


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    torch_setup.configure_torch()
    print(json.dumps(measure(parser.parse_args().rounds), indent=2))


if __name__ == "__main__":
    main()
