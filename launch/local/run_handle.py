"""A run in the hands of a program: one that it makes, that goes on elsewhere, or that is over.

In flow: a run's folder, and how to make the run if that is asked for. Out flows: how it does, what it measured, what
its policies earn and do.
"""

from __future__ import annotations

import atexit
import json
import math
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from launch.cli.display import Silent, display
from launch.cli.roster import command, told
from launch.cli.status import find, look, stop
from launch.local.process import python
from launch.local.signals import Interrupt
from launch.local.supervisor import RunOutcome, View
from launch.sweeps.curves import Points, read_run
from protocol.control.run_summary import read_summary
from protocol.errors import ConfigurationError, EnvironmentFault

if TYPE_CHECKING:
    import rookery

Make = Callable[[Callable[[View], None], Callable[[str], None], Interrupt], RunOutcome]
_LOOK_EVERY = 0.25
_EVENTS = 1_000
"""The newest ones that are kept for who waits."""


class RunHandle:
    """The run in `folder`.

    What `rookery.train` returns is over, or, with `wait=False`, goes on beside the program, and ends in order with it;
    of a run that `rookery.load` returns the same can be asked, wherever it was begun.
    """

    def __init__(self, folder: Path, make: Make | None = None) -> None:
        self.folder = folder
        self._make = make
        self._interrupt = Interrupt()
        self._view: View = {}
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._outcome: RunOutcome | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._body, name=f"run {folder.name}", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<run {self.folder}: {'over' if self.over else 'going on'}>"

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive() and (self._make is not None or read_summary(self.folder) is not None)

    @property
    def summary(self) -> dict[str, Any]:
        """Its `summary.json`; ConfigurationError as long as there is none."""
        summary = self._outcome.summary if self._outcome is not None else read_summary(self.folder)
        if summary is None:
            raise ConfigurationError("run_without_summary", file=self.folder)
        return summary

    @property
    def complete(self) -> bool:
        """Whether it made all its steps."""
        return self._outcome.complete if self._outcome is not None else bool(self.summary.get("complete", True))

    def status(self) -> dict[str, Any]:
        """How it does, as `rookery status --json` says it: its `stage`, and while it goes on what it has `made`, its
        rates, policies, workers and waits; with the stage `over` its `summary`."""
        if self._thread.is_alive():
            return {"stage": "running" if self._view else "starting", **self._view}
        return {"stage": "over", "summary": self.summary} if self._outcome is not None else look(find(str(self.folder)))

    def curves(self) -> dict[str, dict[str, Points]]:
        """policy -> measure -> (agent steps [P], values [P]) of what was measured so far; under "" what is of no
        policy."""
        found: dict[str, dict[str, Points]] = {}
        for (policy, measure), points in read_run(self.folder).curves.items():
            found.setdefault(policy, {})[measure] = points
        return found

    def evaluate(self, episodes: int = 100, seed: int = 0, checkpoint: str | int = "newest") -> list[dict[str, Any]]:
        """What its policies earn without exploring, as `rookery evaluate --json` says it: a line for each environment
        and policy, also in the run's `evaluations.jsonl`. ConfigurationError or EnvironmentFault in one sentence."""
        options = ("--episodes", str(episodes), "--seed", str(seed), "--checkpoint", str(checkpoint), "--json")
        command = python("workers.tools.evaluate", str(self.folder), *options)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            said = ended.stderr.strip().rpartition("\n")[2].removeprefix("rookery: ")
            kind = ConfigurationError if ended.returncode == ConfigurationError.exit_code else EnvironmentFault
            raise kind.heard(said)
        return list(json.loads(ended.stdout))

    def policy(
        self, name: str | None = None, checkpoint: str | int = "newest", seed: int | None = None
    ) -> rookery.EpisodePlayer:
        """Its policy called `name`, where None is enough if it has one, as a function from an observation to an action:
        a `rookery.EpisodePlayer`."""
        import rookery

        return rookery.EpisodePlayer(self.folder, name, checkpoint, seed)

    def roster(self, *words: str, weights: str | Path | None = None) -> dict[str, Any]:
        """What it was told of its policies so far, as `rookery roster --json` says it, with `words` that it is told
        now, as in `run.roster("freeze", "agent_0")`, and for `add`, `member` and `replace` a file of `weights`, or the
        folder of a checkpoint. ConfigurationError or Refused in one sentence, and nothing has
        changed; Timeout where nobody coordinates it."""
        place = find(str(self.folder))
        if words:
            command(place, words, None if weights is None else Path(weights))
        return told(place)

    def stop(self) -> None:
        """Has it end in order, as Ctrl-C does: what it has trained is kept. Waits for the end of a run that this
        program makes, whose fault it leaves to `wait`."""
        if self._thread.is_alive():
            if not self._interrupt.count:  # asked twice, it would end at once
                self._interrupt.ask()
            self._thread.join()
        elif not self.over:
            stop(find(str(self.folder)))

    def begin(self) -> None:
        """Makes it beside the program, which it does not outlive. Raises what keeps it from beginning."""
        atexit.register(self.stop)
        self._thread.start()
        while self._thread.is_alive() and not (self._view or self._events):
            self._thread.join(_LOOK_EVERY)
        self._raise()

    def wait(self, timeout: float | None = None, progress: bool = True) -> bool:
        """Whether it is over, after `timeout` seconds at most; shows its `progress` meanwhile. Raises RunFailed in one
        sentence, Timeout where nobody makes it any more. Whoever is interrupted here waits no more, and the run goes
        on."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        with display(Console(stderr=True), progress, self.folder.name) as shown:
            while not self.over and (left := end - time.monotonic()) > 0:
                if "made" in (view := self.status()):
                    shown.show(view)
                if self._thread.is_alive():
                    self._thread.join(min(_LOOK_EVERY, left))
                else:
                    time.sleep(min(_LOOK_EVERY, left))
                while self._events:
                    shown.tell(self._events.popleft())
        self._raise()
        return self.over

    def make(self, shown: Silent) -> Self:
        """Makes it here and now; Ctrl-C ends it in order."""
        assert self._make is not None
        self._outcome = self._make(shown.show, shown.tell, self._interrupt)
        return self

    def _body(self) -> None:
        def show(view: View) -> None:
            self._view = view

        assert self._make is not None
        try:
            self._outcome = self._make(show, self._events.append, self._interrupt)
        except BaseException as fault:  # `wait` raises it
            self._fault = fault
        finally:
            atexit.unregister(self.stop)

    def _raise(self) -> None:
        if self._fault is not None:
            raise self._fault
