"""What is found of hooks, by what the processes that call them have counted: errors, cost, events that nobody was told.

In flow: counters of all workers. Out flow: findings, as those of policies look.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol.config.run import Run
from workers.metrics.diagnostics import Diagnostic, describe
from workers.metrics.hooks.calls import DROPPED, traceback_file
from workers.metrics.segment_accounting import Pages, sum_counters

_SLOW, _SECONDS = 0.05, 1.0
"""Share of a worker's time that hooks may take, and how long that must have been."""
_LONG = 60.0
"""Seconds of one call in the process for hooks."""
_TEXT = 8000
"""Characters of a traceback that are told."""
_FAILED = Diagnostic(
    "hook_failed", "hooks", "fault", "it raised an error", "correct the hook; the rest of its events reach it"
)
_COSTLY = Diagnostic(
    "hook_slow",
    "hooks",
    "note",
    "it holds training up",
    "let it do less, or less often, or have an event of the run (on_evaluation …), which costs training nothing",
)
_HANGS = Diagnostic(
    "hook_hangs",
    "hooks",
    "fault",
    "a call of it does not end, and what happens meanwhile waits, or is dropped",
    "give what it waits for a deadline",
)
_LATE = Diagnostic(
    "hook_events_dropped",
    "hooks",
    "note",
    "events of the run came faster than hooks took them, and were dropped",
    "let on_worker_start, on_evaluation and their like do less, or begin a thread for what takes long",
)


def hook_findings(run: Run, pages: Pages, folder: Path) -> list[dict[str, Any]]:
    """Of `run`, whose folder that is; in place of a policy each names its hook."""
    found = []
    for index, config in enumerate(run.hooks):
        if errors := sum_counters(pages.values(), f"hook_errors.{index}"):
            file = traceback_file(folder, index)
            text = file.read_text(errors="replace") if file.exists() else ""
            last = f"; the last one in {text.partition(chr(10))[0]}" if text else "; see the log of its worker"
            says = f"{_FAILED.says}, {errors} times{last}"
            told = describe(config.hook, _FAILED, {"traceback": text[-_TEXT:]})
            remedy = _FAILED.remedy if config.on_error == "warn" else "correct the hook, whose on_error ends the run"
            found.append({**told, "says": says, "remedy": remedy})
        shares = {worker: page.get(f"hook_share.{index}", 0.0) for worker, page in pages.items()}
        (worker, number), share = max(shares.items(), key=lambda one: one[1], default=(("", 0), 0.0))
        seconds = pages[worker, number][f"hook_seconds.{index}"] if share else 0.0
        if share > _SLOW and seconds > _SECONDS:
            says = f"{_COSTLY.says}: {seconds:.1f} s, {share:.0%} of the time of {worker}"
            found.append({**describe(config.hook, _COSTLY, {"worker": worker, "share": share}), "says": says})
        longest = max((page.get(f"hook_now.{index}", 0.0) for page in pages.values()), default=0.0)
        if longest > _LONG:
            says = f"{_HANGS.says}: it took {longest:.0f} s so far"
            found.append({**describe(config.hook, _HANGS, {"seconds": longest}), "says": says})
    if dropped := sum_counters(pages.values(), DROPPED):
        hooks = ", ".join(config.hook for config in run.hooks)
        found.append({**describe(hooks, _LATE, {"count": dropped}), "says": f"{_LATE.says}: {dropped}"})
    return found
