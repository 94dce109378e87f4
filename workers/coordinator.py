"""The coordinator of one run: who takes part, what the run wants, how far it is. Training never waits for it.

    be told the world -> open the ports -> serve ( join  heartbeat  leave )
    -> actors done -> learners drain -> summary -> baselines, if they are still played

In flows: a configuration; joins, heartbeats, farewells. Out flows: names, incarnations, quotas, routes, commands; the
run's folder. No code of the user runs here: processes that it forks before anything else tell it the world, and play
the baselines. As an executable: `rookery coordinator`, `python -m workers.coordinator`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click
import zmq

from protocol.config.run import Run
from protocol.config.yaml_file import WORLD, Change, differs, going_on, read_run
from protocol.control.heartbeat import MAX_REQUEST
from protocol.control.run_summary import read_summary
from protocol.control.server import BYTES, WAITING, ControlServer, refusal
from protocol.errors import ConfigurationError, Refused
from protocol.memory.shared_file import sweep
from protocol.messages.core import (
    Command,
    Fetch,
    FetchGraph,
    Heartbeat,
    Join,
    Leave,
    Refusal,
    Role,
    Route,
    Status,
    Welcome,
)
from protocol.spaces import World
from protocol.transport.ports import HTTP
from protocol.transport.sockets import Ports, check_bind, open_context
from workers import freeze_startup_objects
from workers.coordination.controls import Controls
from workers.coordination.curriculum import curriculum_of
from workers.coordination.dashboard.dashboard import Dashboard
from workers.coordination.departures import Departures
from workers.coordination.lifecycle import RunLifecycle, StallDetector
from workers.coordination.member_store import WorkerRecord
from workers.coordination.membership import Membership
from workers.coordination.roster import Roster
from workers.coordination.worker_counters import WorkerCounters
from workers.evaluation.baseline_process import BaselineProcess
from workers.evaluation.description import described
from workers.evaluation.episodes import environments_of
from workers.evaluation.scores import newest
from workers.league.league_state import LeagueState
from workers.league.policy_pool import serve_chunk
from workers.learning.starts import for_workers, start_entry, take_starts, told_starts
from workers.metrics.history import History
from workers.metrics.hooks.calls import DONE, ENDING
from workers.metrics.run_findings import RunFindings
from workers.metrics.run_metrics import RunMetrics, check_trained
from workers.metrics.segment_accounting import Pages, sum_counters, unacknowledged
from workers.metrics.throughput import ProcessorUse
from workers.planning.auxiliary_plan import plan_auxiliaries, plan_learners
from workers.planning.cohorts import kinds_of
from workers.planning.fixed_policy_plan import plan_fixed
from workers.planning.league_plan import plan_league
from workers.planning.policy_plan import LayoutFields, plan_policies
from workers.planning.policy_spec import policy_spec
from workers.policies.export.graph_store import GraphStore
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.health import Health
from workers.runtime.http_server import HttpRequest, HttpServer, Response
from workers.runtime.last_words import tell_failure
from workers.runtime.logs import configure_logging
from workers.runtime.metric_names import Identity
from workers.runtime.process import INCOMPLETE, keep_config, lock_run_folder
from workers.runtime.watchdog import install_stack_dump_signal

__all__ = ["Coordinator", "command"]

log = logging.getLogger(__name__)

_EXPIRE_EVERY = 0.1
_ENDS = ("steps", "until")
"""Keys of which a run's last step follows."""
_OBSERVE_EVERY, _OBSERVE_LATEST = 0.5, 3.0
"""Seconds from one look at all members to the next; in between so many that a hundredth of the time goes to it."""
_READING = 0.005
"""Seconds of a turn in which members' pages are read: whoever asks meanwhile waits."""
_STATUSES = 100
_TOLD_ROSTER = ("actor", "learner", "supervisor")
"""At joining: who begins as the run is by now."""


