"""Python runs this when it starts with this folder on its path: workers that compute have a CUDA device."""

import sys

if {"workers.actor", "workers.learner"} & {*sys.orig_argv}:
    from tests.late.cuda import late_cuda

    _lasting = late_cuda()
    _lasting.__enter__()

if {"tests.forge", "launch"} & {*sys.orig_argv}:
    import launch.local.supervisor

    launch.local.supervisor._check_devices = lambda run: None  # nothing in /dev tells of it

if "tests.forge" in sys.orig_argv:
    import torch._dynamo  # noqa: F401 - over a second of each process that computes on a device: once for all of them
