# ruff: noqa: T201
"""How many small spoilings of the product's code the tests notice: a sample of mutants, drawn from a seed.

Each mutant is one changed operator, number, condition or statement. The unit tests that run its line, quickest first,
and then some quick flows get a minute to fail; what does not fail in it has not noticed. Results are kept line by line,
and the next start goes on behind them. With the results of an earlier run the same mutants are tried in today's code.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from tests.portable import read
from tests.tools import ROOT, SHORT

__all__ = ["Mutant", "found_again", "main", "mutants_of", "sample", "table"]

GROUPS = {
    "protocol": ("protocol",),
    "learning and algorithms": ("workers/learning", "workers/algorithms"),
    "rollout": ("workers/rollout",),
}
LEFT_OUT = ("protocol/clients/", "protocol/errors/sentences.py")
UNIT = ("tests/protocol", "tests/workers", "tests/launch")
FLOWS = ("tests/flows/test_training.py", "tests/flows/test_sequential.py", "tests/flows/test_replay.py")
LIMIT = 60.0
"""Seconds that all tests of one mutant get together."""
MOST = 200
"""Tests of one mutant."""
PUBLISHED = "ROOKERY_MUTANTS"
"""The variable that names the file to which this module, as pytest's plugin, adds a line a test."""

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"),
}


@dataclass(frozen=True)
class Mutant:
    """`old` at a line and a column in bytes becomes `new`; `lines` are those of its statement, `text` the first."""

    file: str
    line: int
    column: int
    operator: str
    old: str
    new: str
    text: str
    lines: tuple[int, int]

    @property
    def key(self) -> tuple[str, int, int, str, str, str]:
        return (self.file, self.line, self.column, self.operator, self.old, self.new)

    def applied(self, source: bytes) -> bytes:
        """The source with this mutant in it, of as many lines."""
        start = sum(map(len, source.splitlines(keepends=True)[: self.line - 1])) + self.column
        old = self.old.encode()
        assert source[start : start + len(old)] == old, self
        return source[:start] + self.new.encode() + source[start + len(old) :]


class _Finder:
    """Walks a module, but not what is only for readers and type checkers."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.found = file, source, list[Mutant]()
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.extent = (1, 1)
        self.visit(ast.parse(source))

    def begin(self, node: Any) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: Any) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def add(self, operator: str, start: int, end: int, new: str) -> None:
        line = next(number for number, at in enumerate(self.starts) if at > start)
        old = self.source[start:end].decode()
        new += "\n" * (old.count("\n") - new.count("\n"))
        text = self.lines[line - 1].decode().strip()
        mutant = Mutant(self.file, line, start - self.starts[line - 1], operator, old, new, text, self.extent)
        try:
            compile(mutant.applied(self.source), self.file, "exec", dont_inherit=True)
        except SyntaxError:
            return
        self.found.append(mutant)

    def between(self, operator: str, left: ast.AST, right: ast.AST, pattern: str, new: str) -> None:
        """The operator that stands between two operands, with brackets and comments around it perhaps."""
        start = self.end(left)
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start : self.begin(right)])
        word = rf"\b{pattern}\b" if pattern[0].isalpha() else pattern
        if at := re.search(word.encode(), gap):
            self.add(operator, start + at.start(), start + at.end(), new)

    def visit(self, node: ast.AST) -> None:
        before = self.extent
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            last = (getattr(body[0], "lineno", None) or body[0].pattern.lineno) - 1 if body else node.end_lineno
            self.extent = (node.lineno, max(node.lineno, last or 0))
        self.mutate(node)
        for child in self.children(node):
            self.visit(child)
        self.extent = before

    def children(self, node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.JoinedStr):
            return  # Python 3.11 gives wrong places in it
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            alias = isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)
            typed = before_brackets(node.value) in ("Annotated", "Callable", "Literal", "Mapping", "Sequence", "Union")
            if alias or typed or any(isinstance(one, ast.Name) and one.id == "__all__" for one in targets):
                return
        for name, value in ast.iter_fields(node):
            hint = name in ("annotation", "returns", "decorator_list", "bases", "type_params")
            if hint or (name == "body" and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
                continue
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST))

    def mutate(self, node: ast.AST) -> None:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, right, one in zip(operands, operands[1:], node.ops, strict=False):
                    self.between("compare", left, right, *COMPARED[type(one)])
            case ast.BinOp(op=operator) if type(operator) in COMPUTED:
                self.between("compute", node.left, node.right, *COMPUTED[type(operator)])
            case ast.AugAssign(op=operator) if type(operator) in COMPUTED:
                pattern, new = COMPUTED[type(operator)]
                self.between("compute", node.target, node.value, pattern, new)
                self.add("delete", self.begin(node), self.end(node), "pass")
            case ast.BoolOp():
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    self.between("and/or", left, right, old, new)
            case ast.UnaryOp(op=ast.Not()):
                self.add("not", self.begin(node), self.begin(node) + 3, "   ")
            case ast.Constant(value=bool()):
                self.add("constant", self.begin(node), self.end(node), str(not node.value))
            case ast.Constant(value=int() | float()):
                self.add("constant", self.begin(node), self.end(node), repr(node.value + 1))  # type: ignore[operator]
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                self.add("return", self.begin(node), self.end(node), "return None")
            case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute()]):
                self.add("delete", self.begin(node), self.end(node), "pass")
            case ast.If() if "TYPE_CHECKING" not in (condition := ast.unparse(node.test)) and condition:
                start, end = self.begin(node.test), self.end(node.test)
                self.add("condition", start, end, f"not ({self.source[start:end].decode()})")
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        start, end = self.begin(bound), self.end(bound)
                        self.add("bound", start, end, f"({self.source[start:end].decode()}) + 1")
            case ast.Continue():
                self.add("loop", self.begin(node), self.end(node), "break")
            case ast.Break():
                self.add("loop", self.begin(node), self.end(node), "continue")


def before_brackets(value: ast.expr | None) -> str:
    """The name of a generic type; "" of anything else."""
    return ast.unparse(value.value).rpartition(".")[2] if isinstance(value, ast.Subscript) else ""


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All that can be made of a file."""
    return _Finder(file, source).found


