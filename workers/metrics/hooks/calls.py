"""The hooks of one process: made from the configuration, called, timed, and told of when they fail. No torch.

In flow: events. Out flows: counters of each hook (calls, errors, seconds), its newest traceback in the run's folder;
the order to end the run.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protocol.config.run import HookConfig, Run
from protocol.errors import ConfigurationError
from protocol.errors.origin import blame
from protocol.memory.shared_file import Counters
from protocol.messages.core import Role
from workers.metrics.hooks.hook import CALLED_IN, EVENTS, Hook, HookRun
from workers.runtime.entry_points import calling, import_entry_point

log = logging.getLogger(__name__)

ENDING = "hooks_end"
"""What a worker measures of whom a hook asks to end the run."""
DONE, FAILED = 1.0, 2.0
"""As one that has reached its end; or incomplete, by an error."""
DROPPED = "hook_events_dropped"
_COUNTED = ("hook_calls", "hook_errors", "hook_seconds", "hook_share", "hook_now")
Call = Callable[[Any], None]


def hook_classes(run: Run) -> list[type[Hook]]:
    """The classes of `run.hooks`. ConfigurationError for what cannot be imported or is no hook, and for settings that
    it does not take; none is made."""
    found = []
    for index, config in enumerate(run.hooks):
        key = f"hooks.{index}"
        one = import_entry_point(config.hook, f"{key}.hook", "module:Class")
        if not isinstance(one, type) or not issubclass(one, Hook):
            raise ConfigurationError("hook_not_a_hook", value=config.hook, key=f"{key}.hook")
        wrong = [name for name in vars(one) if name.startswith("on_") and name.removeprefix("on_") not in EVENTS]
        if wrong:
            choices = [f"on_{name}" for name in EVENTS]
            raise ConfigurationError("hook_event_unknown", value=config.hook, name=wrong[0], choices=choices, key=key)
        if later := [name for name in EVENTS if inspect.iscoroutinefunction(getattr(one, f"on_{name}"))]:
            raise ConfigurationError("hook_method_async", value=config.hook, name=f"on_{later[0]}", key=key)
        try:
            inspect.signature(one).bind(**config.settings)
        except TypeError as fault:
            facts = {"value": config.hook, "reason": str(fault)}
            raise ConfigurationError("hook_settings_refused", **facts, key=f"{key}.settings") from None
        found.append(one)
    return found


def hooked_roles(run: Run) -> set[Role]:
    """In whose processes hooks of `run` are called; as a supervisor joins the process for hooks."""
    classes = hook_classes(run)
    return {role for role, names in CALLED_IN.items() if any(_wants(one, name) for one in classes for name in names)}


class HookCalls:
    """Those of `run`, in `worker`, made here; none where there is no run. `folder`: the run's, where it is seen.
    `holds_up`: whether what they take is taken from training."""

    def __init__(
        self, run: Run | None = None, worker: str = "", folder: Path | None = None, holds_up: bool = True
    ) -> None:
        self.control = HookRun(worker, folder)
        self._configs: Sequence[HookConfig] = () if run is None else run.hooks
        self._holds_up, self._failed_for_good = holds_up, False
        self._counters, self._lock, self._began = Counters(None, []), threading.RLock(), time.monotonic()
        self._present: tuple[int, float] | None = None
        """Which hook is called just now, and since when."""
        self._hooks: list[Hook] = []
        for index, one in enumerate(() if run is None else hook_classes(run)):
            config = self._configs[index]
            told = {"value": config.hook, "key": f"hooks.{index}"}
            with calling(config.hook, lambda told=told, **at: ConfigurationError("hook_not_made", **told, **at)):
                self._hooks.append(one(**config.settings))
            self._hooks[-1].run = self.control

    def count_in(self, counters: Counters) -> None:
        """From now on the hooks' counters are there."""
        names = [f"{kind}.{index}" for index in range(len(self._hooks)) for kind in _COUNTED]
        counters.extend([*names, *([DROPPED] if names else [])])
        self._counters = counters

    def of(self, *events: str) -> list[Call]:
        """What is to be called with an event of these; empty where no hook has the method."""
        return [
            self._caller(index, hook, name)
            for index, hook in enumerate(self._hooks)
            for name in events
            if _wants(type(hook), name)
        ]

    def orders(self) -> dict[str, float]:
        """What a heartbeat tells of the end that a hook asks for; nothing while none does."""
        ending = FAILED if self._failed_for_good else DONE if self.control.ending else 0.0
        return {ENDING: ending} if ending else {}

    def dropped(self, count: int) -> None:
        """So many events were told to nobody, so far."""
        self._counters.set(DROPPED, count)

    def look(self) -> None:
        """Counts how long the present call takes, which another thread has begun."""
        hook, began = self._present or (-1, 0.0)
        for index in range(len(self._hooks)):
            self._counters.set(f"hook_now.{index}", time.perf_counter() - began if index == hook else 0.0)

    @property
    def going_on(self) -> str:
        """The hook that is called just now; empty where none is."""
        present = self._present
        return "" if present is None else self._configs[present[0]].hook

    def _caller(self, index: int, hook: Hook, name: str) -> Call:
        method, counters = getattr(hook, f"on_{name}"), self

        def call(event: Any) -> None:
            with self._lock:  # checkpoints are told of by the thread that writes them
                began = time.perf_counter()
                counters._present = index, began
                try:
                    method(event)
                except BaseException as fault:  # a thread that calls hooks must not end by one, nor a worker
                    counters._failed(index, name, fault)
                counters._present = None
                counters._count(index, time.perf_counter() - began)

        return call

    def _count(self, index: int, seconds: float) -> None:
        counters = self._counters
        counters.add(f"hook_calls.{index}")
        counters.add(f"hook_seconds.{index}", seconds)
        if self._holds_up:
            whole = max(1e-9, time.monotonic() - self._began)
            counters.set(f"hook_share.{index}", counters[f"hook_seconds.{index}"] / whole)

    def _failed(self, index: int, name: str, fault: BaseException) -> None:
        config, facts = self._configs[index], blame(fault)
        self._counters.add(f"hook_errors.{index}")
        count = int(self._counters[f"hook_errors.{index}"])
        if config.on_error == "stop":
            self._failed_for_good = True
        if count & (count - 1):  # the first, and each that doubles their number
            return
        told = (config.hook, name, count, facts["reason"], facts["at"])
        log.error("event=hook_failed hook=%s method=on_%s count=%d reason=%r at=%r", *told, exc_info=fault)
        if self.control.folder is not None:
            try:
                traceback_file(self.control.folder, index).parent.mkdir(exist_ok=True)
                text = f"{self.control.worker}, on_{name}: {facts['reason']}{facts['at']}\n{facts['traceback']}"
                traceback_file(self.control.folder, index).write_text(text)
            except OSError as full:
                log.warning("event=hook_traceback_not_kept error=%r", str(full))


def traceback_file(folder: Path, index: int) -> Path:
    """Where the newest traceback of hook number `index` is."""
    return folder / "hooks" / f"{index}.txt"


def _wants(hook: type[Hook], name: str) -> bool:
    return getattr(hook, f"on_{name}") is not getattr(Hook, f"on_{name}")
