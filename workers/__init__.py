"""The workers: actor, learner, coordinator and what they are made of."""

import gc
import os
import sys
from itertools import pairwise

__all__ = ["freeze_startup_objects"]

# Before numpy and torch are imported: their thread pools are sized once. One thread a worker unless the user says more.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# What a program imports stays as long as it runs. To look for garbage in it while it grows, and in all of it once more
# when the interpreter ends, made a fifth of the processor time that a worker's start and end cost.
if sys.argv[:1] == ["-m"] and any(a == "-m" and b.startswith("workers.") for a, b in pairwise(sys.orig_argv)):
    gc.disable()  # `python -m workers.NAME`, which is only being looked for


def freeze_startup_objects() -> None:
    """To be called by a program of this package before all else: from now on garbage is collected, apart from what the
    program is made of."""
    gc.freeze()
    gc.enable()
