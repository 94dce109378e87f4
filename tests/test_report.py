"""A run closes with what a reader needs next: a few lines for each failure; when green the slowest; skips by reason."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import report
from tests.tools import ROOT

pytest_plugins = "pytester"

Run = Callable[..., pytest.RunResult]
FAILING = '''
import pytest

@pytest.mark.parametrize("text", ["a b$c'd"])
def test_sum(tmp_path, text):
    """Two terms give
    their sum.

    And more."""
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "actor-0.log").write_text("acted")
    print("captured")
    assert {"sum": 2} == {
        "sum": 3,
    }
'''
BROKEN_FIXTURES = """
import pytest

@pytest.fixture
def broker(tmp_path):
    (tmp_path / "broker.out").write_text("refused")
    raise RuntimeError("no broker")

@pytest.fixture
def untidy(tmp_path):
    yield
    raise RuntimeError("left behind")

def test_begins(broker): ...

def test_ends(untidy): ...
"""
HANGING = """
import time
import pytest

@pytest.mark.timeout(0.5, method="signal")
def test_hangs(tmp_path):
    time.sleep(60)
"""
CRASHING = """
import os

def test_dies(tmp_path):
    (tmp_path / "learner.out").write_text("last words")
    os._exit(3)
"""
UNLISTED = """
import pytest

def test_called():
    pytest.skip("just because")

@pytest.mark.skip
def test_marked(): ...

def test_listed():
    pytest.skip("needs root: to mount")
"""
MODULE = 'import pytest\npytest.skip("minari is not installed", allow_module_level=True)\n'
GREEN = """
import time, pytest

@pytest.mark.parametrize("number", range(12))
def test_green(number):
    time.sleep(0.1 if number == 7 else 0)

@pytest.mark.parametrize("why", ["needs root", "needs root: to mount", "no later Python"])
def test_skipped(why):
    pytest.skip(why)

@pytest.mark.skipif(True, reason="g++ is not installed")
def test_marked(): ...
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs files of these texts under the plugin, in this process unless others are asked for."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("ROOKERY_CI", raising=False)
    pytester.makeconftest('pytest_plugins = ["tests.report"]')

    def run(*options: str, **files: str) -> pytest.RunResult:
        if files:
            pytester.makepyfile(**files)
        mode = pytester.runpytest_subprocess if "-n" in options else pytester.runpytest_inprocess
        return mode("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-rN", *options)

    return run


def section(result: pytest.RunResult, title: str) -> list[str]:
    """Its lines."""
    titles = [line.strip("= ") if line.startswith("==") else "" for line in result.outlines]
    start = titles.index(title) + 1
    return result.outlines[start : next(number for number in range(start, len(titles)) if titles[number])]


def failures(result: pytest.RunResult) -> dict[str, list[str]]:
    """Head -> lines of each failure that is told in full."""
    told: dict[str, list[str]] = {}
    for line in section(result, "failures"):
        if not line.startswith(" "):
            told[line] = []
        told[list(told)[-1]].append(line)
    assert max(map(len, told.values())) <= 20
    return told


def under(label: str, lines: list[str]) -> list[str]:
    """What stands beside a label."""
    labels = [line[2:9].strip() for line in lines[1:]]
    names = [max(filter(None, labels[: number + 1]), key=labels[: number + 1].index) for number in range(len(labels))]
    return [line[10:] for name, line in zip(names, lines[1:], strict=True) if name == label]


def test_a_failure_says_what_was_asked_and_came_how_to_run_it_alone_and_where_its_files_are(run: Run) -> None:
    result = run(test_failing=FAILING)
    [(head, lines)] = failures(result).items()
    assert head == "test_failing.py::test_sum[a b$c'd]  (call)"
    assert under("asked", lines) == [
        "Two terms give their sum.",
        'test_failing.py:13: assert {"sum": 2} == { "sum": 3, }',
    ]
    assert under("came", lines)[0] == "AssertionError: assert {'sum': 2} == {'sum': 3}"
    [folder] = map(Path, under("folder", lines))
    assert (folder / "run" / "logs" / "actor-0.log").read_text() == "acted"
    assert under("logs", lines) == ["run/logs/actor-0.log"]
    traceback = '>       assert {"sum": 2} == {'
    assert traceback not in result.outlines
    everything = Path(*under("more", lines)).read_text().splitlines()
    assert {traceback, "captured"} <= {*everything}
    [command] = under("alone", lines)
    again = subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout.splitlines()
    assert traceback in again
    assert "1 failed" in again[-1]
    assert "passed" not in again[-1]


def test_a_fixture_that_fails_before_or_after_its_test_has_the_same_lines(run: Run) -> None:
    told = failures(run(test_fixtures=BROKEN_FIXTURES))
    assert list(told) == ["test_fixtures.py::test_begins  (setup)", "test_fixtures.py::test_ends  (teardown)"]
    before, after = told.values()
    assert under("asked", before) == ['test_fixtures.py:6: raise RuntimeError("no broker")']
    assert under("came", before) == ["RuntimeError: no broker"]
    assert (Path(*under("folder", before)) / "broker.out").read_text() == "refused"
    assert under("came", after) == ["RuntimeError: left behind"]
    assert Path(*under("folder", after)).is_dir()


