"""How a run is doing, asked of its coordinator: here or on another machine, by anybody who may read.

In flow: a run's folder, or where its coordinator is. Out flow: the same view that `rookery train` shows, or, of a run
that is over, its summary.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Console

from launch.cli.display import display, findings, read_rows, render, summary_table
from protocol.control.run_summary import read_summary
from protocol.control.wording import shown, verdict_line
from protocol.errors import ConfigurationError, Refused, Timeout
from protocol.transport.ports import HTTP

_SECONDS = 5.0
_LOOK_EVERY = 1.0
_OVER = ("over", "ended", "left")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past every proxy of the environment: those of clusters know no machine of the run, and are not to see its token."""


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Where a run can be asked. `folder` None: it lies on another machine; `url` empty: nobody coordinates it. Where
    `run_id` is given, another run that has come to live at that port refuses."""

    url: str
    token: str
    folder: Path | None = None
    run_id: str = ""


def find(source: str) -> CoordinatorAddress:
    """What `source` means: a run's folder, `http://HOST:PORT` or the coordinator's `tcp://HOST:PORT`."""
    token = os.environ.get("ROOKERY_TOKEN", "").strip()
    parts = urlsplit(source)
    try:
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:  # a port that is no number raises
            return CoordinatorAddress(f"{parts.scheme}://{parts.netloc}", token)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            return CoordinatorAddress(f"http://{host}:{parts.port + HTTP}", token)
    except ValueError:
        pass  # no port: told below
    folder = Path(source)
    if not (folder / "config.yaml").is_file():
        raise ConfigurationError("run_address_invalid", value=source)
    announced, kept, name = folder / "coordinator.json", folder / "token", folder / "run_id"
    try:
        url = str(json.loads(announced.read_text())["http"]) if announced.is_file() else ""
        token = token or (kept.read_text().strip() if kept.is_file() else "")
        run_id = name.read_text().strip() if name.is_file() else ""
    except (OSError, ValueError, KeyError) as fault:
        raise ConfigurationError("run_folder_unreadable", reason=str(fault), file=folder) from None
    return CoordinatorAddress(url, token, folder, run_id)


def look(place: CoordinatorAddress) -> dict[str, Any]:
    """The run's view; of one that is over `{"stage": "over", "summary": ...}`.

    Refused without the token that is asked for; Timeout when nobody answers and nothing is known.
    """
    refused = ""
    try:
        if place.url:
            view = json.loads(ask(place, "view"))
            if isinstance(view, dict) and {"id", "stage"} <= view.keys():
                return view
            refused = "what no coordinator says"
    except urllib.error.HTTPError as fault:
        refused = refusal(fault)
    except http.client.HTTPException:
        refused = "what is no HTTP (the page of a coordinator at tcp://HOST:PORT is http://HOST:PORT+9)"
    except (OSError, ValueError):
        pass  # nobody coordinates it any more: what it left tells
    summary = None if place.folder is None else read_summary(place.folder)
    if summary is not None:
        return {"stage": "over", "summary": summary}
    if refused:
        raise Refused("coordinator_answer_unusable", peer=place.url, reason=refused)
    log = None if place.folder is None else place.folder / "logs" / "coordinator.out"
    if not place.url and log is not None and log.is_file():
        raise Refused("run_never_began", file=log)
    where = place.url or f"{place.folder}, a run in one process"
    raise Timeout("coordinator_silent", peer=where)


def stop(place: CoordinatorAddress) -> None:
    """Has the run end in order, as the button of its page does. Refused without the token that is asked for; Timeout
    where nobody coordinates it any more."""
    try:
        ask(place, "stop", "POST")
    except urllib.error.HTTPError as fault:
        raise Refused("coordinator_answer_unusable", peer=place.url, reason=refusal(fault)) from None
    except (OSError, ValueError):
        raise Timeout("coordinator_silent", peer=place.url or place.folder) from None


def ask(
    place: CoordinatorAddress, what: str, method: str = "GET", body: bytes | None = None, seconds: float = _SECONDS
) -> bytes:
    """What the coordinator answers; OSError where none does, urllib.error.HTTPError where it refuses, ValueError where
    nobody coordinates the run."""
    headers = {"Authorization": f"Bearer {place.token}"} if place.token else {}
    url = f"{place.url}/api/{what}" + (f"{'&' if '?' in what else '?'}id={place.run_id}" if place.run_id else "")
    request = urllib.request.Request(url, headers=headers, method=method, data=body)
    with _DIRECT.open(request, timeout=seconds) as answer:
        return bytes(answer.read())


def refusal(fault: urllib.error.HTTPError) -> str:
    """What the coordinator answers instead."""
    with fault:
        return f"{fault.code}: {fault.read().decode(errors='replace').strip()}"


@click.command()
@click.argument("source", metavar="RUN-FOLDER|URL")
@click.option("--watch", is_flag=True, help="Go on until the run ends.")
@click.option("--json", "as_json", is_flag=True, help="Print the view as JSON, a line each time.")
def status(source: str, watch: bool, as_json: bool) -> None:
    """How a run is doing: workers, rates, lag, waits, and what it waits for.

    \b
    rookery status runs/first                      once
    rookery status runs/first --watch              live, until it ends
    rookery status http://trainer:5609 --json      on another machine; the token from ROOKERY_TOKEN

    A coordinator at tcp://HOST:PORT tells it at http://HOST:PORT+9. A run in one process tells nobody until it is over.
    """
    place, console = find(source), Console()
    if as_json:
        return _print(place, watch)
    if not watch:
        return _show(console, look(place))
    with display(console) as shown_to:
        while (view := look(place))["stage"] not in _OVER:
            if "made" in view:
                shown_to.show(view)
            time.sleep(_LOOK_EVERY)
    _show(console, view)


def _print(place: CoordinatorAddress, watch: bool) -> None:
    while True:
        view = look(place)
        click.echo(json.dumps(view))
        sys.stdout.flush()
        if not watch or view["stage"] in _OVER:
            return
        time.sleep(_LOOK_EVERY)


def _show(console: Console, view: dict[str, Any]) -> None:
    """One view, or what became of the run."""
    if "summary" in view:
        summary = view["summary"]
        console.print(summary_table(summary))
        how, errors = "complete" if summary["complete"] else "ended early", summary.get("errors", [])
        made, verdict = f"{summary['agent_steps']:,} agent steps", summary["verdict"]
        if rows := read_rows(summary):
            made = f"{sum(told['trained'] for told in rows.values()):,} rows trained"
        waited = "" if verdict == "starting" or errors else f"; {verdict_line(verdict)}"
        console.print(f"{how}: {made} in {shown(summary['seconds'])} s{waited}", highlight=False)
        for fault in errors:
            console.print(f"{fault['worker']}: {fault['error']}", highlight=False, markup=False)
        for line in findings(summary["health"]["findings"]):
            console.print(line)
    elif "made" in view:
        console.print(render(view))
    else:
        console.print("the run has begun; nothing is known of it yet")
