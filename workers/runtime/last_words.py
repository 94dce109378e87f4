"""What a worker says when something ends it, wherever that can still be said.

In flow: what was raised. Out flows: a line of the log, one for people (a traceback for what nobody foresaw), the error
that other processes are told, the exit code.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback

from protocol.errors import RookeryError, disk_fault

__all__ = ["tell_failure"]

log = logging.getLogger(__name__)


def tell_failure(role: str, fault: Exception) -> tuple[str, int]:
    """Says why `role` ends; the error in words, and the exit code. Where its output lies on a full disk, the exit code
    alone is left to say it, and what could not be written must not become another one as the process ends."""
    told = fault if isinstance(fault, RookeryError) else disk_fault(fault)
    if told is not None:
        error, code, said = told.coded, told.exit_code, f"{role}: {told.coded}"
        log.error("event=failed kind=%s error=%s", told.kind, told)
    else:
        error = said = "".join(traceback.format_exception(fault))
        code = 1
        log.error("event=crashed error=%s", type(fault).__name__, exc_info=fault)
    try:
        print(said, file=sys.stderr, flush=True)  # noqa: T201 - the worker's last word
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
    return error, code
