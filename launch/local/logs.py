"""`rookery logs`: what the workers of a run wrote, in the order of time, also while they go on.

In flow: the log files of a run, or those that `rookery hosts up` keeps of other machines. Out flow: lines.
"""

from __future__ import annotations

import json
import re
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import click

from launch.run_dir import held
from protocol.config.yaml_file import read_run
from protocol.errors import ConfigurationError

_LOOK_EVERY = 0.5
_FILE = re.compile(r"(?P<worker>.+)\.(?P<kind>log|jsonl|out)(?P<part>\.\d+)?")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) - ")


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("workers", nargs=-1, metavar="[WORKER]...")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written, until the run is over.")
def logs(folder: Path, workers: tuple[str, ...], follow: bool) -> None:
    """Prints what the workers of a run wrote, in the order of time. RUN may be the --logs of `rookery hosts up`, too.

    \b
    rookery logs runs/mine
    rookery logs runs/mine learner-hunter 'actor-*' --follow
    """
    of_run = (folder / "config.yaml").is_file()
    reader = _Reader(folder / read_run(folder / "config.yaml").log_dir if of_run else folder, workers or ("*",))
    lock = folder / ".lock" if of_run else folder / "hosts.json"
    goes_on = held(lock)
    reader.show()
    while follow and goes_on:
        time.sleep(_LOOK_EVERY)
        goes_on = held(lock)  # asked first: what is written up to then is shown
        reader.show()


class _Reader:
    """The files of `workers` in `folder`, each read on from where it was read to."""

    def __init__(self, folder: Path, workers: tuple[str, ...]) -> None:
        self._folder, self._workers = folder, workers
        self._open: dict[int, BinaryIO] = {}
        known = {found["worker"] for found, _ in self._files()}
        if not known:
            raise ConfigurationError("logs_missing", file=folder)
        for worker in workers:
            if not any(fnmatchcase(name, worker) for name in known):
                raise ConfigurationError("log_missing", peer=worker, file=folder, value=", ".join(sorted(known)))

    def show(self) -> None:
        """What is new in them. What a worker says in its log and on stderr as well is shown once."""
        lines: list[tuple[float, str]] = []
        for found, path in self._files():
            if any(fnmatchcase(found["worker"], worker) for worker in self._workers):
                lines += self._read(found["worker"], path)
        for _, line in dict.fromkeys(sorted(lines, key=lambda line: line[0])):
            click.echo(line)

    def _files(self) -> list[tuple[re.Match[str], Path]]:
        """The older parts first. Of the same lines for people and for programs, those for people."""
        every = [(found, path) for path in self._folder.glob("*") if (found := _FILE.fullmatch(path.name))]
        people = any(found["kind"] == "log" for found, _ in every)
        shown = [(found, path) for found, path in every if not (people and found["kind"] == "jsonl")]
        return sorted(shown, key=lambda one: (one[0]["worker"], one[0]["kind"], -int((one[0]["part"] or ".0")[1:])))

    def _read(self, worker: str, path: Path) -> list[tuple[float, str]]:
        """Whole lines, each with its time or that of the one before; a file that was moved on is known again."""
        try:
            if (inode := path.stat().st_ino) not in self._open:
                self._open[inode] = path.open("rb")
        except FileNotFoundError:  # moved on just now: found the next time
            return []
        file, stamp, lines = self._open[inode], 0.0, []
        while (raw := file.readline()).endswith(b"\n"):
            text = raw.decode(errors="replace").rstrip()
            line = "".join(letter if letter.isprintable() or letter == "\t" else "�" for letter in text)
            stamp = _stamp(line) or stamp
            lines.append((stamp, line if f" - {worker} - " in line else f"{worker}: {line}"))
        file.seek(-len(raw), 1)
        return lines


def _stamp(line: str) -> float:
    """Seconds since 1970; 0 where it says none."""
    if found := _STAMP.match(line):
        return time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) + int(found[2]) / 1000
    try:
        return float(json.loads(line)["time"]) if line.startswith('{"time"') else 0.0
    except (ValueError, KeyError, TypeError):
        return 0.0
