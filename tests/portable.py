"""How far the short tests of learning are from their bounds, with any seed and in any arithmetic: `make portable`.

Every test that asks for the fixture `trial` learns with five seeds, once in each combination
of arithmetics, and, so that it misses its bound, for a tenth of its steps and not at all. Arithmetics are told apart by
what 1,000 updates make of the same weights. What was measured is kept line by line; the next start goes on behind it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.margins import SHARES, Row, arithmetics, classes, report, table
from tests.tools import ROOT
from tests.trial import THREADS, VARIABLE, Settings

__all__ = ["covering", "environment", "environment_of", "main", "missing", "read", "rows"]

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
SEEDS = 5
"""In the default arithmetic."""
MOST = 15
"""Combinations of arithmetics."""


def environment(arithmetic: Mapping[str, str]) -> dict[str, str]:
    """Of a process that computes so."""
    kept = {name: value for name, value in os.environ.items() if name not in FACTORS}
    given = {name: value for name, value in arithmetic.items() if value and name != "threads"}
    threads = dict.fromkeys(THREADS, arithmetic.get("threads", "1"))
    return kept | given | threads | {"OMP_WAIT_POLICY": "passive"}  # two threads that spin need two idle cores


def environment_of(row: Row, results: Path) -> dict[str, str]:
    """Of the process that measures it."""
    threads = int(row.arithmetic.get("threads", "1"))
    given = Settings(row.seed, row.share, threads, row.name, str(results))
    return environment(row.arithmetic) | {VARIABLE: json.dumps(asdict(given))}


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
    from launch.config_loader import load
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
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1800", *tests]
        with results.with_suffix(".log").open("a") as log:
            subprocess.run(command, env=environment_of(row, results), cwd=ROOT, stdout=log, stderr=log, check=False)


def collect() -> list[str]:
    """The tests that have something to reach."""
    found: list[str] = []

    class Collected:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            found.extend(item.nodeid for item in session.items if "trial" in getattr(item, "fixturenames", ()))

    with redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "-qq", str(ROOT / "tests")], [Collected()])
    if code != pytest.ExitCode.OK or not found:
        sys.exit(f"no tests to measure: {said.getvalue()}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing and prints all that is known; 1 where something is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.portable", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "portable.jsonl", help="what was measured")
    parser.add_argument("--forget", metavar="TEXT", help="measure tests with TEXT in their names again")
    parser.add_argument("--jobs", type=int, default=2, help="rows that are measured at once")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is known")
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
    if bits is None and not given.show:
        bits = measured_bits()
        with results.open("a") as file:
            file.write(json.dumps({"bits": bits}) + "\n")
    wanted, tests = rows(classes(bits or {})), collect()
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in [
            pool.submit(measure, row, missing(row, tests, lines), results) for row in wanted if not given.show
        ]:
            done.result()
    told, wrong = table(wanted, tests, read(results))
    text = report(arithmetics(bits or {}), wanted, told, wrong)
    print(text)
    if given.table is not None:
        given.table.write_text(text + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