class Coordinator:
    """One run. `folder` is the run's; a coordinator that starts in a folder with a state goes on with that run.
    `resident`: whoever stops it will start it again. `hooked`: in whose processes hooks are called, who alone may ask
    for the run's end."""

    def __init__(
        self,
        run: Run,
        world: World,
        folder: Path,
        server: ControlServer,
        baselines: BaselineProcess,
        resident: bool = False,
        fields: LayoutFields | None = None,
        hooked: Collection[Role] = (),
    ) -> None:
        self._run, self._world, self._folder, self._server = run, world, folder, server
        self._baselines, self._resident = baselines, resident
        plans = plan_policies(run, world, fields)
        auxiliaries = plan_auxiliaries(run, plans)
        self._parts = {name: run.end * plan.fraction_of_steps(world) for name, plan in plans.items()}
        """Rows that each policy is trained on where there are no actors."""
        self._facts = [policy_spec(plan, world) for plan in plans.values() if not plan.static]
        fixed = plan_fixed(run, world)
        learned = {**plans, **auxiliaries}
        roster = Roster(run, world, learned, folder, lambda: (self._goes_on, self._books.steps_done))
        credits = {name: plan.most_announced for name, plan in (plans | roster.added).items()}
        judge, named = RunFindings.of(plans, run, world), [*plans, *roster.state["added"]]
        self._books = RunMetrics(run, named, folder, list(auxiliaries), fixed, credits, judge, ProcessorUse())
        kept, disk, self._learned = folder / "state.json", self._books.disk, [*named, *auxiliaries]
        self._members = Membership(run, [*learned], kept, [*fixed], resident, disk, kinds_of(plans), server.refusals)
        for name in roster.state["added"]:
            self._members.add(name)
        self._members.released(roster.state["retired"])
        self._members.told = self._books.told
        entries = {name: entry for name in plans if (entry := start_entry(folder, name)) is not None}
        self._graphs = GraphStore(folder, lambda: [*({**plans, **roster.added}.keys() - {*roster.state["retired"]})])
        self._starts = {entry.name: entry.checksum for entry in entries.values()}
        self._config = for_workers(run, entries).model_dump_json()
        server.counts = self._members.refused  # goes on with what an earlier coordinator counted
        self._asked_to_stop = threading.Event()
        self._parent = int(os.environ.get("ROOKERY_PARENT", "0"))
        self._expired_at = self._observe_at = 0.0
        self._end_due = True
        """Whether what a run ends by may have changed since that was looked at."""
        self._ending, self._hooked = 0.0, hooked
        """What hooks have asked for: DONE, FAILED, or nothing; and as whom those joined that may ask."""
        self._told: tuple[str, bool, int, int] = ("running", False, 0, 0)
        """What members' orders follow from, when all were told theirs last."""
        self._stages = RunLifecycle(run.actor_timeout, run.learner_timeout)
        self._tally = WorkerCounters(self._members, self._books, server.refusals)
        league = plan_league(run, world)
        self._standing = None if league is None else LeagueState(league, folder)
        self._curriculum = curriculum_of(run, world, [*plans, *fixed], folder, disk)
        self.controls = Controls(self._asked_to_stop, roster)
        self._followed = self._follow(self._tally.learners())
        self._playing = self._plays()
        self.vitals = Health(Identity(self._members.run_id, "coordinator", "coordinator", 1), refusals=server.refusals)
        self.vitals.bind(lambda: "serving" if self.vitals.ticked_at else self._stages.now, None)
        self._departures = Departures(self._members.run_id, server.refusals)
        self._stillness = StallDetector(run.stall_timeout)
        self._same: dict[tuple[int, tuple[Command, int], int], tuple[Status, list[Route], dict[str, Any]]] = {}
        """What actors were told last, by schema, orders and routes."""
        self._kept_first: list[Callable[[], object]] = []
        """Answers that wait until what they promise is kept: of all that came and went at once with one file."""

    def take_up(self, changes: list[Change]) -> int:
        """Begins to go on with a run in which that has changed; the agent steps (rows) it has made. ConfigurationError
        where there are as many as it is to make now, or somebody still works by what was before."""
        steps = self._tally.steps()
        made = self._members.made(steps) if self._run.actors else self._tally.trained(self._parts)
        if self._run.end <= made and (key := next((one.key for one in changes if one.key in _ENDS), "")):
            raise ConfigurationError("steps_already_made", value=self._run.end, count=made, key=key)
        self._members.deal_anew(steps)
        self.controls.roster.change(one.key for one in changes)
        return made

    def serve(self) -> bool:
        """Answers until the run has ended, or is left to the next coordinator; True if it reached its end."""
        while not self._stages.over:
            self.vitals.tick()
            self._take_in()
            for peer, message in self._server.requests(30, self._members.knows):
                if isinstance(message, Join):
                    self._join(peer, message)
                elif isinstance(message, Heartbeat):
                    self._heartbeat(peer, message)
                elif isinstance(message, Leave):
                    self._leave(peer, message)
                elif isinstance(message, Fetch):
                    self._serve_file(peer, message)
                elif isinstance(message, FetchGraph):
                    self._server.answer(peer, *self._graphs.answer(message.policy))
            self._commit()
            now = time.monotonic()
            if now - self._expired_at >= _EXPIRE_EVERY:
                self._expired_at = now
                self._expire(now)
            if now >= self._observe_at and self._tally.refresh(_READING):
                began = time.thread_time()
                self._observe((self._tally.known("actor"), self._tally.known("learner")))
                self._observe_at = now + min(_OBSERVE_LATEST, max(_OBSERVE_EVERY, 100 * (time.thread_time() - began)))
                self._end_due = True
            else:
                self._members.save_if_due()
            self._advance(now)
            if not self.left:  # the run goes on without it: nobody is to do anything else
                self._tell_news()
        self._commit()
        self.vitals.idle()
        return self._members.complete

    def _take_in(self) -> None:
        """What the run's roster has added since is known here before anybody hears of it who asks after it."""
        for name, plan in self.controls.roster.added.items():
            if name not in self._learned:
                self._books.add(name, plan.most_announced)
                self._members.add(name)
                self._learned.append(name)

    def _follow(self, learners: Pages) -> dict[str, Any]:
        """What of the roster is to be followed, by what `learners` counted; `over` are those policies that nothing is
        sent of any more."""
        roster = self.controls.roster
        published = {name for name in roster.added if any(page.get(f"version.{name}") for page in learners.values())}
        state = roster.followed(published)
        return {**state, "over": [name for name in state["retired"] if self._members.over(name)]}

    def view(self) -> dict[str, Any]:
        """The books' view for a page; from any thread."""
        return {
            **self._books.view,
            **({} if self._standing is None else {"league": self._standing.view}),
            "id": self._members.run_id,
            "wanted": self._members.learners_wanted + self._run.actors,
            "stage": self._stages.now,
            "paused": self.controls.paused,
            "checkpoints": self.controls.checkpoints,
            "roster": self.controls.roster.state,
            "complete": self._members.complete,
            "stalled": self._stillness.message,
        }

    def metrics(self, _request: HttpRequest) -> Response:
        """Of the whole run."""
        from workers.coordination.dashboard.run_exposition import (
            render_run_metrics,  # costs a tenth of a second, and few are asked
        )

        refusals = self.vitals.refusals.counters()
        view = self._books.view and {**self.view(), "disk_free": shutil.disk_usage(self._folder).free}
        return render_run_metrics(self.vitals.identity, view, self.vitals.silent, refusals)

    def _expire(self, now: float) -> None:
        for lost in self._members.expire(now):
            self._departures.lost(lost.name, lost.incarnation, now)
        learners = len(self._members.members("learner"))
        self._departures.sweep(now, salvaging=learners == self._members.learners_wanted)

    def finish(self) -> dict[str, Any]:
        """The summary, written to the run's folder, and once more when baselines come in that are worth waiting for."""
        self._baselines.run_ended(self._members.complete)
        summary = self._summary()
        self._books.write_summary(summary)
        over = Status(command="stop", view={**self._view(), "baselines_left": self._baselines.left})
        while self._baselines.left and not self._asked_to_stop.is_set():
            self._say_over(over)
            if self._baselines.look():
                self._books.write_summary(summary | self._baselines.summary(self._run.policy_of(self._world)))
        summary |= self._baselines.summary(self._run.policy_of(self._world))  # and why not more were played
        self._books.write_summary(summary)
        self._baselines.close()
        self._members.complete = summary["complete"]
        self._members.life_ended()
        return summary

    def _summary(self) -> dict[str, Any]:
        complete = self._members.complete
        self._baselines.look()
        summary = self._books.summary(
            self._tally.actors(),
            self._tally.learners(),
            self._members.clean,
            self._tally.restarts(self._learned),
            self._baselines.summary(self._run.policy_of(self._world)),
            complete,
            gave_up=self._members.gave_up,
        )
        if beyond := summary["segments"]["uncounted"]:
            reason = f"{beyond} segments were received beyond what their senders counted; mend the actor that sent them"
            self._server.refusals.tell("claim_not_believed", "segments_uncounted", reason)
        summary["refused"] = {
            **self._server.counts,
            "segments": sum_counters(self._tally.learners().values(), "quarantined_messages"),
            "acknowledgements": sum_counters(self._tally.actors().values(), "refused_acks"),
        }
        summary["disk_full"], summary["stalls"] = self._books.disk.missed, self._stillness.stalls
        summary["errors"] = self._departures.errors
        summary["evaluations"] = newest(self._folder)
        summary["roster"] = self.controls.roster.state
        summary["starts"] = told_starts(self._folder, self._learned)
        if self._standing is not None:
            self._standing.update(self._tally.actors(), math.inf)
            summary["league"] = self._standing.view
        if self._curriculum is not None:
            summary["curriculum"] = self._curriculum.view
        return summary

    @property
    def history(self) -> History:
        """The run's curves so far."""
        return self._books.history

    @property
    def _goes_on(self) -> bool:
        return self._stages.now == "running" and not self._asked_to_stop.is_set()

    @property
    def left(self) -> bool:
        """Whether the run goes on without this coordinator."""
        return self._stages.now == "left"

    def linger(self, seconds: float, stay: bool = False) -> None:
        """Tells a supervisor that still asks that the run has ended; with `stay` everybody, until it is stopped."""
        end = time.monotonic() + seconds
        over = Status(command="stop", view=self._view())
        for member in self._members.everybody():
            if member.told is not None:
                self._server.answer(member.peer, over.model_copy(update={"schema_number": member.schema_number}))
        while (
            not self._asked_to_stop.is_set() if stay else time.monotonic() < end and self._members.there("supervisor")
        ):
            self._say_over(over)

    def _say_over(self, over: Status) -> None:
        """Answers whoever asks within a moment."""
        for peer, message in self._server.requests(50):
            if isinstance(message, Heartbeat):
                self._server.answer(peer, over)
            elif isinstance(message, Leave):
                self._leave(peer, message)
            elif isinstance(message, Join):
                self._server.answer(peer, refusal(Refused("run_has_ended"), retry=self._resident))
        self._commit()

    def close(self) -> None:
        """Closes files and sweeps what dead workers left."""
        self._baselines.close()
        self._departures.tell_rest()
        self._books.close(self._members.complete)
        if self.left:
            return
        for path in sweep(self._members.run_id):
            log.info("event=swept file=%s", path.name)

    def stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Asks for an early end; safe in a signal handler, and twice."""
        self._asked_to_stop.set()

    def _join(self, peer: bytes, join: Join) -> None:
        if peer in self._server.gone:  # it had asked several times
            return
        if self._done_with(join):
            self._server.answer(peer, refusal(Refused("run_is_ending"), retry=True))
            return
        again = self._members.welcomed(join) is not None
        answer = self._members.join(join, self._tally.steps_of)
        if isinstance(answer, Refusal):
            kind = Refused.heard(answer.reason).kind
            who = {"role": join.role, "name": join.name}
            self._server.refusals.tell("join_refused", kind, answer.reason, level=logging.INFO, **who)
            self._server.answer(peer, answer)
            return
        self._kept_first.append(lambda: self._welcome(peer, join, answer, again))

    def _commit(self) -> None:
        self._members.commit()
        for answer in self._kept_first:
            answer()
        self._kept_first.clear()

    def _welcome(self, peer: bytes, join: Join, member: WorkerRecord, again: bool) -> None:
        run, roster = self._run, self.controls.roster
        with roster.lock:  # a launcher starts learners by number, and those who join later by name
            self._take_in()
            state = (
                self._follow(self._tally.known("learner")) if roster.commands and member.role in _TOLD_ROSTER else {}
            )
            learners = self._members.learners_begun
        welcome = Welcome(
            run=self._members.run_id,
            name=member.name,
            incarnation=member.incarnation,
            config=self._config,
            world=self._world.model_dump_json(),
            run_dir=str(self._folder),
            policies=member.policies,
            specs=self._facts if member.role in ("actor", "relay") else [],
            roster=state,
            index=member.index,
            quota=member.quota,
            lease=member.lease,
            heartbeat=self._members.interval(member.role),
            learners=learners,
            actors=run.actors,
            **self._members.credentials(member),
        )
        told = self._server.answer(peer, welcome)
        if not told and member.fresh and not again:  # it asked, and died, while this process had no time for it
            self._members.withdraw(member)
            self._server.refusals.tell("joined_too_late", "gone", "it has ended", worker=member.name, host=join.host)
        elif not again:
            self._departures.joined(member.name, member.incarnation, join.host, join.pid)

    def _done_with(self, join: Join) -> bool:
        """Whether this is a resident worker that has done its part of a run which is ending."""
        if not self._resident or self._stages.now == "running" or join.incarnation:
            return False
        if join.role == "learner":
            return self._stages.now == "learners_draining" and self._members.left_cleanly(join)
        return join.role == "actor"

    def _heartbeat(self, peer: bytes, heartbeat: Heartbeat) -> None:
        member = self._members.heartbeat(heartbeat)
        if member is None:
            self._server.answer(peer, Status(command="rejoin"))
            return
        self._hear(member, heartbeat)
        member.peer, member.schema_number = peer, heartbeat.schema_number
        self._tell(member)

    def _tell(self, member: WorkerRecord) -> None:
        """What a member of its role needs to know now."""
        view: dict[str, Any] = self._playing if member.role == "actor" else {}
        if member.role == "supervisor":
            view = self._view()
        elif member.role == "learner":
            evaluations = self._books.mean_evaluations(member.policies)
            roster, released = self._followed, self._members.released(self._followed["retired"])
            view = {"evaluations": evaluations, "roster": roster, "released": released, **self._end()}
            view["graphs"] = self._graphs.wanted
        elif member.role == "evaluator":
            view = {"made": self._books.steps_done, "complete": self._members.complete}
        member.told, routes = self._orders(member), self._members.routes(member)
        if member.role == "actor":  # a thousand of them are told the same
            last = self._same.get((member.schema_number, member.told, id(routes)))
            if last is None or last[1] is not routes or last[2] is not view:
                last = self._status(member, routes, view), routes, view
                if len(self._same) >= _STATUSES:
                    self._same.clear()
                self._same[member.schema_number, member.told, id(routes)] = last
            self._server.answer(member.peer, last[0])
            return
        self._server.answer(member.peer, self._status(member, routes, view))

    def _end(self) -> dict[str, bool]:
        """What learners do about the end of the run: whether it comes before all steps are made, and no update is owed
        for what still comes; and whether nothing comes any more, as all that actors finished was acknowledged."""
        if self._stages.now == "running":
            return {}
        owed = any(unacknowledged(page) for page in self._members.counters("actor").values())
        settled = self._stages.now == "learners_draining" and not owed
        return {"cut_short": not self._members.complete, "settled": settled}

    def _status(self, member: WorkerRecord, routes: list[Route], view: dict[str, Any]) -> Status:
        command, checkpoints = self._orders(member)
        return Status(
            schema_number=member.schema_number,
            command=command,
            routes=routes,
            actors=self._members.living_actors() if member.role in ("learner", "relay") else [],
            view=view,
            checkpoints=checkpoints,
            returns=self._books.mean_returns(member.policies) if member.role == "learner" else {},
        )

    def _orders(self, member: WorkerRecord) -> tuple[Command, int]:
        return self._stages.command(member.role, self.controls.paused), self.controls.checkpoints

    def _tell_news(self) -> None:
        """Whoever is to do something else than before is told at once, and not with its next heartbeat. One that has
        not been answered yet is about to ask."""
        orders = self.controls
        now = self._stages.now, orders.paused, orders.checkpoints, len(orders.roster.commands)
        if now == self._told:
            return
        self._followed = self._follow(self._tally.known("learner"))
        self._told, self._playing = now, self._plays()
        for member in self._members.everybody():
            if member.told is not None and (member.role == "learner" or member.told != self._orders(member)):
                self._tell(member)

    def _plays(self) -> dict[str, Any]:
        """What actors are told of the roster, the league and the curriculum."""
        roster = self.controls.roster
        plays: dict[str, Any] = {"roster": self._followed}
        if self._standing is not None:
            plays["league"] = self._standing.instructions
        drawn = {"prior": roster.prior} if roster.prior else {}
        drawn = drawn if self._curriculum is None else self._curriculum.view
        settings = {"settings": roster.state["settings"]} if roster.state["settings"] else {}
        return {**plays, "curriculum": drawn | settings} if drawn or settings else plays

    def _serve_file(self, peer: bytes, wanted: Fetch) -> None:
        """A part of a member of the league's library, or of what a policy starts from, or is given instead."""
        told = {} if self._standing is None else self._standing.instructions.get("files", {})
        members = {**self._starts, **self.controls.roster.files, **told}
        self._server.answer(peer, *serve_chunk(self._folder, members, wanted))

    def _view(self) -> dict[str, Any]:
        """The books', with what a supervisor must know to tell a worker that hangs from one that has left."""
        if not self._books.view:
            return {}
        return {**self.view(), "left": sorted(map(list, self._members.clean))}

    def _leave(self, peer: bytes, leave: Leave) -> None:
        member = self._members.leave(leave)
        if member is not None:
            self._hear(member, leave)
            self._departures.left(leave, time.monotonic())
        self._kept_first.append(lambda: self._server.answer(peer, Status(command="stop")))
        self._end_due = True

    def _hear(self, member: WorkerRecord, message: Heartbeat | Leave) -> None:
        """Of episodes, and what hooks ask for."""
        asked = message.metrics.get(ENDING, 0.0) if member.role in self._hooked else 0.0
        if asked > self._ending:
            log.info("event=end_asked by=%s hooks=%g", member.name, asked)
            self._ending, self._end_due = asked, True

        def place(made: int) -> int:
            return self._members.made_before(member.name, member.steps_before + made)

        fresh = self._members.new_episodes(member, message.episodes)
        told = [(name, made, place(made), count, total, length) for name, made, count, total, length in fresh]
        self._books.take_episodes(member.name, member.incarnation, told)

    def _advance(self, now: float) -> None:
        """To the next stage, when it is time."""
        members, stages, asked = self._members, self._stages, self._asked_to_stop.is_set()
        before = stages.now
        if self._resident and asked:
            log.warning("event=left stage=%s reason=asked to stop; the run waits for the next", before)
            self._observe()
            stages.leave()
            return
        if before == "running":
            orphaned = bool(self._parent) and os.getppid() != self._parent
            over = self._run.seconds is not None and self._books.seconds >= self._run.seconds
            static = not self._run.actors  # its learners then wait to be told to end
            due, self._end_due = self._end_due or asked or orphaned, False
            if due and (
                over
                or self._books.target_reached
                or self._ending == DONE
                or members.actors_done(self._tally.steps)
                or (static and self._tally.trained_on(self._parts))
            ):
                members.complete = True
                stages.drain(now, complete=True)
            elif asked or orphaned or self._ending > DONE:
                why = "supervisor gone" if orphaned else "asked to" if asked else "error of a hook"
                log.warning("event=stopping reason=%s", why)
                stages.drain(now, complete=False)
            if stages.now != before:
                self._on_stage_change()
        while stages.advance(now, members.complete, members.there):
            self._on_stage_change()

    def _on_stage_change(self) -> None:
        self._observe()
        log.info("event=stage stage=%s", self._stages.now)

    def _observe(self, known: tuple[Pages, Pages] | None = None) -> None:
        """By the counters of actors and learners that are `known`, or as they are now."""
        members = self._members
        self._baselines.look()
        pages = known or (self._tally.actors(), self._tally.learners())
        self._books.observe(
            *pages,
            members.table(),
            self._tally.restarts(self._learned),
            members.measured(),
            members.apart,
            self._baselines.found,
        )
        if self._standing is not None:
            self._standing.update(pages[0], time.monotonic())
        if self._curriculum is not None:
            self._curriculum.update(pages[0])
        self._followed = self._follow(pages[1])
        self._playing = self._plays()
        if self._stages.now == "running":
            paused, counted = self.controls.paused, {**pages[0], **pages[1]}
            self._stillness.look(time.monotonic(), paused, self._books.view, members.absent, counted)


