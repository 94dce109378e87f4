"""How a run of the tests ends: a few lines for each failure; when green, the slowest tests; the skips by reason.

Tracebacks and captured output go to build/failures; `--tb=long` prints them as well. A skip that tests.skips does not
allow becomes a failure, however it was made.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.skips import REASONS, fault, reason_in

WHOLE = 20
"""Failures told with all their lines, which are 20 at most; each of the others has its first."""
SLOWEST, LOGS = 10, 12
WIDTH, ENDS = 160, 4
"""Characters of a message's line, and lines of its beginning and of its end, where a worker's output comes first."""

_MADE = pytest.StashKey[list[str]]()
"""Folders made for one test, known also where its setup did not come to its end."""
Report = pytest.TestReport | pytest.CollectReport


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    value = yield
    if isinstance(value, Path):
        request.node.stash.setdefault(_MADE, []).append(str(value))
    return value


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In the process of the test: judges a skip, and notes what of a failed test is known only here."""
    report = yield
    _judge(report)
    if report.failed:
        stated = (inspect.getdoc(getattr(item, "obj", None)) or "").partition("\n\n")[0]
        shared = (getattr(item, "funcargs", None) or {}).values()
        folders = sorted({*item.stash.get(_MADE, []), *(str(path) for path in shared if isinstance(path, Path))})
        vars(report).update(stated=" ".join(stated.split()), folders=folders)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judges the skip of a module."""
    report = yield
    _judge(report)
    return report


def _judge(report: Report) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        said, place = _skip(report)
        wrong = fault(said)
        if wrong is not None:
            vars(report).update(outcome="failed", longrepr=f"{wrong}\nat {place}")


def _skip(report: Report) -> tuple[str, str]:
    """What it said, and where."""
    assert isinstance(report.longrepr, tuple)
    path, line, said = report.longrepr
    return said.removeprefix("Skipped: "), f"{_here(path)}:{line}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """After pytest's own summary, which leaves out the tracebacks unless `--tb` asks for them."""
    if config.option.tbstyle == "auto":
        config.option.tbstyle = "no"
    yield
    terminalreporter.ensure_newline()
    stats = terminalreporter.stats
    failed: list[Report] = [*stats.get("error", []), *stats.get("failed", [])]
    failures = {(report.nodeid, report.when): report for report in failed}  # one that ends its process is tried again
    told = [_failure(report, config) for report in failures.values()]
    _section(terminalreporter, f"{SLOWEST} slowest tests (seconds)", [] if told else _slowest(stats))
    _section(terminalreporter, "skips by reason", _skips(stats))
    _section(terminalreporter, "failures", [line for lines in told[:WHOLE] for line in lines])
    _section(terminalreporter, "more failures", [lines[0] for lines in told[WHOLE:]])


def _section(terminal: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    if lines:
        terminal.section(title)
        terminal.write_line("\n".join(lines))


def _slowest(stats: Mapping[str, list[Any]]) -> list[str]:
    spent: Counter[str] = Counter()
    for report in chain(*stats.values()):
        if isinstance(report, pytest.TestReport):
            spent[report.nodeid] += report.duration  # type: ignore[assignment]
    return [f"{seconds:8.2f}  {test}" for test, seconds in spent.most_common(SLOWEST)]


def _skips(stats: Mapping[str, list[Any]]) -> list[str]:
    found = Counter(reason_in(_skip(report)[0]) for report in stats.get("skipped", ()))
    return [f"{count:8}  {reason}: expected on {REASONS[reason].where}" for reason, count in found.most_common()]


def _failure(report: Report, config: pytest.Config) -> list[str]:
    """What was asked, what came, how to run it alone and where to look."""
    stage = "crash" if report.when == "???" else report.when
    process = f", {report.node.gateway.id}" if hasattr(report, "node") else ""
    lines = [f"{report.nodeid}  ({stage}{process})"]
    lines += _labelled("asked", filter(None, (getattr(report, "stated", ""), _statement(report))), WIDTH)
    lines += _labelled("came", _message(report), WIDTH)
    lines += _labelled("alone", [_command(report)])
    for folder in _folders(report, config):
        lines += _labelled("folder", [str(folder)])
        lines += _labelled("logs", _logs(folder))
    return [*lines, *_labelled("more", [_here(_written(report, f"{stage}", config.rootpath))])]


def _here(path: str | Path) -> str:
    """As seen from this folder, where it lies in it."""
    return str(Path(path).relative_to(Path.cwd()) if Path(path).is_relative_to(Path.cwd()) else path)


def _labelled(label: str, lines: Iterable[str], width: int | None = None) -> Iterator[str]:
    for number, line in enumerate(lines):
        shown = line if width is None or len(line) <= width else f"{line[: width - 1]}…"
        yield f"  {'' if number else label:<7} {shown}"


def _statement(report: Report) -> str:
    """The one at which the test's own file was left, or it failed."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    for entry in reversed(entries):
        place = getattr(entry, "reprfileloc", None)
        if place is not None and Path(place.path).name == Path(report.nodeid.partition("::")[0]).name:
            code = [line for line in entry.lines if not line.startswith("E") and line.strip(" ^~")]
            first = next((number for number, line in enumerate(code) if line.startswith(">")), -1)
            statement = " ".join(" ".join(code[first:]).removeprefix(">").split())
            return f"{_here(place.path)}:{place.lineno}: {statement}"
    return ""


def _message(report: Report) -> list[str]:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line for line in (crash.message if crash else str(report.longrepr)).splitlines() if line.strip()]
    if len(lines) > 2 * ENDS + 1:
        lines[ENDS:-ENDS] = [f"… {len(lines) - 2 * ENDS} more lines …"]
    place = f"{_here(crash.path)}:{crash.lineno}" if crash else ""
    return lines if _statement(report).startswith(f"{place}:" if place else "") else [*lines, f"at {place}"]


def _command(report: Report) -> str:
    """Runs it in one process, whatever its marks are, and prints all of its message and traceback."""
    setting = "ROOKERY_CI=1 " if os.environ.get("ROOKERY_CI") == "1" else ""
    return f"{setting}{shlex.quote(_here(sys.executable))} -m pytest -vv --tb=long {shlex.quote(report.nodeid)}"


def _folders(report: Report, config: pytest.Config) -> list[Path]:
    """Those that the test was given and that are still there, none within another; where its process died, the newest
    with its name, as `tmp_path` shortens it."""
    base = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as pytest-xdist finds it
    found = [Path(path) for path in getattr(report, "folders", ())]
    if report.when == "???":
        name = re.sub(r"\W", "_", re.sub(r"^[^[]*::", "", report.nodeid))[:30]
        of_name = (base / f"popen-{report.node.gateway.id}").glob(f"{name}[0-9]*")
        found = sorted(of_name, key=lambda folder: folder.stat().st_mtime)[-1:]
    there = [path for path in found if path.is_dir() and base in path.parents]
    return [path for path in there if not any(other in path.parents for other in there)][:2]


def _logs(folder: Path) -> list[str]:
    """What workers and other programs wrote, in one line."""
    found = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".log", ".out", ".txt")
    )
    more = f" and {len(found) - LOGS} more" if len(found) > LOGS else ""
    return [" ".join(found[:LOGS]) + more] if found else []


def _written(report: Report, stage: str, root: Path) -> Path:
    """The file with all that pytest would have printed."""
    name = re.sub(r"[^\w.-]+", "-", report.nodeid)[-100:]
    path = root / "build" / "failures" / f"{name}-{zlib.crc32(report.nodeid.encode()):08x}-{stage}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [report.nodeid, report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8", errors="replace")
    return path
