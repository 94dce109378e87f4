"""Python runs this when it starts with this folder on its path: workers that compute have a CUDA device."""

import sys

if {"workers.actor", "workers.learner"} & {*sys.orig_argv}:
    from tests.late.cuda import late_cuda

    _lasting = late_cuda()
    _lasting.__enter__()