def test_processes_side_by_side_name_their_folders_also_where_one_hung(run: Run) -> None:
    files = {"test_failing": FAILING, "test_hanging": HANGING, "test_unlisted": UNLISTED, "test_module": MODULE}
    result = run("-n", "2", "--dist", "loadfile", **files)
    result.assert_outcomes(failed=3, errors=1, skipped=2)
    told = {head.partition("  ")[0].partition("::")[2]: (head, lines) for head, lines in failures(result).items()}
    assert {*told} == {"test_sum[a b$c'd]", "test_hangs", "test_called", "test_marked"}
    for name, inside in (("test_sum[a b$c'd]", "run/logs"), ("test_hangs", ".")):
        head, lines = told[name]
        [folder] = map(Path, under("folder", lines))
        assert folder.parent.name == f"popen-{head.rpartition(', ')[2].removesuffix(')')}"
        assert (folder / inside).exists()
    hung = told["test_hangs"][1]
    assert under("asked", hung) == ["test_hanging.py:6: time.sleep(60)"]
    assert under("came", hung) == ["Failed: Timeout (>0.5s) from pytest-timeout."]
    assert [line.partition(": ")[0].split(maxsplit=1) for line in section(result, "skips by reason")] == [
        ["1", "minari is not installed"],
        ["1", "needs root"],
    ]


def test_a_test_with_which_its_process_died_names_its_folder_too(run: Run) -> None:
    result = run("-n", "1", "--dist", "loadfile", "--max-worker-restart", "0", test_crashing=CRASHING)
    result.assert_outcomes(failed=1)
    lines = failures(result)["test_crashing.py::test_dies  (crash, gw0)"]
    assert under("came", lines) == ["worker 'gw0' crashed while running 'test_crashing.py::test_dies'"]
    [folder] = map(Path, under("folder", lines))
    assert (folder / "learner.out").read_text() == "last words"
    assert under("logs", lines) == ["learner.out"]


def test_a_skip_for_a_reason_that_is_not_in_the_list_fails_the_run(run: Run) -> None:
    result = run(test_unlisted=UNLISTED, test_module=MODULE.replace("minari", "maxari"))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "'maxari is not installed' is no reason" in failures(result)["test_module.py  (collect)"][1]
    result = run("--ignore=test_module.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, errors=1, skipped=1)
    called, marked = (
        failures(result)[f"test_unlisted.py::{name}"] for name in ("test_called  (call)", "test_marked  (setup)")
    )
    assert under("came", called)[0].startswith("'just because' is no reason to skip")
    assert under("came", marked)[0].startswith("'unconditional skip' is no reason to skip")


def test_with_rookery_ci_a_skip_for_what_ci_installs_fails_however_it_was_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOKERY_CI", "1")
    result = run(test_green=GREEN)
    result.assert_outcomes(passed=12, failed=2, errors=1, skipped=1)
    for lines in failures(result).values():
        assert "(a skip is a failure with ROOKERY_CI=1)" in under("came", lines)[0]
        assert under("alone", lines)[0].startswith("ROOKERY_CI=1 ")


def test_a_green_run_closes_with_the_ten_slowest_and_the_skips_by_reason(run: Run) -> None:
    result = run(test_green=GREEN, test_module=MODULE)
    assert result.ret == pytest.ExitCode.OK
    slowest = section(result, "10 slowest tests (seconds)")
    assert len(slowest) == 10
    assert float(slowest[0].split()[0]) >= 0.1
    assert slowest[0].endswith("test_green.py::test_green[7]")
    skips = [line.partition(": ")[0].split(maxsplit=1) for line in section(result, "skips by reason")]
    assert skips[0] == ["2", "needs root"]
    others = ("g++ is not installed", "minari is not installed", "no later Python")
    assert sorted(skips[1:]) == [["1", reason] for reason in others]
    assert result.outlines[-1].strip("= ").startswith("12 passed, 5 skipped in ")


def test_a_long_message_is_shown_at_both_ends_and_of_many_failures_the_first_are_told_in_full(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "WHOLE", 2)
    result = run(
        test_long="""
            import pytest

            @pytest.mark.parametrize("number", range(4))
            def test_long(number):
                assert number is None, "\\n".join(f"line {i} {'x' * 500}" for i in range(50))
        """
    )
    told = failures(result)
    assert len(told) == 2
    for number, lines in enumerate(told.values()):
        came = under("came", lines)
        assert [line.split()[-2] for line in came[:4]] == ["0", "1", "2", "3"]
        assert came[4] == "… 43 more lines …"
        assert came[-1] == f"assert {number} is None"
        assert max(map(len, came)) <= 160
    heads = ["test_long.py::test_long[2]  (call)", "test_long.py::test_long[3]  (call)"]
    assert section(result, "more failures") == heads
    assert result.outlines[-2] == heads[-1]
