"""Which ports a worker listens at."""

from __future__ import annotations

BLOCK = 10
"""Ports of a worker: base control, +1 experience, +2 weights, +3 acknowledgements, +4 meeting of ranks, +9 HTTP."""
MEETING = 4
"""Of the first rank of a policy: where the others find it. What is spoken there is torch.distributed's affair."""
HTTP = 9
LAST_BASE = 65_536 - BLOCK
FREE = 10_000, 30_000
"""Where a block is looked for: below Kubernetes' NodePorts and what Linux gives to outgoing connections, one of which
may have a port of a block before it is bound."""
