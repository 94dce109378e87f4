"""For processes that Python starts with this folder on its path: those that are workers have a late CUDA device."""

import sys

if any(one in ("workers.learner", "workers.actor") for one in sys.orig_argv):
    from tests.late.cuda import late_cuda

    _lasting = late_cuda(hasty="hasty" in sys.orig_argv)
    _lasting.__enter__()
