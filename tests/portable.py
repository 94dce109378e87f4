"""How far the short tests of learning are from their bounds, with any seed and in any arithmetic: `make portable`.

Every test that asks for the fixture `trial` and that `make test` runs learns with five seeds, once in each combination
of arithmetics, and, so that it misses its bound, for a tenth of its steps and not at all. Arithmetics are told apart by
what 1,000 updates make of the same weights. What was measured is kept line by line; the next start goes on behind it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.tools import ROOT
from tests.trial import THREADS, VARIABLE, Result, Settings

__all__ = ["Row", "classes", "covering", "main", "missing", "rows", "table"]

FACTORS: dict[str, tuple[str, ...]] = {
    "ATEN_CPU_CAPABILITY": ("", "default", "avx2", "avx512"),
    "OPENBLAS_CORETYPE": ("", "Prescott", "Nehalem", "SkylakeX"),
    "MKL_ENABLE_INSTRUCTIONS": ("", "SSE4_2", "AVX2"),
    "MKL_CBWR": ("", "COMPATIBLE"),
    "NPY_DISABLE_CPU_FEATURES": ("", "X86_V4", "X86_V3"),
    "threads": ("1", "2"),
}
"""variable -> values, the default first; "": it is not set, and the library chooses for the processor. MKL chooses on
AMD's processors by MKL_CBWR alone."""
SHORT = "not learning and not slow and not cluster"
SEEDS, WANTED = 5, 4.0
"""Seeds in the default arithmetic; standard deviations between what is reached and the bound."""
MOST = 15
"""Combinations of arithmetics."""
SHARES = {1.0: "in full", 0.1: "at a tenth of its steps", 0.0: "untrained"}


@dataclass(frozen=True)
class Row:
    """One run of the tests."""

    name: str
    arithmetic: Mapping[str, str]
    seed: int
    share: float = 1.0

    def environment(self, results: Path) -> dict[str, str]:
        """Of the process that makes it."""
        threads = int(self.arithmetic.get("threads", "1"))
        given = Settings(self.seed, self.share, threads, self.name, str(results))
        return environment(self.arithmetic) | {VARIABLE: json.dumps(asdict(given))}


def environment(arithmetic: Mapping[str, str]) -> dict[str, str]:
    """Of a process that computes so."""
    kept = {name: value for name, value in os.environ.items() if name not in FACTORS}
    given = {name: value for name, value in arithmetic.items() if value and name != "threads"}
    threads = dict.fromkeys(THREADS, arithmetic.get("threads", "1"))
    return kept | given | threads | {"OMP_WAIT_POLICY": "passive"}  # two threads that spin need two idle cores


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


