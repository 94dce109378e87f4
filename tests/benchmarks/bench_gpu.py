"""The whole table of figures that need a GPU, in one go, each beside the bare PyTorch loop in the same run.

    python -m tests.benchmarks.bench_gpu [--out table.json] [--rounds 30] [--tiny]

Prints one JSON object: the device, what is asked of each figure and whether that is reached, and all figures. Without
CUDA the sizes are tiny: that is no measurement, but shows that the table can be made.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import gpu
from workers.runtime import torch_setup

__all__ = ["WANTED", "table"]

WANTED = {
    "learner.gpu_ratio_to_bare": 0.90,
    "cohort.mlp_speedup": 15.0,
    "cohort.lstm_speedup": 2.8,
    "inference.ratio_to_bare": 1.5,
    "host_to_device.share": 0.8,
}
"""At least so much, of inference at most."""


def table(rounds: int, tiny: bool) -> dict[str, Any]:
    """What is printed."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    figures = gpu.measure(gpu.TINY if tiny or not cuda else gpu.FULL, rounds, device)
    reached = {
        name: figures[name] <= least if name.startswith("inference") else figures[name] >= least
        for name, least in WANTED.items()
    }
    name = torch.cuda.get_device_name(device) if cuda else "cpu, tiny sizes: no measurement"
    return {"device": name, "torch": torch.__version__, "wanted": WANTED, "reached": reached, "figures": figures}


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    torch_setup.configure_torch()
    text = json.dumps(table(asked.rounds, asked.tiny), indent=2) + "\n"
    if asked.out is not None:
        asked.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
