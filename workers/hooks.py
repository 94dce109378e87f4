"""The hooks of a run that are told what happens to the run: a worker that watches it as a supervisor does.

    join -> ( view  files -> events -> queue ) until the run has ended -> its end -> leave
                                         | another thread: calls the hooks

In flows: the coordinator's view, files of the run's folder. Out flow: calls. Nobody waits for it: what its queue has no
room for, and what is left at the end, is dropped and counted; it may die, and begins again with what is then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from protocol.config.run import Run
from protocol.control.heartbeat import Report
from protocol.errors import ConfigurationError
from protocol.memory.shared_file import Counters, read_counters
from workers import freeze_startup_objects
from workers.metrics.hooks.calls import Call, HookCalls
from workers.metrics.hooks.hook import OF_RUN
from workers.metrics.hooks.run_events import RunEvents, Told, gone_on
from workers.runtime.last_words import run_to_end
from workers.runtime.process import WorkerProcess, run_dir_of, worker_command

__all__ = ["HooksWorker", "main"]

log = logging.getLogger(__name__)

_QUEUE = 256
_LOOK_SECONDS = 0.2
_CHANGES = "hook_changes"
"""What counts the bytes of the run's history that hooks were told."""
_END_SECONDS = 10.0
"""That hooks may go on when the run has ended."""


class HooksWorker:
    """One process for hooks, of the run in `folder`."""

    def __init__(self, life: WorkerProcess, run: Run, folder: Path) -> None:
        pages = [*(folder / "counters").glob("hooks.*")]
        first = not pages and not gone_on(folder)
        told = max((int(read_counters(page).get(_CHANGES, -1)) for page in pages), default=0 if first else -1)
        self._life, self._events = life, RunEvents(folder, first, told)
        self._counters = Counters(folder / "counters" / f"hooks.{len(pages) + 1}", [_CHANGES])
        self._calls = HookCalls(run, "hooks", folder, holds_up=False)
        self._calls.count_in(self._counters)
        self._wanted: dict[str, list[Call]] = {name: calls for name in OF_RUN if (calls := self._calls.of(name))}
        self._queue: deque[Told] = deque()
        self._dropped, self._over = 0, False
        self._changed = threading.Condition()
        life.orders = self._calls.orders
        life.vitals.bind(lambda: "serving", None)

    def run(self) -> None:
        """Until the run has ended; at once where no hook is to be told of it, unless a scheduler would start it again.
        The thread that calls hooks is this process's own: where it hangs, the loop goes on."""
        client = self._life.client
        assert client is not None
        self._life.report(lambda: Report(state="watching"))
        if not self._wanted and not self._life.options.resident:
            return
        thread = threading.Thread(target=self._call, name="hooks", daemon=True)
        thread.start()
        self._put(self._events.begin())
        while not self._life.must_stop or (client.status is not None and client.status.view.get("baselines_left")):
            client.changed.wait(_LOOK_SECONDS)
            client.changed.clear()
            self._life.vitals.tick()
            self._calls.look()
            if client.status is not None:
                self._put(self._events.look(client.status.view))
            if self._life.stopping.is_set() or client.orphaned:
                break
        self._put(self._events.look({} if client.status is None else client.status.view))
        self._put(self._events.end())
        with self._changed:
            self._over = True
            self._changed.notify()
        thread.join(_END_SECONDS)
        if thread.is_alive():
            self._calls.look()
            left = len(self._queue) + 1
            self._calls.dropped(self._dropped + left)
            log.warning("event=hooks_too_slow left=%d hook=%s", left, self._calls.going_on)

    def _put(self, told: Iterable[Told]) -> None:
        """What hooks are to be told, behind what they have not been told yet."""
        wanted = [one for one in told if one[0] in self._wanted]
        self._counters.set(_CHANGES, self._events.changes.at)
        with self._changed:
            self._queue.extend(wanted)
            while len(self._queue) > _QUEUE:
                self._queue.popleft()
                self._dropped += 1
            self._changed.notify()
        if wanted:
            self._calls.dropped(self._dropped)

    def _call(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._over)
                if not self._queue:
                    return
                name, event = self._queue.popleft()
            for call in self._wanted[name]:
                call(event)


def main(life: WorkerProcess) -> None:
    """Joins, and calls hooks until the run ends."""
    welcome, run = life.join("supervisor")
    folder = run_dir_of(welcome)
    if folder is None:
        raise ConfigurationError("run_folder_not_visible_to_hooks", file=welcome.run_dir)
    life.watch(run.stall_timeout)
    HooksWorker(life, run.anchored(), folder).run()


command = worker_command("hooks", main, keys="supervisor")

if __name__ == "__main__":
    freeze_startup_objects()
    run_to_end(command)
