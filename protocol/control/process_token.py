"""The token by which a launcher knows a worker that it started, whoever else joins with that worker's pid."""

from __future__ import annotations

import hashlib

PROCESS_TOKEN = "ROOKERY_PROCESS"
"""The variable that has it in the worker's environment."""


def mark_of(token: str) -> str:
    """What may be shown of a token to those who could misuse it."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]