def covering(factors: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Combinations in which each pair of values of two factors occurs; all defaults first, then always what has most
    of the pairs that are still missing."""
    names = list(factors)
    every = [dict(zip(names, values, strict=True)) for values in product(*factors.values())]

    def pairs(one: Mapping[str, str]) -> set[Any]:
        return {*combinations(one.items(), 2)} or {*one.items()}

    left = set().union(*map(pairs, every)) - pairs(every[0])
    chosen = every[:1]
    while left:
        chosen.append(max(every, key=lambda one: len(pairs(one) & left)))
        left -= pairs(chosen[-1])
    return chosen


def rows(factors: Mapping[str, Sequence[str]]) -> list[Row]:
    """All that is to be measured."""
    default, *others = covering(factors)
    assert len(others) < MOST, f"{len(others) + 1} combinations"
    found = [Row(f"seed {seed}", default, seed) for seed in range(SEEDS)]
    found += [Row(f"{SHARES[share]}, seed {seed}", default, seed, share) for share in (0.1, 0.0) for seed in (0, 1)]
    for seed, one in enumerate(others, SEEDS):
        told = " ".join(f"{name}={value}" for name, value in one.items() if value != default[name])
        found.append(Row(told, one, seed))
    return found


def missing(row: Row, tests: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of `tests` those of which nothing is known in this row."""
    known = {line["test"] for line in lines if line.get("row") == row.name and line["results"]}
    return [test for test in tests if test not in known]


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
            elif share < 1 and any(yes and results for yes, results in zip(passes, several, strict=True)):
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


def bits_of(arithmetic: Mapping[str, str]) -> str:
    """The first digits of the hash of what is learned so; "-" and the reason where it cannot be computed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.portable", "--probe"],
        env=environment(arithmetic),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode < 0:
        return f"- not on this processor ({signal.Signals(-ended.returncode).name})"
    if ended.returncode:
        return f"- {ended.stderr.strip().splitlines()[-1]}"
    return ended.stdout.split()[-1]


def measured_bits() -> dict[str, dict[str, str]]:
    """factor -> value -> what is learned with it, and with the defaults of the others."""
    default = bits_of({})
    return {
        factor: {values[0]: default, **{value: bits_of({factor: value}) for value in values[1:]}}
        for factor, values in FACTORS.items()
    }


def probe() -> str:
    """What 1,000 updates in this process make of a policy: of its products, which are numpy's, of what torch
    differentiates, and of what it does next."""
    from launch.configuration import load
    from tests.learning.greedy import make_run

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROOKERY_MEMORY"] = folder
        make_run(load("cartpole", ["policy.algorithm.minibatches=16"], steps=35_000, seed=0), Path(folder, "run"))
        (updates,) = json.loads(Path(folder, "run", "summary.json").read_text())["train_steps"].values()
        assert updates >= 1_000, updates
        saved = Path(folder, "run", "checkpoints").rglob("weights.safetensors")
        newest = max(saved, key=lambda path: int(path.parent.name))
        return hashlib.sha256(newest.read_bytes()).hexdigest()[:12]


def read(results: Path) -> list[dict[str, Any]]:
    """The lines that were written whole."""
    lines = results.read_text().splitlines(keepends=True) if results.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def measure(row: Row, tests: Sequence[str], results: Path) -> None:
    """Runs `tests`, each of which adds its line; what pytest says lies beside them."""
    if tests:
        command = [sys.executable, "-m", "pytest", "-q", "-m", SHORT, "--timeout", "1800", *tests]
        with results.with_suffix(".log").open("a") as log:
            subprocess.run(command, env=row.environment(results), cwd=ROOT, stdout=log, stderr=log, check=False)


def collect() -> list[str]:
    """The tests that have something to reach, of those that `make test` runs."""
    found: list[str] = []

    class Collected:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            found.extend(item.nodeid for item in session.items if "trial" in getattr(item, "fixturenames", ()))

    pytest.main(["--collect-only", "-qq", "-p", "no:terminal", "-m", SHORT, str(ROOT / "tests")], [Collected()])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing and prints all that is known; 1 where something is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.portable", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "portable.jsonl", help="what was measured")
    parser.add_argument("--forget", metavar="TEXT", help="measure tests with TEXT in their names again")
    parser.add_argument("--jobs", type=int, default=2, help="rows that are measured at once")
    parser.add_argument("--table", type=Path, help="a file that gets what is printed")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.probe:
        print(probe())
        return 0
    results: Path = given.results.resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    lines = read(results)
    if given.forget is not None:
        lines = [line for line in lines if given.forget not in line.get("test", "")]
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    bits = next((line["bits"] for line in lines if "bits" in line), None)
    if bits is None:
        bits = measured_bits()
        with results.open("a") as file:
            file.write(json.dumps({"bits": bits}) + "\n")
    wanted, tests = rows(classes(bits)), collect()
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in [pool.submit(measure, row, missing(row, tests, lines), results) for row in wanted]:
            done.result()
    told, wrong = table(wanted, tests, read(results))
    text = "\n\n".join([arithmetics(bits), *(["\n".join(row.name for row in wanted)]), told, *wrong])
    print(text)
    if given.table is not None:
        given.table.write_text(text + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
