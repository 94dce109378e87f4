"""The display of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from protocol.control.wording import shown, threads_line, verdict_line

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY = 5.0
_FINDING = ("level", "layer", "says", "remedy")
"""What is told once of all policies of which it holds."""
_LEAST, _HISTORY = 4, 60
"""Blocks of a sparkline, at least and at most: as there is room."""
_WAITS = 6
"""That are shown."""
_STYLES = {"fault": "bold red", "note": "yellow"}


class Silent:
    """Shows nothing of the progress; events are told all the same."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[tuple[str, str]] = set()

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, view: dict[str, Any]) -> None:
        """A new state of the run: what is found at fault is told once."""
        for one in view.get("health", ()):
            if (one["policy"], one["finding"]) not in self._told:
                self._told.add((one["policy"], one["finding"]))
                self.tell(health_line(one))

    def tell(self, line: str) -> None:
        """An event."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Plain(Silent):
    """A line every few seconds, for logs and pipes."""

    def __init__(self, console: Console, name: str = "") -> None:
        super().__init__(console)
        self._name = f"run={name} " if name else ""
        self._at, self._moving = time.monotonic(), False

    def show(self, view: dict[str, Any]) -> None:
        """Prints a line when it is time."""
        super().show(view)
        now = time.monotonic()
        if not view or (now - self._at < _PLAIN_EVERY and (self._moving or not view.get("made"))):
            return
        self._at, self._moving = now, bool(view.get("made"))
        if not self._moving:
            if said := starting(view):
                self.tell(said)
            return
        returns = " ".join(f"{name}={shown(policy['return'])}" for name, policy in view["policies"].items())
        self.tell(
            f"{self._name}steps={view['made']} of={view['steps']} steps/s={shown(view['made_per_second'])} "
            f"left={_left(view)} return: {returns} verdict={view['verdict']}"
        )


class Display(Silent):
    """The live table; those of several runs shown at once stand one below the other, on the first's console."""

    _shown: ClassVar[list[Display]] = []
    _all = threading.RLock()
    _live: ClassVar[Live]

    def __init__(self, console: Console, name: str = "") -> None:
        super().__init__(console)
        self._name, self._view = name, dict[str, Any]()

    def __enter__(self) -> Display:
        with self._all:
            if self._shown:
                self._console = self._live.console
            else:
                Display._live = Live(console=self._console, refresh_per_second=4, transient=False)
                self._live.__enter__()
            self._shown.append(self)
        return self

    def __exit__(self, *details: Any) -> None:
        with self._all:
            if self._shown == [self]:
                if self._view:
                    self._live.update(render(self._view, over=True))
                self._live.__exit__(*details)
            elif self._view:  # stays above those that go on
                self._console.print(Text(self._name, "bold"), render(self._view, over=True))
            self._shown.remove(self)

    def show(self, view: dict[str, Any]) -> None:
        """Redraws."""
        with self._all:
            self._view = view or self._view
            told = [(Text(one._name, "bold"), render(one._view)) for one in self._shown if one._view]
            self._live.update(Group(*(part for one in told for part in one[not self._shown[1:] :])))


def display(console: Console, progress: bool = True, name: str = "") -> Silent:
    """What shows a run: on a terminal, and in a notebook that has ipywidgets, a table, elsewhere lines; by its `name`
    where it may be one of several."""
    if not progress:
        return Silent(console)
    widgets = console.is_jupyter and find_spec("ipywidgets")  # without them a notebook's live table stays empty
    return (Display if console.is_terminal or widgets else Plain)(console, name)


def render(view: dict[str, Any], over: bool = False) -> Group:
    """The whole picture of `view`, in 80 columns or more; of a run that is `over` without workers and what they
    wait for."""
    found = findings(view["health"])
    if over:
        return Group(_progress(view, over=True), _policies(view), *found)
    return Group(_progress(view), _verdict(view), _policies(view), _workers(view), _waits(view), *found)


def findings(health: Sequence[dict[str, Any]]) -> list[Text]:
    """A line each, which names all policies that it was found of."""
    policies_of: dict[tuple[str, ...], list[str]] = {}
    for one in health:
        policies_of.setdefault(tuple(one[key] for key in _FINDING), []).append(one["policy"])
    return [
        Text(health_line({**dict(zip(_FINDING, known, strict=True)), "policy": ", ".join(who)}), _STYLES[known[0]])
        for known, who in policies_of.items()
    ]


