"""A page without a run behind it: views as a coordinator's books make them, as large as one likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from tests.workers.coordination.dashboard.asking import serving
from workers.coordination.controls import Controls
from workers.coordination.dashboard.dashboard import Dashboard
from workers.coordination.roster import Roster
from workers.environments.registry import describe
from workers.metrics.run_metrics import RunMetrics
from workers.planning.auxiliary_plan import plan_learners

__all__ = ["Shown", "shown"]


class Shown:
    """What a coordinator would have, made up."""

    def __init__(self, folder: Path, policies: int, workers: int) -> None:
        self.policies = [f"agent_{i}" for i in range(policies)]
        self.folder, self.made, self.looks = folder, 0, 0
        credits = dict.fromkeys(self.policies, 16)
        self.books = RunMetrics(Run(steps=1_000_000), self.policies, folder, credits=credits)
        self.books._began -= 100.0
        world = describe(Run().environment)
        plans = plan_learners(Run(), world)
        roster = Roster(Run(), world, plans, folder, lambda: (self.stage == "running", self.made))
        self.controls = Controls(threading.Event(), roster)
        self.stage, self.stalled = "running", ""
        self.league: dict[str, Any] = {}
        self._workers = [self._worker(i) for i in range(workers)]

    @property
    def right(self) -> str:
        """The `Authorization` of who has the run's token."""
        return f"Bearer {self.token}"

    @property
    def token(self) -> str:
        """The run's."""
        return (self.folder / "token").read_text().strip()

    def look(self) -> dict[str, Any]:
        """Half a second goes on; the new view."""
        self.looks, self.made = self.looks + 1, self.made + 1_000
        for i, policy in enumerate(self.policies):
            self.books.episodes(policy, self.made, 10, 100.0 * (self.looks % 50) + 10.0 * i, 250)
        actor: dict[str, float] = {"env_steps": self.made // 2, "agent_steps": self.made}
        actor |= {"first_step_hours": time.time() / 3600 - 1, "last_step_hours": time.time() / 3600}
        learner: dict[str, float] = {}
        for policy in self.policies:
            actor |= {f"produced.{policy}": self.looks * 8, f"flight.{policy}": 8}
            learner |= {f"version.{policy}": self.looks, f"steps_made.{policy}": self.looks * 4}
            learner |= {f"received.{policy}": self.looks * 8, f"waits.data.{policy}": self.looks * 0.1}
        workers = [dict(worker) for worker in self._workers]
        self.books.observe({("actor-0", 1): actor}, {("learner-0", 1): learner}, workers, {"actor-0": 2})
        return self.books.view

    def told(self) -> dict[str, Any]:
        """What the page gets."""
        told = {
            "id": "0123abcd",
            "stage": self.stage,
            "wanted": 5,
            "paused": self.controls.paused,
            "stalled": self.stalled,
            "roster": self.controls.roster.state,
        }
        return {**self.books.view, **told, **({"league": self.league} if self.league else {})}

    def _worker(self, index: int) -> dict[str, Any]:
        role, state = ("actor", "acting") if index % 2 == 0 else ("learner", "learning")
        name = {"name": f"{role}-{index // 2}", "role": role, "state": state, "incarnation": 1}
        used = {"cores": 0.75, "mebibytes": 300.4, "per_second": 120.0}
        return {**name, "host": "here", "pid": 100 + index, "silent": 0.1, **used}


@contextmanager
def shown(folder: Path, policies: int = 2, workers: int = 3) -> Iterator[tuple[Shown, str]]:
    """The made-up run and its page's URL."""
    folder.mkdir()
    run = Shown(folder, policies, workers)
    page = Dashboard(folder, Run(steps=1_000_000), run.controls, run.told, run.books.history)
    with closing(run.books), serving(page.routes()) as url:
        yield run, url