def group_of(file: str) -> str:
    return next(name for name, folders in GROUPS.items() if file.startswith(tuple(f"{one}/" for one in folders)))


def all_mutants(root: Path) -> list[Mutant]:
    """Of every file of the groups."""
    folders = [root / one for several in GROUPS.values() for one in several]
    files = sorted(path.relative_to(root).as_posix() for folder in folders for path in folder.rglob("*.py"))
    kept = [file for file in files if not file.startswith(LEFT_OUT)]
    return [mutant for file in kept for mutant in mutants_of(file, (root / file).read_bytes())]


def sample(every: Sequence[Mutant], seed: int, of_each: int) -> list[Mutant]:
    """As many of each group, in turn, so that what was tried so far is a sample too."""
    chosen = random.Random(seed)
    groups = [[one for one in every if group_of(one.file) == name] for name in GROUPS]
    drawn = [chosen.sample(group, min(of_each, len(group))) for group in groups]
    return [one for several in zip_longest(*drawn) for one in several if one is not None]


def found_again(line: Mapping[str, Any], every: Iterable[Mutant]) -> Mutant | None:
    """The mutant of an earlier run in today's code: the same change of the same line of text, the nearest such line."""
    same = ("file", "column", "operator", "old", "new", "text")
    those = [one for one in every if all(getattr(one, name) == line[name] for name in same)]
    return min(those, key=lambda one: abs(one.line - line["line"]), default=None)


