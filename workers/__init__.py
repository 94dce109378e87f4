"""The workers: actor, learner, coordinator and what they are made of."""

import os

# Before numpy and torch are imported: their thread pools are sized once. One thread a worker unless the user says more.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