@click.command(
    name="coordinator",
    help="The coordinator of one run: CONFIG is a YAML file.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="The run's folder.")
@click.option("--bind", default="127.0.0.1:5600", show_default=True, metavar="HOST:PORT", help="Port 0: a free one.")
@click.option("--advertise", default="", metavar="HOST", help="Address that others reach it at, if another.")
@click.option("--insecure", is_flag=True, help="Allow sockets that other machines can reach without authentication.")
@click.option("--keys", envvar="ROOKERY_KEYS", default="", metavar="DIR", help="Keys, as `rookery keys new` makes.")
@click.option(
    "--resident", envvar="ROOKERY_RESIDENT", is_flag=True, help="A scheduler starts it again whenever it ends."
)
@click.option("--until-end", is_flag=True, help="Resident, but end when the run has.")
def command(
    config: Path, run_dir: Path, bind: str, advertise: str, insecure: bool, keys: str, resident: bool, until_end: bool
) -> None:
    """Command line of the coordinator."""
    add_cwd_to_path()
    try:
        check_bind(_host_of(bind), keys, insecure)
        code = _run(config, run_dir.resolve(), keys, bind, advertise, resident, until_end)
    except Exception as fault:
        _, code = tell_failure("coordinator", fault)
    sys.exit(code)


def _host_of(bind: str) -> str:
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError("bind_not_host_port", value=bind)
    return host


def _run(config: Path, folder: Path, keys: str, bind: str, advertise: str, resident: bool, until_end: bool) -> int:
    began, run = time.monotonic(), read_run(config)
    if run.multiprocessing.enabled is False:
        raise ConfigurationError("coordinator_without_processes", key="multiprocessing.enabled")
    if run.replay is not None:
        raise ConfigurationError("replay_with_coordinator", file=run.replay, key="replay")
    with ExitStack() as stack:
        lock = lock_run_folder(run, folder)
        stack.callback(os.close, lock)
        run, changes = going_on(run, folder)
        configure_logging("coordinator", run, folder)
        world, fields, hooked = described(run, "coordinator", lock, partial(take_starts, folder=folder))
        plan_learners(run, world, fields)
        changed = [one for one in changes or () if one.key.startswith(WORLD)]
        before = described(read_run(folder / "config.yaml"), "coordinator", lock)[0] if changed else world
        if before.population != world.population:
            raise differs(folder, changed, ", by which agents or spaces of the world become others")
        if run.evaluation is not None:
            environments_of(run.environment, 1)
        baselines = BaselineProcess(run, folder, began, lock)  # forked while there is no thread
        stack.callback(baselines.close)
        context = open_context(keys, "coordinator")
        stack.callback(context.destroy, linger=0)
        ports = Ports(context, _host_of(bind), int(bind.rpartition(":")[2]), advertise)
        addresses = ports.bind({0: zmq.ROUTER}, {0: MAX_REQUEST}, WAITING, http=True, bytes_waiting={0: BYTES})
        stack.callback(ports.close)
        control = ControlServer(ports.sockets[0], ports.guard)
        coordinator = Coordinator(run, world, folder, control, baselines, resident, fields, hooked)
        stack.callback(coordinator.close)
        if changes:
            keep_config(run, folder, changes, coordinator.take_up(changes))
        if not (read_summary(folder) or {}).get("complete", True):  # of an earlier life: the run is not over any more
            (folder / "summary.json").unlink()
        assert ports.http is not None
        page = Dashboard(folder, run, coordinator.controls, coordinator.view, coordinator.history)
        routes = {**coordinator.vitals.routes(), **page.routes(), ("GET", "/metrics"): coordinator.metrics}
        stack.callback(HttpServer(ports.http, routes, coordinator.vitals.refusals).close)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, coordinator.stop)
        install_stack_dump_signal()
        _announce(folder, addresses[0], addresses[HTTP])
        complete = coordinator.serve()
        if not coordinator.left:
            summary = coordinator.finish()
            coordinator.linger(3.0, stay=resident and not until_end)
            if complete:
                check_trained(summary)
    return 0 if complete or coordinator.left else INCOMPLETE


def _announce(folder: Path, address: str, http: str) -> None:
    """Tells those who can see the folder where the coordinator is. It has the folder for itself: what another one left
    that died meanwhile is written over."""
    aside = folder / ".coordinator"
    aside.write_text(json.dumps({"address": address, "http": http, "pid": os.getpid()}) + "\n")
    aside.rename(folder / "coordinator.json")


if __name__ == "__main__":
    freeze_startup_objects()
    command()
