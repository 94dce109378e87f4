"""What `python -m tests.portable` makes of what it measured: which arithmetics differ, and how far bounds are."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.trial import Result

__all__ = ["SHARES", "Row", "arithmetics", "classes", "report", "table"]

SHARES = {1.0: "in full", 0.1: "at a tenth of its steps", 0.0: "untrained"}
WANTED = 4.0
"""Standard deviations between what is reached and the bound."""


@dataclass(frozen=True)
class Row:
    """One run of the tests."""

    name: str
    arithmetic: Mapping[str, str]
    seed: int
    share: float = 1.0


def classes(hashes: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """factor -> the first value of each kind of bits, of those that run; a factor that changes no bit is not there."""
    kept = {}
    for factor, found in hashes.items():
        first: dict[str, str] = {}
        for value, bits in found.items():
            if not bits.startswith("-"):
                first.setdefault(bits, value)
        if len(first) > 1:
            kept[factor] = list(first.values())
    return kept


def table(wanted: Sequence[Row], tests: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """In Markdown, and a sentence for all that is not what it should be."""
    known = {(line["test"], line["row"]): [Result(**one) for one in line["results"]] for line in lines if "row" in line}
    told = ["| test | runs | mean | sd | worst | bound | margin (sd) | a tenth | untrained |", "|---" * 9 + "|"]
    wrong: list[str] = []
    for test in tests:
        name = test.rpartition("::")[2]
        found = {share: [known.get((test, row.name), []) for row in wanted if row.share == share] for share in SHARES}
        if unknown := sum(not results for several in found.values() for results in several):
            wrong.append(f"{name}: nothing was measured in {unknown} rows")
        for share, several in found.items():
            passes = [all(one.margin >= 0 for one in results if share == 1 or not one.control) for results in several]
            if share == 1 and not all(passes):
                wrong.append(f"{name}: misses its bound in {passes.count(False)} rows")
            elif share < 1 and any(
                yes and not all(one.control for one in results) for yes, results in zip(passes, several, strict=True)
            ):
                wrong.append(f"{name}: passes {SHARES[share]}")
        for what in dict.fromkeys(one.what for results in found[1.0] for one in results):
            of = {share: [one for each in found[share] for one in each if one.what == what] for share in SHARES}
            line, margin = told_of(of)
            told.append(f"| {name}{what and f' ({what})'} | {line} |")
            if margin < WANTED:
                wrong.append(f"{name}: {what or 'what is learned'} is {margin:.1f} sd from its bound")
    return "\n".join(told), wrong


def told_of(results: Mapping[float, Sequence[Result]]) -> tuple[str, float]:
    """What a line says of one value, and how many standard deviations lie between its mean and its bound."""
    last, values = results[1.0][-1], [one.value for one in results[1.0]]
    best, worst, sign = (max, min, "≥") if last.above else (min, max, "≤")
    mean, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan
    distance = (mean - last.bound) * (1 if last.above else -1)
    margin = distance / deviation if deviation else math.copysign(math.inf, distance)
    less = [[one.value for one in results[share] if not one.control] for share in (0.1, 0.0)]
    shown = [f"{best(found):.4g}" if found else "–" for found in less]
    numbers = f"{len(values)} | {mean:.4g} | {deviation:.2g} | {worst(values):.4g} | {sign} {last.bound:.4g}"
    return f"{numbers} | {'none differs' if math.isinf(margin) else f'{margin:.1f}'} | {' | '.join(shown)}", margin


def arithmetics(bits: Mapping[str, Mapping[str, str]]) -> str:
    """In Markdown: what 1,000 updates came to with each value of each factor, and what follows."""
    told = ["| factor | value | weights | so it is |", "|---|---|---|---|"]
    for factor, found in bits.items():
        kept = classes(bits).get(factor, [])
        for value, one in found.items():
            follows = "measured" if value in kept else "left out: the same bits as another value"
            if one.startswith("-"):
                follows = "left out: " + one[2:]
            elif not kept:
                follows = "left out: the factor changes no bit"
            told.append(f"| {factor} | {value or 'as it comes'} | {'' if one.startswith('-') else one} | {follows} |")
    return "\n".join(told)


def report(arithmetics: str, wanted: Sequence[Row], told: str, wrong: Sequence[str]) -> str:
    """All of it, with where it was measured."""
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(": ")[2] for line in known.splitlines() if line.startswith("model name")), "unknown")
    widest = next((name for name in ("avx512f", "avx2", "avx") if name in known.split()), platform.machine())
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    return "\n\n".join(
        [
            "Measured by `make portable`; tests/README.md explains it.",
            f"Processor: {model} ({widest}); {libraries}.",
            arithmetics,
            "Rows:\n\n" + "\n".join(f"* {row.name}" for row in wanted),
            told,
            "To mend or to measure:\n\n" + "\n".join(f"* {one}" for one in wrong) if wrong else "Nothing is to mend.",
        ]
    )
