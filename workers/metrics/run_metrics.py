"""Measurements of a run, gathered over time: returns, rates, lag, waits, and the summary at the end.

In flows: episodes and counters of the workers. Out flows: a live view, `metrics.jsonl`, TensorBoard, loggers,
`summary.json`.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from protocol.config.run import Run
from protocol.control.processors import available_cores
from protocol.control.wording import verdict_line
from protocol.errors import TrainingFault
from protocol.experience.receipt_log import ReceiptLog
from protocol.memory.shared_file import read_counters
from workers.metrics.diagnostics import FINDINGS, Excess, batches_checked, findings_of
from workers.metrics.episode_returns import EpisodeJournal, PlacedEpisodes, RecentReturns, ReturnsCurve, first_cohort
from workers.metrics.history import History
from workers.metrics.hooks.findings import hook_findings
from workers.metrics.infos import InfoCurves
from workers.metrics.run_findings import Random, RunFindings
from workers.metrics.segment_accounting import Page, Pages, environment_books, segment_balance, sum_counters, summed
from workers.metrics.step_time import span, stepped
from workers.metrics.throughput import ProcessorUse, Throughput, bottleneck, seconds_starved
from workers.metrics.writers import MetricWriters
from workers.planning.data_parallel import ledger_path
from workers.planning.fixed_policy_plan import FixedPolicyPlan
from workers.runtime.files import SafeWriter

log = logging.getLogger(__name__)

Told = dict[tuple[str, int, str], int]
"""(actor, incarnation, policy) -> agent steps in the last of its `episodes` that were taken in."""

_WAITS = 1_000
"""That are told: a hundred policies have some hundreds."""
_RATE_SECONDS = 0.5
"""Over which a rate of now is taken at least."""


class RunMetrics:
    """One run's measurements. `policies`, those that learn, in the order of the world's agents; `auxiliaries` learn
    beside them, `fixed` are the policies that do not. `credits`: segments that an actor may have on their way; `judge`
    looks at what episodes earn, `processors` at those of the machine that all workers are on."""

    def __init__(
        self,
        run: Run,
        policies: list[str],
        folder: Path,
        auxiliaries: Sequence[str] = (),
        fixed: Mapping[str, FixedPolicyPlan] = MappingProxyType({}),
        credits: Mapping[str, int] = MappingProxyType({}),
        judge: RunFindings | None = None,
        processors: ProcessorUse | None = None,
    ) -> None:
        self._run, self._policies, self._folder, self._fixed = run, policies, folder, fixed
        self._learned, self._played = [*policies, *auxiliaries], [*policies, *fixed]
        self._judge = judge or RunFindings({}, {})
        self._processors, self._apart = processors, False
        self._of_run: dict[str, dict[str, Excess]] = {}
        self._told_findings: dict[str, set[str]] = {}
        self._flow = Throughput(self._learned, {**credits})
        copies = run.environment.copies * max(1, run.actors)
        self._sizes = run.end, copies
        self._returns = {policy: ReturnsCurve(*self._sizes) for policy in self._played}
        self._recent = dict.fromkeys(self._played, (0, 0.0, 0))
        """Since the last look: episodes, the sum of their returns, and of their lengths."""
        self._ended = 0
        """Episodes of all policies, since this coordinator began."""
        self._newest = {policy: RecentReturns() for policy in self._played}
        self._infos = InfoCurves(self._played)
        self._members = list(run.environment.members or ())
        self._seen: dict[str, tuple[float, float]] = {}
        """policy/member -> (episodes, sum of returns) at the last look."""
        self.disk = SafeWriter()
        self._measurements = MetricWriters(run, folder, self.disk)
        self._looks: deque[tuple[float, int, int]] = deque()
        self.steps_done = 0
        """Agent steps, or without actors rows trained on, at the last look."""
        self._kept, self._journal = folder / "books.json", EpisodeJournal(folder / "books.journal", self.disk)
        self.told: Told = {}
        self.seconds = 0.0
        """Wall-clock seconds from the first to the newest step; without actors, from the first to the newest update."""
        self._told_of: tuple[Any, ...] = ()
        """What was made, trained, evaluated and told of episodes when measurements were written last."""
        self._began = self._looked_at = time.time()
        self._watched: list[tuple[float, float]] = []
        """(from, to) of steps as looks saw them, for those who do not tell: one of each coordinator there was."""
        self._watching: tuple[float, float] | None = None
        self.view: dict[str, Any] = {}
        self._restore()

    def add(self, policy: str, credit: int) -> None:
        """One policy more that learns; an actor may have so many of its segments on their way."""
        self._learned.insert(len(self._policies), policy)
        self._policies.append(policy)
        self._played.append(policy)
        self._flow.credits[policy] = credit
        self._returns[policy] = ReturnsCurve(*self._sizes)
        self._recent[policy], self._newest[policy] = (0, 0.0, 0), RecentReturns()
        self._infos.add(policy)

    @property
    def history(self) -> History:
        """The curves so far."""
        return self._measurements.history

    def episodes(self, policy: str, at: int, count: int, total_return: float, total_length: int) -> None:
        """`count` episodes of `policy` ended when the run had made about `at` agent steps."""
        self._returns[policy].add(at, count, total_return, total_length)
        episodes, returns, length = self._recent[policy]
        self._recent[policy] = episodes + count, returns + total_return, length + total_length
        self._ended += count
        self._newest[policy].add(count, total_return)

    def take_episodes(self, actor: str, incarnation: int, entries: Sequence[PlacedEpisodes]) -> None:
        """What an actor told that is new; it forgets that when it is answered, and these books are saved later."""
        self._journal.append(actor, incarnation, entries)
        for entry in entries:
            self._take(entry)

    def _take(self, entry: PlacedEpisodes) -> None:
        policy, _, at, count, returns, length = entry
        if count:
            self.episodes(policy, at, count, returns, length)

    def settle(self, made: int, actors: Pages) -> None:
        """Notes of which policies all the first episodes have ended, when the run has made so many agent steps."""
        for policy, curve in self._returns.items():
            curve.settle(made, first_cohort(policy, actors))

    def mean_returns(self, policies: Iterable[str]) -> dict[str, float]:
        """Mean return of the newest episodes of each of `policies` of which enough have ended."""
        means = {policy: self._newest[policy].mean for policy in policies if policy in self._newest}
        return {policy: mean for policy, mean in means.items() if mean is not None}

    def mean_evaluations(self, policies: Iterable[str]) -> dict[str, float]:
        """Mean over environments of the newest evaluation of each of `policies` that has one."""
        told = self.view.get("evaluations", {})
        return {policy: sum(told[policy].values()) / len(told[policy]) for policy in policies if policy in told}

    @property
    def target_reached(self) -> bool:
        """Whether every policy that learns earns what the run is to be ended with."""
        target = self._run.target_return
        returns = self.mean_returns(self._policies)
        return target is not None and all(returns.get(name, -math.inf) >= target for name in self._policies)

    def observe(
        self,
        actors: Pages,
        learners: Pages,
        workers: list[dict[str, Any]],
        restarts: Mapping[str, int],
        measured: Mapping[str, float] = MappingProxyType({}),
        apart: bool = False,
        random: Random = MappingProxyType({}),
    ) -> None:
        """Once a second: makes the live view and writes it down. `measured`: POLICY.NAME -> what workers measured;
        `apart`: segments cross a network; `random`: what random players earned."""
        now = time.monotonic()
        of_actors = summed(actors.values())
        counted = summed((of_actors, *learners.values()))
        env_steps, agent_steps = (int(of_actors.get(name, 0)) for name in ("env_steps", "agent_steps"))
        trained = sum_counters(learners.values(), *(f"rows_trained.{p}" for p in self._policies))
        made = agent_steps if self._run.actors else trained
        self._look(made)
        self._infos.look(of_actors)
        self.settle(made, actors)
        self._measure(actors if self._run.actors else learners)
        env_rate, rate = self._rates(now, env_steps, made)
        rates = {"env_steps_per_second": env_rate, "agent_steps_per_second": rate}
        if not self._run.actors:
            rates = {"rows_per_second": rate}
        policies = {policy: self._policy_view(policy, of_actors, learners) for policy in self._played}
        auxiliaries = {name: _learned(name, learners) for name in self._learned[len(self._policies) :]}
        living = {(worker["name"], worker["incarnation"]) for worker in workers}
        adoption_lag = {name: measured.get(f"{name}.adoption_lag", 0.0) for name in self._learned}
        flow = self._flow.update(now, counted, actors, learners, living, adoption_lag)
        self._apart |= apart
        if made and self._processors is not None:
            self._processors.look()
        verdict = self._verdict_now(flow, apart, learners)
        self._judge_learning(made, measured, random)
        view = {
            "steps": self._run.end,
            "env_steps": env_steps,
            "agent_steps": agent_steps,
            "made": made,
            "unit": "agent steps" if self._run.actors else "rows trained",
            "made_per_second": rate,
            "seconds": round(self.seconds, 3),
            **rates,
            "policies": policies,
            "auxiliaries": auxiliaries,
            "evaluations": self._evaluations(measured),
            "workers": workers,
            "restarts": dict(restarts),
            "waits": _waits(counted),
            "flow": flow,
            "verdict": verdict,
            "advice": verdict_line(verdict),
            "two_threads": [name for name in self._learned if measured.get(f"{name}.gradient_threads", 1) > 1],
            "health": self._findings(learners, actors),
        }
        self._write_down(view, rates, measured)
        self.view = view  # last: who sees it finds its point in the history

    def _write_down(self, view: dict[str, Any], rates: Mapping[str, float], measured: Mapping[str, float]) -> None:
        """A point of the history, where there is something new to tell: of a run that pauses there is not."""
        trained = [one["train_steps"] for one in view["policies"].values()]
        told_of = view["made"], trained, view["evaluations"], self._infos.told, self._ended
        if self.steps_done and told_of != self._told_of:
            self._told_of = told_of
            learned = {**view["policies"], **view["auxiliaries"]}
            told = {name: {**one, **_of(name, measured)} for name, one in learned.items()}
            self._measurements.write(told, rates, view["env_steps"], view["agent_steps"], view["made"])
            self.save()

    def _findings(self, learners: Pages, actors: Pages) -> list[dict[str, Any]]:
        found = findings_of(self._learned, learners, actors, self._of_run)
        if self._run.hooks:
            apart = {worker: page for worker in self.paged("hooks") if (page := self.page(*worker)) is not None}
            found += hook_findings(self._run, {**learners, **actors, **apart}, self._folder)
        return found

    def _judge_learning(self, made: int, measured: Mapping[str, float], random: Random) -> None:
        """Looks whether policies learn, and says what is found when it is new."""
        entropy, explained = (
            {name: measured[f"{name}.{what}"] for name in self._policies if f"{name}.{what}" in measured}
            for what in ("entropy", "explained_variance")
        )
        means = self.mean_returns(self._policies)
        self._of_run = self._judge.look(min(1.0, made / self._run.end), means, random, entropy, explained)
        for policy, found in self._of_run.items():
            for name in found.keys() - self._told_findings.get(policy, set()):
                self._told_findings.setdefault(policy, set()).add(name)
                one, (value, bound) = FINDINGS[name], found[name]
                where = f"agent_steps={made} value={value:.4g} limit={bound:.4g}"
                text = "event=health layer=%s policy=%s finding=%s %s says=%s remedy=%s"
                log.warning(text, one.layer, policy, name, where, one.says, one.remedy)

    def summary(
        self,
        actors: Pages,
        learners: Pages,
        clean: set[tuple[str, int]],
        restarts: Mapping[str, int],
        baselines: Mapping[str, Any],
        complete: bool,
        gave_up: Collection[tuple[str, int]] = (),
    ) -> dict[str, Any]:
        """What `summary.json` says; `baselines`: its parts that tell of them. A run is `complete` that has reached its
        end, and trained some policy if there are any to be trained."""
        self._measure(actors if self._run.actors else learners)
        env_steps, agent_steps = (sum_counters(actors.values(), name) for name in ("env_steps", "agent_steps"))
        self._infos.look(summed(actors.values()))
        pages = learners.values()
        rows_read = sum_counters(pages, *(f"rows_read.{p}" for p in self._policies))
        untrained = [p for p in self._policies if not sum_counters(pages, f"steps_made.{p}")]
        return {
            "complete": complete and (not untrained or len(untrained) < len(self._policies)),
            "untrained": untrained,
            "env_steps": env_steps,
            "agent_steps": agent_steps,
            "fixed_steps": sum_counters(actors.values(), "fixed_steps"),
            "seconds": self.seconds,
            "env_steps_per_second": self._per_second(env_steps),
            "agent_steps_per_second": self._per_second(agent_steps),
            "train_steps": {p: sum_counters(pages, f"steps_made.{p}") for p in self._learned},
            "train_steps_per_second": self._per_second(
                sum_counters(pages, *(f"steps_made.{p}" for p in self._learned))
            ),
            "fixed": {
                policy: {"algorithm": plan.algorithm.name, "source": plan.source, **self._returns[policy].whole()}
                for policy, plan in self._fixed.items()
            },
            "versions": {p: _newest(learners, f"version.{p}") for p in self._learned},
            "returns": {policy: curve.summary(first_cohort(policy, actors)) for policy, curve in self._returns.items()},
            "episode_length": {policy: curve.length for policy, curve in self._returns.items()},
            "environments": environment_books(self._played, self._members, actors),
            "infos": self._infos.whole(),
            **baselines,
            "segments": segment_balance(self._learned, actors, learners, self._ledgers(), clean, gave_up),
            "rows_trained_per_row_made": sum_counters(pages, *(f"rows_trained.{p}" for p in self._policies))
            / max(1, agent_steps - sum_counters(actors.values(), "fixed_steps") + rows_read),
            "rows": {p: {k: sum_counters(pages, f"rows_{k}.{p}") for k in ("read", "trained")} for p in self._policies},
            "recorded": {p: sum_counters(pages, f"recorded.{p}") for p in self._policies},
            "unfinished_steps": sum_counters(actors.values(), "unfinished_steps"),
            "lag": _lag(pages, self._policies),
            "waits": _waits(summed((*actors.values(), *learners.values()))),
            "restarts": dict(restarts),
            "environment_restarts": sum_counters(actors.values(), "environment_restarts"),
            "verdict": self.verdict(actors, learners),
            "loggers": self._measurements.logger_stats(),
            "health": {
                "batches_checked": {name: batches_checked(name, learners) for name in self._learned},
                "findings": self._findings(learners, actors),
            },
        }

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Puts `summary.json` in place, whole."""
        aside = self._folder / ".summary.json"
        aside.write_text(json.dumps(summary, indent=2) + "\n")
        aside.rename(self._folder / "summary.json")

    def verdict(self, actors: Pages, learners: Pages) -> str:
        """What the run waited for, over its whole time: `actor-bound` (always, where nothing learns), ..."""
        if known := self._known_verdict():
            return known
        credit = sum(_share(actors, f"waits.credit.{p}", self.seconds) for p in self._policies)
        pages = [(page, p) for page in learners.values() for p in self._policies if f"waits.data.{p}" in page]
        starved = sum(seconds_starved(page, p) for page, p in pages) / self.seconds / max(1, len(pages))
        return bottleneck(credit, starved, processors=self._busy(whole=True), crowded=_crowded(learners))

    def _verdict_now(self, flow: Mapping[str, Mapping[str, float]], apart: bool, learners: Pages) -> str:
        """What it waits for now."""
        if known := self._known_verdict():
            return known
        flows = [flow[policy] for policy in self._policies]
        blocked, starved = (sum(one[key] for one in flows) for key in ("blocked", "starvation"))
        late = max(one["adoption_lag"] / max(1e-9, one["versions_per_second"]) for one in flows)
        return bottleneck(blocked, starved / len(flows), apart, late, self._busy(), _crowded(learners))

    def _busy(self, whole: bool = False) -> float:
        """Share of the processors that is busy now, or was over the whole time; 0 where that is not known of all."""
        return 0.0 if self._processors is None or self._apart else self._processors.share(whole)

    def _known_verdict(self) -> str:
        """Empty where it has to be measured."""
        if self.seconds < 1:
            return "starting"
        if not self._run.actors:
            return "learner-bound"
        return "" if self._policies else "actor-bound"

    def close(self, complete: bool = True) -> None:
        """Closes the files, and the loggers, of a run that reached its end if it is `complete`."""
        self._journal.close()
        self._measurements.close(complete)

    def paged(self, role: str) -> list[tuple[str, int]]:
        """(worker, incarnation) of those of a role, dead or alive, that have a page in the run's folder."""
        try:
            names = (name.rpartition(".") for name in os.listdir(self._folder / "counters") if name.startswith(role))
            return sorted((name, int(incarnation)) for name, _, incarnation in names if incarnation.isdecimal())
        except FileNotFoundError:
            return []

    def page(self, worker: str, incarnation: int) -> Page | None:
        """That page; None if there is none. SharedMemoryError if it cannot be read."""
        try:
            return read_counters(f"{self._folder}/counters/{worker}.{incarnation}")  # a Path takes as long as the file
        except FileNotFoundError:
            return None

    def save(self) -> None:
        """What a coordinator that takes over could not know otherwise."""
        returns = {policy: curve.to_plain() for policy, curve in self._returns.items()}
        watched = [*self._watched, *([self._watching] if self._watching else [])]
        kept = {"began": self._began, "watched": watched, "returns": returns, "of_run": self._of_run}
        kept |= {"infos": self._infos.to_plain(), "told": [[*key, steps] for key, steps in self.told.items()]}
        if self.disk.replace(self._kept, json.dumps(kept)):
            self._journal.clear()

    def _restore(self) -> None:
        if self._kept.exists():
            self._restore_kept()
        for actor, incarnation, entry in self._journal.left():
            who, steps = (actor, incarnation, entry[0]), entry[1]
            if steps > self.told.get(who, -1):  # else the books were saved, and their journal was not emptied any more
                self.told[who] = steps
                self._take(entry)

    def _restore_kept(self) -> None:
        self._measurements.go_on()
        kept = json.loads(self._kept.read_text())
        self._began, self._watched = kept["began"], [(since, until) for since, until in kept["watched"]]
        for policy, curve in kept["returns"].items():
            self._returns[policy].restore(curve)
        self._infos.restore(kept["infos"])
        self.told |= {(actor, incarnation, policy): steps for actor, incarnation, policy, steps in kept["told"]}

    def _ledgers(self) -> dict[str, dict[tuple[str, int], tuple[int, int]]]:
        ledgers: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
        for policy in self._learned:
            for rank in range(self._run.ranks(policy)):
                path = ledger_path(self._folder, policy, rank)
                if path.exists():
                    ledger = ReceiptLog(path)
                    counts, entries = ledger.counts(), ledger.entries()
                    known = ledgers.setdefault(policy, {})
                    for key, number in entries.items():  # those that were put together are in each rank's
                        known[key] = number, counts[key] + known.get(key, (0, 0))[1]
        return ledgers

    def _rates(self, now: float, env_steps: int, made: int) -> tuple[float, float]:
        """Environment steps and `made` a second, since the look before; of the whole run as long as that, and those
        before it, are too near.

        Only looks that saw new steps are kept: a world whose steps come less often than looks makes them all the time,
        and none for so long as there were none before says that they have become slower.
        """
        if not made:
            self._looks.clear()
        if not self._looks or self._looks[-1][1:] != (env_steps, made):
            self._looks.append((now, env_steps, made))
        while len(self._looks) > 2 and now - self._looks[1][0] >= _RATE_SECONDS:
            self._looks.popleft()
        then, env_then, made_then = self._looks[0]
        newest = self._looks[-1][0]
        elapsed = max(newest - then, now - newest)
        if elapsed < _RATE_SECONDS:
            return self._per_second(env_steps), self._per_second(made)
        return (env_steps - env_then) / elapsed, (made - made_then) / elapsed

    def _per_second(self, count: int) -> float:
        """Of the whole run."""
        return count / self.seconds if self.seconds else 0.0

    def _look(self, made: int) -> None:
        """Notes between which looks steps were made."""
        now = time.time()
        if made > self.steps_done:
            since = self._looked_at if self._watching is None else self._watching[0]
            self.steps_done, self._watching = made, (since, now)
        self._looked_at = now

    def _measure(self, pages: Pages) -> None:
        """The time from the first to the newest step, as those who made them tell it."""
        told = [times for page in pages.values() if (times := stepped(page)) is not None]
        if any(page.get("agent_steps") and stepped(page) is None for page in pages.values()):
            told += [*self._watched, *([self._watching] if self._watching else [])]
        self.seconds = span(told, self._began, time.time())

    def _policy_view(self, policy: str, actors: Page, learners: Pages) -> dict[str, Any]:
        count, *sums = self._recent[policy]
        self._recent[policy] = (0, 0.0, 0)
        told = self.view.get("policies", {}).get(policy, {})
        means = [total / count for total in sums] if count else [told.get(key) for key in ("return", "episode_length")]
        learns = policy not in self._fixed
        return {
            "return": means[0],
            "episode_length": means[1],
            "history": self._returns[policy].history,
            **(_learned(policy, learners) if learns else {"version": None, "train_steps": None}),
            "lag": _lag(learners.values(), [policy])["mean"] if learns and self._run.actors else None,
            **self._by_environment(policy, actors),
            **self._infos.newest[policy],
        }

    def _evaluations(self, measured: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """The newest of each policy that has one, also when who evaluates has left."""
        before = self.view.get("evaluations", {})
        found = {policy: {**before.get(policy, {}), **_evaluated(policy, measured)} for policy in self._played}
        return {policy: told for policy, told in found.items() if told}

    def _by_environment(self, policy: str, actors: Page) -> dict[str, float]:
        """`return/MEMBER` of a collection: of the episodes that ended there since the last look, if any did."""
        found: dict[str, float] = {}
        for member in self._members:
            place = f"{policy}/{member}"
            count, returns = (actors.get(f"{k}.{place}", 0) for k in ("episodes", "returns"))
            before = self._seen.get(place, (0, 0.0))
            if count > before[0]:
                found[f"return/{member}"] = (returns - before[1]) / (count - before[0])
                self._seen[place] = (count, returns)
        return found


def check_trained(summary: Mapping[str, Any]) -> None:
    """TrainingFault if a run that has reached its end trained none of the policies that it was to train."""
    if not summary["complete"]:
        facts = {"steps": summary["agent_steps"], "segments": summary["segments"]["produced"]}
        raise TrainingFault("nothing_trained", policies=summary["untrained"], **facts)


def findings_of_run(folder: Path) -> dict[str, dict[str, Excess]]:
    """policy -> finding -> (number, limit), of the run in `folder`, when they were looked for last."""
    kept = folder / "books.json"
    found: dict[str, dict[str, Excess]] = json.loads(kept.read_text())["of_run"] if kept.exists() else {}
    return found


def _evaluated(policy: str, measured: Mapping[str, float]) -> dict[str, float]:
    """Environment, or `return` of the only one -> mean return of the newest evaluation."""
    begin = f"{policy}.evaluation/"
    return {name.removeprefix(begin): value for name, value in measured.items() if name.startswith(begin)}


def _learned(name: str, learners: Pages) -> dict[str, int]:
    return {
        "version": _newest(learners, f"version.{name}"),
        "train_steps": sum_counters(learners.values(), f"steps_made.{name}"),
    }


def _waits(counted: Page) -> dict[str, float]:
    """The longest, fit to be shown: what actors call theirs is not known here."""
    waits = [(value, name) for name, value in counted.items() if name.startswith("waits.") and name.isprintable()]
    return {name.removeprefix("waits."): value for value, name in heapq.nlargest(_WAITS, waits)}


def _newest(pages: Pages, name: str) -> int:
    """The counter's value in the newest incarnation that has it: it goes on across incarnations."""
    return max((int(page[name]) for page in pages.values() if name in page), default=0)


def _of(policy: str, measured: Mapping[str, float]) -> dict[str, float]:
    """What was measured of `policy`, as far as it is a number that files can hold."""
    prefix = f"{policy}."
    return {
        name.removeprefix(prefix): value
        for name, value in measured.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix) and math.isfinite(value)
    }


def _crowded(learners: Pages) -> bool:
    """Whether there are more of them than processors."""
    return len({name for name, _ in learners}) > available_cores()


def _share(pages: Pages, name: str, seconds: float) -> float:
    having = [page[name] for page in pages.values() if name in page]
    return sum(having) / seconds / max(1, len(having))


def _lag(pages: Any, policies: list[str]) -> dict[str, float]:
    pages = list(pages)
    rows = sum_counters(pages, *(f"lag_rows.{p}" for p in policies))
    worst = max((int(page.get(f"lag_max.{p}", 0)) for page in pages for p in policies), default=0)
    return {"mean": sum_counters(pages, *(f"lag_sum.{p}" for p in policies)) / max(1, rows), "max": worst}