def health_line(finding: dict[str, Any]) -> str:
    """A finding in one line: which layer of which policy's learning fails, and what to do."""
    level, layer, policy = finding["level"], finding["layer"], finding["policy"]
    return f"{level} in the {layer} of {policy}: {finding['says']}; {finding['remedy']}"


def summary_table(summary: dict[str, Any]) -> Table:
    """Returns beside the baselines and the last evaluations, and the steps of an episode in the last 5 %, or, of what
    was learned from datasets, how much that was; one row a policy."""
    evaluations, rows = summary.get("evaluations", {}), read_rows(summary)
    evaluated = ["evaluation"] if evaluations else []
    own = ["rows read", "rows trained"] if rows else ["first\n5 %", "last\n5 %", "best\n5 %", "length"]
    title = "mean return of an episode, and " + ("rows of datasets" if rows else "its length in the end")
    table = Table(title=title, title_justify="left")
    for column in ("policy", "random", "scripted", *evaluated, *own):
        left = column == "policy"  # which alone is folded where there is no room
        table.add_column(column, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for name, curve in summary["returns"].items():
        known = summary["baselines"].get(name, {})
        told = [rows[name]["read"], rows[name]["trained"]] if rows else [curve[k] for k in ("first", "last", "best")]
        length = [] if rows else [summary.get("episode_length", {}).get(name)]
        mean = [_mean(evaluations.get(name))] if evaluations else []
        table.add_row(name, *map(shown, [known.get("random"), known.get("scripted"), *mean, *told, *length]))
    return table


def read_rows(summary: dict[str, Any]) -> dict[str, dict[str, int]]:
    """policy -> rows read and trained on, of a run that learned from datasets; else empty."""
    found: dict[str, dict[str, int]] = summary.get("rows", {})
    return found if any(told["read"] for told in found.values()) else {}


def _mean(found: dict[str, float] | None) -> float | None:
    """Of an evaluation in several environments."""
    return sum(found.values()) / len(found) if found else None


def baselines_line(summary: dict[str, Any]) -> str:
    """How many episodes the baselines are of, what they took of their time, and why some are not there."""
    found: dict[str, float] = next(iter(summary["baselines"].values()), {})
    kinds = [kind for kind in ("random", "scripted") if kind in found]
    counts = {kind: found[f"{kind}_episodes"] for kind in kinds}
    played = ", ".join(f"{kind}: {shown(n)} episode{'s' * (n != 1)}" for kind, n in counts.items()) or "no baselines"
    seconds = summary.get("baselines_seconds", {})
    took = (
        f" in {shown(seconds['spent'], 2)} s of at most {shown(seconds['budget'], 2)} s" if seconds.get("spent") else ""
    )
    missing = summary["baselines_missing"]
    return f"{played}{took}{f'; {missing}' if missing else ''}"


def tell_summary(console: Console, summary: dict[str, Any]) -> None:
    """How a run went, when it is over."""
    console.print(summary_table(summary))
    console.print(baselines_line(summary), highlight=False, markup=False)
    if untrained := ", ".join(summary["untrained"]):
        console.print(f"never trained, as there was no batch for it: {untrained}", highlight=False, markup=False)
    if read_rows(summary) and not summary["evaluations"]:
        console.print("no episode was played: `rookery evaluate` with the run folder tells what the policies earn")
    if (by_environment := environments_table(summary)) is not None:
        console.print(by_environment)


def environments_table(summary: dict[str, Any]) -> Table | None:
    """Of a collection: what each policy did in each environment, one row for both; None where there is only one."""
    if not summary["environments"]:
        return None
    table = Table(title="by environment, over the whole run", title_justify="left")
    for column in ("policy", "environment", "episodes", "mean return"):
        table.add_column(column, justify="left" if column in ("policy", "environment") else "right")
    for policy, places in summary["environments"].items():
        for name, found in places.items():
            table.add_row(policy, name, f"{found['episodes']:,}", shown(found["return_mean"]))
    return table


def _progress(view: dict[str, Any], over: bool = False) -> Table:
    """How far it is and how fast; when it is `over`, on the whole: its last steps have the pace of an end."""
    steps, done, seconds = view["steps"], view["made"], view["seconds"]
    rate = done / seconds if over and seconds else view["made_per_second"]
    grid = Table.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    grid.add_row(
        ProgressBar(total=steps, completed=min(done, steps), width=12),
        f"{done:,} of {steps:,} {view['unit']}",
        f"{shown(rate)}/s",
        f"in {shown(seconds, 3)} s" if over else f"{_left(view)} left",
    )
    return grid


def starting(view: dict[str, Any]) -> str:
    """Who is there of those whom a run waits for before its first step; empty once that is made."""
    if view.get("made") or "wanted" not in view:
        return ""
    there = sum(worker["role"] in ("actor", "learner") for worker in view["workers"])
    return f"starting: {there} of {view['wanted']} workers have joined"


def _verdict(view: dict[str, Any]) -> Text:
    said = "paused" if view.get("paused") else starting(view) or verdict_line(view["verdict"])
    return Text("\n".join(filter(None, [said, threads_line(view["two_threads"])])), style="bold")


def _left(view: dict[str, Any]) -> str:
    """The time until the end at the mean pace so far."""
    if view["seconds"] <= 1 or not view["made"]:
        return "–"
    seconds = round(max(0, view["steps"] - view["made"]) / view["made"] * view["seconds"])
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def _policies(view: dict[str, Any]) -> Table:
    table, evaluations = Table(box=None, pad_edge=False), view["evaluations"]
    evaluated = ["evaluation"] if evaluations else []
    for column in ("policy", "return", *evaluated, "length", "history", "lag", "queue", "starved", "blocked"):
        left = column in ("policy", "history")
        table.add_column(column, justify="left" if left else "right", no_wrap=column != "history")
    for name, policy in view["policies"].items():
        frozen = name in view.get("roster", {}).get("frozen", ())
        lag = "fixed" if policy["version"] is None else "frozen" if frozen else shown(policy["lag"], 3)
        told = [shown(_mean(evaluations.get(name)))] if evaluated else []
        length, history = shown(policy["episode_length"]), _History(policy["history"])
        table.add_row(name, shown(policy["return"]), *told, length, history, lag, *_flow(view, name))
    for name in view["auxiliaries"]:
        table.add_row(name, "", *[""] * len(evaluated), "", "", "", *_flow(view, name))
    return table


class _History:
    """A sparkline of `values`, as long as the table has room for."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_LEAST, min(_HISTORY, len(self._values))).with_maximum(options.max_width)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self._values, options.max_width))


def _flow(view: dict[str, Any], name: str) -> tuple[str, str, str]:
    """Of the last seconds: how full the queue is, how long the learner waited for data and the actors for credit."""
    flow = view["flow"].get(name)
    if flow is None:
        return "–", "–", "–"
    fill, starvation, blocked = (f"{shown(100 * flow[key], 2)}%" for key in ("queue_fill", "starvation", "blocked"))
    return fill, starvation, blocked


def _waits(view: dict[str, Any]) -> Text:
    """Where time went, of all workers together, the longest first."""
    waits = sorted(((value, name) for name, value in view["waits"].items() if value >= 0.05), reverse=True)
    return Text("waits   " + ("  ".join(f"{name} {shown(value, 2)} s" for value, name in waits[:_WAITS]) or "none"))


def _workers(view: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("worker", "state", "pid", "heard", "restarts"):
        table.add_column(column, justify="left" if column in ("worker", "state") else "right")
    for worker in view["workers"]:
        restarts = view["restarts"].get(worker["name"], 0)
        table.add_row(
            worker["name"], worker["state"], str(worker["pid"]), f"{shown(worker['silent'], 2)} s ago", str(restarts)
        )
    return table


def sparkline(values: list[float], width: int = _HISTORY) -> str:
    """`values` as a row of at most `width` blocks, each the mean of its share."""
    if not values:
        return ""
    shares = min(width, len(values))
    edges = [i * len(values) // shares for i in range(shares + 1)]
    values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[int((value - low) / span * (len(_BLOCKS) - 1))] for value in values)
