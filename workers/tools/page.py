"""`rookery page`: the page of runs that are over, or stopped, several beside each other.

python -m workers.tools.page runs/first runs/second

In flow: run folders. Out flow: the page that a coordinator shows, with what they left, until Ctrl-C.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import yaml

from protocol.config.yaml_file import read_run_in
from protocol.control.run_summary import read_summary
from protocol.control.wording import verdict_line
from protocol.errors import ConfigurationError, one_sentence
from protocol.refusal_log import RefusalLog
from workers import freeze_startup_objects
from workers.coordination.dashboard.dashboard import Dashboard
from workers.metrics.history import History, called
from workers.runtime.http_server import HttpServer

_COLUMNS = ("return", "episode_length", "version", "lag")


def view_of(folder: Path, history: History, apart: bool = False) -> dict[str, Any] | None:
    """What the page shows of the run in `folder`, whose curves go to `history`; of several, each policy is called with
    its run. None if it has measured nothing; ConfigurationError if it is no run's."""
    run, summary, lines = read_run_in(folder), read_summary(folder) or {}, folder / "metrics.jsonl"
    before = history.newest
    if lines.is_file():
        history.read(lines, of=folder.name if apart else "")
    made, newest = history.newest
    if history.newest is before:
        return None
    names = dict.fromkeys(name.partition("/")[0] for name in newest if name.endswith("/version"))
    of, health = folder.name if apart else "", summary.get("health", {"findings": []})["findings"]
    return {
        "run": folder.name,
        "stage": ("complete" if summary["complete"] else "ended early") if summary else "not over, or killed",
        "paused": False,
        "over": "what its folder holds",
        "unit": "agent steps" if run.actors else "rows trained",
        "steps": run.end,
        "made": int(made),
        "made_per_second": None,
        "seconds": summary.get("seconds", 0.0),
        "policies": {name: {key: newest.get(f"{name}/{key}") for key in _COLUMNS} for name in names},
        "auxiliaries": {},
        "evaluations": _evaluations(history, names),
        "flow": {},
        "workers": [],
        "restarts": {},
        "waits": summary.get("waits", {}),
        "advice": verdict_line(summary.get("verdict", "–")),
        "two_threads": [],
        "health": [{**one, "policy": called(one["policy"], of, len(names))} for one in health],
    }


def _evaluations(history: History, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The newest of each policy and environment."""
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for measure in history.measures():
        if measure.startswith("evaluation/"):
            for name, (_, values) in history.curves(measure).items():
                if name in found and values:
                    found[name][measure] = values[-1]
    return found


def _together(views: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs: what is said of each policy, and what of a run has no place in a sum left out."""
    advice = [*dict.fromkeys(view["advice"] for view in views)]
    return {
        **views[0],
        "run": ", ".join(view["run"] for view in views),
        "stage": ", ".join(dict.fromkeys(view["stage"] for view in views)),
        "steps": sum(view["steps"] for view in views),
        "made": sum(view["made"] for view in views),
        "policies": {name: policy for view in views for name, policy in view["policies"].items()},
        "evaluations": {name: told for view in views for name, told in view["evaluations"].items()},
        "waits": {},
        "advice": advice[0] if len(advice) == 1 else "–",
        "health": [one for view in views for one in view["health"]],
    }


@click.command(name="page", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="Where; any that is free unless it is given.")
def main(runs: tuple[Path, ...], port: int) -> None:
    """Shows the page of runs that are over, several beside each other, to this machine until Ctrl-C.

    \b
    rookery page runs/first
    rookery page runs/ppo-* runs/impala-*      their curves in one picture
    """
    with one_sentence("a folder that may be written"):
        folders, history = [run.resolve() for run in runs], History()
        found = {folder: view_of(folder, history, len(folders) > 1) for folder in folders}
        views = {folder: view for folder, view in found.items() if view is not None}
        for folder in found.keys() - views.keys():
            click.echo(f"{folder} has measured nothing yet: left out", err=True)
        if not views:
            raise ConfigurationError("nothing_to_plot")
        configs = {folder: read_run_in(folder) for folder in views}
        all_of_them = {folder.name: run.model_dump(mode="json") for folder, run in configs.items()}
        first = next(iter(views))
        told, config = views[first], ""
        if len(views) > 1:
            told, config = _together([*views.values()]), yaml.safe_dump(all_of_them, sort_keys=False)
        page = Dashboard(first, configs[first], None, lambda: told, history, config)
        try:
            listening = socket.create_server(("127.0.0.1", port))
        except OSError as fault:
            raise ConfigurationError("page_port_not_bindable", value=port, reason=fault.strerror) from None
    server, ended = HttpServer(listening, page.routes(), RefusalLog()), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    click.echo(f"http://127.0.0.1:{listening.getsockname()[1]}/#token={page.token}   (Ctrl-C ends it)")
    ended.wait()
    server.close()


if __name__ == "__main__":
    freeze_startup_objects()
    main(prog_name="rookery page")