# As pytest's plugin, -p tests.mutants


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What runs for a test, its fixtures too, is recorded as its own."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None:
        current.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if current is not None:
            current.switch_context("")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    publish(memory=os.environ.get("ROOKERY_MEMORY"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    publish(test=report.nodeid, outcome=report.outcome, seconds=report.duration)


def publish(**line: Any) -> None:
    with Path(os.environ[PUBLISHED]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def run_tests(tree: Path, tests: Sequence[str], told: Path, limit: float | None, *how: str) -> tuple[int | None, str]:
    """Runs `tests` in a tree whose own modules they and all their children import; None: the time was over. `told` gets
    the plugin's lines. Nothing that was started lives on, and neither its shared memory nor its files."""
    scratch = Path(tempfile.mkdtemp(prefix="mt"))
    environment = {name: value for name, value in os.environ.items() if name != "ROOKERY_CI"}
    environment |= {"PYTHONPATH": str(tree), "TMPDIR": str(scratch), PUBLISHED: str(told)}
    command = [sys.executable, *(how or ("-m", "pytest", "-x")), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", "tests.mutants", "-m", SHORT, "--seconds", str(limit or 1e6), *tests]  # in this order
    with (scratch / "said").open("w+b") as said:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for one in psutil.process_iter():
                with suppress(psutil.Error):
                    if one.environ().get("TMPDIR") == str(scratch):
                        one.kill()
            process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    for line in read(told):
        if line.get("memory"):
            shutil.rmtree(line["memory"], ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return code, text


def measure(data: Path) -> None:
    """Writes which unit test runs which line, and beside it how long each takes; none that fails is among them."""
    files = sorted(path for folder in UNIT for path in (ROOT / folder).rglob("test_*.py"))
    halves = [[str(path.relative_to(ROOT)) for path in files[start::2]] for start in (0, 1)]
    with tempfile.TemporaryDirectory(prefix="mc") as folder:
        told = [Path(folder, f"told{half}") for half in (0, 1)]
        settings = Path(folder, "rc")
        settings.write_text("[run]\nrelative_files = true\nsource =\n    protocol\n    workers\n")

        def run(half: int) -> tuple[int | None, str]:
            how = ["-m", "coverage", "run", f"--rcfile={settings}", f"--data-file={folder}/data.{half}", "-m", "pytest"]
            return run_tests(ROOT, halves[half], told[half], None, *how)

        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(run, (0, 1)))
        if any(code not in (0, 1) for code, _ in ended):
            sys.exit(f"the unit tests could not be measured: {[text[-2000:] for _, text in ended]}")
        lines = [line for path in told for line in read(path) if "test" in line]
        failed = {line["test"] for line in lines if line["outcome"] == "failed"}
        seconds: dict[str, float] = {}
        for line in lines:
            seconds[line["test"]] = seconds.get(line["test"], 0.0) + line["seconds"]
        if failed:
            print(f"left out, as they fail under coverage: {', '.join(sorted(failed))}")
        data.parent.mkdir(parents=True, exist_ok=True)
        kept = {test: took for test, took in seconds.items() if test not in failed}
        Path(f"{data}.seconds").write_text(json.dumps(kept))
        command = ["combine", f"--rcfile={settings}", f"--data-file={data}", f"{folder}/data.0", f"{folder}/data.1"]
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


class Covering:
    """Which tests run a mutant's statement; of one that runs only at import, those that run anything of its file."""

    def __init__(self, data: Path) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(data))
        self.data.read()
        self.seconds: dict[str, float] = json.loads(Path(f"{data}.seconds").read_text())

    def tests(self, mutant: Mutant) -> list[str]:
        lines = self.data.contexts_by_lineno(mutant.file)
        here = [set(lines.get(line, ())) for line in range(mutant.lines[0], mutant.lines[1] + 1)]
        found = set().union(*here) - {""}
        if not found and any(here):
            found = set().union(*lines.values()) - {""}
        return sorted(found & self.seconds.keys(), key=lambda test: self.seconds[test])[:MOST]


def attempt(tree: Path, mutant: Mutant, tests: Sequence[str]) -> dict[str, Any]:
    """Who notices it, in a private copy that is put right again. A test that fails without it too is not counted."""
    path, told, began = tree / mutant.file, Path(f"{tree}.told"), time.monotonic()
    source, times = path.read_bytes(), path.stat()
    path.write_bytes(mutant.applied(source))
    os.utime(path, (0, random.randrange(1, 10**9)))  # its compiled module is never taken for the original's
    told.unlink(missing_ok=True)
    try:
        code, text = run_tests(tree, tests, told, LIMIT)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    by = next((line["test"] for line in read(told) if line.get("outcome") == "failed"), "")
    if by and run_tests(tree, [by], told, LIMIT)[0] != 0:
        return attempt(tree, mutant, [test for test in tests if test != by and test != by.partition("::")[0]])
    if code in (2, 4) and run_tests(tree, tests, told, None, "-m", "pytest", "--collect-only")[0] != 0:
        sys.exit(f"Tests cannot be collected although nothing is changed: {text[-2000:]}")
    if code not in (0, None) and not by:
        by = "import" if code in (2, 4) else f"exit {code}: {text.strip().splitlines()[-1:]}"
    killed = code not in (0, 5, None)
    return {"killed": killed, "by": by if killed else "", "over": code is None, "seconds": time.monotonic() - began}


def copy_of_tree(folder: Path) -> Path:
    """A private copy, from which Python really imports."""
    left = shutil.ignore_patterns(".venv", "build", ".git", "__pycache__", "*.egg-info", ".*_cache", "node_modules")
    tree = Path(shutil.copytree(ROOT, folder, ignore=left))
    asked = (
        "import launch, protocol, tests, workers as w; print(*(m.__path__[0] for m in (launch, protocol, tests, w)))"
    )
    said = subprocess.check_output(
        [sys.executable, "-c", asked], cwd="/", env=os.environ | {"PYTHONPATH": str(tree)}, text=True
    )
    if any(Path(place).parent != tree for place in said.split()):
        sys.exit(f"a copy's modules come from elsewhere: {said}")
    return tree


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What was noticed of what was tried, by group, and what was not."""
    tried = [line for line in lines if not line.get("gone")]
    told = ["| group | noticed | tried | share |", "|---|---:|---:|---:|"]
    for name in (*GROUPS, "all"):
        those = [line["killed"] for line in tried if name in ("all", group_of(line["file"]))]
        told.append(f"| {name} | {sum(those)} | {len(those)} | {sum(those) / max(len(those), 1):.0%} |")
    told += [f"\nGone since: {len(lines) - len(tried)}\n\nNot noticed:"]
    for line in sorted((one for one in tried if not one["killed"]), key=lambda one: (one["file"], one["line"])):
        late = " (time over)" if line["over"] else "" if line["covered"] else " (no unit test runs it)"
        told.append(f"{line['file']}:{line['line']} {line['operator']}: {line['old']!r} -> {line['new']!r}{late}")
    return "\n".join(told)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries what was not tried yet and prints all that is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of-each", type=int, default=100, help="mutants of each group")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl", help="what was tried")
    parser.add_argument("--earlier", type=Path, help="results of an earlier run, whose mutants are tried again")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "mutants.coverage", help="which test runs what")
    parser.add_argument("--processes", type=int, default=2, help="mutants that are tried at once")
    given = parser.parse_args(arguments)
    results, data = given.results.resolve(), given.data.resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    if not Path(f"{data}.seconds").exists() or not data.exists():
        measure(data)
    covering, every = Covering(data), all_mutants(ROOT)
    known, wanted = {tuple(line["id"]) for line in read(results)}, list[tuple[Any, Mutant | None, str]]()
    if given.earlier:
        lines = [line for line in read(given.earlier) if not line.get("gone")]
        wanted = [(line["id"], found_again(line, every), line["by"]) for line in lines]
    else:
        wanted = [(list(one.key), one, "") for one in sample(every, given.seed, given.of_each)]
    with tempfile.TemporaryDirectory(prefix="mu") as folder, ThreadPoolExecutor(given.processes) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.processes):
            trees.put(copy_of_tree(Path(folder, str(number))))
        some = dict.fromkeys(test for _, one, _ in wanted[:9] if one for test in covering.tests(one)[:3])
        tree = trees.get()
        code, said = run_tests(tree, list(some), Path(folder, "unchanged"), None)
        if code != 0:
            sys.exit(f"Tests fail in a copy in which nothing is changed: {said[-2000:]}")
        trees.put(tree)

        def run(key: Any, one: Mutant | None, first: str) -> None:
            line: dict[str, Any] = {"id": key, "gone": one is None}
            if one is not None:
                tests = covering.tests(one)
                tree = trees.get()
                leading = [it for it in (first, first.partition("::")[0]) if it in covering.seconds or it in FLOWS]
                ordered = dict.fromkeys([*leading, *tests, *FLOWS])
                line |= asdict(one) | attempt(tree, one, list(ordered)) | {"covered": bool(tests)}
                trees.put(tree)
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")

        for done in [pool.submit(run, *one) for one in wanted if tuple(one[0]) not in known]:
            done.result()
    ids = {tuple(key) for key, _, _ in wanted}
    print(table([line for line in read(results) if tuple(line["id"]) in ids]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
