"""The table of what was measured: `TABLE.md` of `returns.jsonl`. Pure but for reading these lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from protocol.control.wording import shown
from protocol.intervals import interval
from tests.returns.cells import Pair, pairs

__all__ = ["HERE", "LEARNS", "REACHES", "RESULTS", "read", "table"]

HERE = Path(__file__).parent
RESULTS = HERE / "returns.jsonl"
LEARNS, REACHES = 0.5, 0.95
"""Parts of the way from random to the reference: every seed's, to beat random by a wide margin; that which the interval
of the mean must reach, to be as good as the reference."""
_COLUMNS = [
    "task",
    "algorithm",
    "form",
    "steps",
    "seeds",
    "last",
    "greedy",
    "random",
    "reference",
    "way",
    "interval",
    "learns",
    "reaches",
    "findings",
    "seconds",
]
_HEAD = f"""\
Measured by `make returns`; tests/README.md explains it. Each cell is a run of `rookery train` on two cores.

| {" | ".join(_COLUMNS)} |
|{"---|" * len(_COLUMNS)}
"""


def read() -> list[dict[str, Any]]:
    """The lines that were written whole, the newest of each name."""
    lines = RESULTS.read_text().splitlines(keepends=True) if RESULTS.exists() else []
    return [*{line["name"]: line for line in (json.loads(one) for one in lines if one.endswith("\n"))}.values()]


def table() -> str:
    """All that is known of the cells as they are now, in Markdown; not what was measured with other defaults."""
    lines = {(line["name"], line["digest"]): line for line in read()}
    wanted = pairs()
    rows = [row for pair in wanted for form in pair.forms if (row := _row(pair, form, lines))]
    missing = sum((cell.name, cell.digest) not in lines for pair in wanted for cell in pair.cells())
    found = {pair.published["found"] for pair in wanted if pair.published}
    sources = "".join(f"* {where}\n" for where in sorted(found | {pair.source for pair in wanted}))
    return f"{_HEAD}{''.join(rows)}\n{missing} cells are still to be measured. Sources:\n\n{sources}"


def way(values: Iterable[float], random: float, reference: float) -> list[float]:
    """How far each came from a random player (0) to the reference (1)."""
    return [(value - random) / (reference - random) for value in values]


def _row(pair: Pair, form: str, lines: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Of one pair in one form; nothing where no seed was measured."""
    names = [(cell.name, cell.digest) for cell in pair.cells() if cell.form == form]
    known = [lines[name] for name in names if name in lines]
    if not known:
        return ""
    chance = lines[pair.task.random, pair.task.digest]["exploitability" if pair.by == "exploitability" else "return"]
    reference, named = _reference(pair, form, lines)
    gone = way([line[pair.by] for line in known], chance, reference)
    sure = interval(np.array(gone))
    high = float(sure.high) if len(gone) > 1 else gone[0]
    columns = [
        pair.task.name,
        pair.algorithm,
        form,
        f"{known[0]['steps']:,}",
        str(len(known)),
        _each(known, "last"),
        _each(known, "exploitability" if pair.by == "exploitability" else "greedy"),
        shown(chance),
        f"{named} {pair.by}",
        f"{sure.value:.2f}",
        f"{sure.low:.2f} to {sure.high:.2f}" if len(gone) > 1 else "–",
        "yes" if min(gone) >= LEARNS else "no",
        "yes" if high >= REACHES else "no",
        ", ".join(sorted({name for line in known for name in line["findings"]})),
        f"{np.mean([line['seconds'] for line in known]):.0f}",
    ]
    return f"| {' | '.join(columns)} |\n"


def _reference(pair: Pair, form: str, lines: Mapping[tuple[str, str], Mapping[str, Any]]) -> tuple[float, str]:
    """What our form is compared with: the reference in a single file, which had as many steps, where it was run."""
    cells = [(cell.name, cell.digest) for cell in pair.cells() if cell.form == "single-file"]
    beside = [lines[name][pair.by] for name in cells if name in lines]
    if form == "single-file" or not beside:
        return pair.reference, f"[{shown(pair.reference)}]({pair.source})"
    reference = float(np.mean(beside))
    return reference, f"{shown(reference)} in a single file"


def _each(lines: Iterable[Mapping[str, Any]], key: str) -> str:
    return ", ".join(shown(line[key]) for line in lines)
