"""The site of the documents: that it is built without a warning, and how its pages read."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.docs.site.flowchart import drawn
from tests.prose import FOLDER, guides, pages, sentences, words, words_of_ours
from tests.tools import ROOT, skip_or_fail

LONGEST = 40
"""Words of a sentence."""
MEAN = (8, 20)
PAGE = 1_200
"""Words of a guide; all pages together have at most:"""
TOTAL = 45_000


def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    """Links, anchors and the places of all pages are Sphinx's to judge."""
    if not all(importlib.util.find_spec(name) for name in ("sphinx", "furo", "myst_parser")):
        skip_or_fail("Sphinx is not installed")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(FOLDER),
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    made = {path.relative_to(tmp_path / "site").with_suffix(".md") for path in (tmp_path / "site").rglob("*.html")}
    assert {path.relative_to(FOLDER) for path in FOLDER.rglob("*.md")} <= made
    assert (tmp_path / "site" / "searchindex.js").stat().st_size > 0
    foreign = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//")
    assert [path for path in (tmp_path / "site").rglob("*.html") if foreign.search(path.read_text("utf-8"))] == []


def test_a_flowchart_is_drawn_row_by_row_with_all_its_arrows() -> None:
    picture = drawn('flowchart LR\n  n0["a<br/>4 < 5"] --> n1["b"]\n  n0 & n1 --> n2["c"]')
    assert re.findall(r">([^<>]+)</text>", picture) == ["a", "4 &lt; 5", "b", "c"]
    assert picture.count("<path") == 3
    heights = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', picture)]
    assert heights == sorted({*heights})


def test_sentences_of_the_pages_are_short() -> None:
    long = [
        f"{path.relative_to(FOLDER)}, {words(one)} words: {one}"
        for path in pages()
        for one in sentences(path.read_text(encoding="utf-8"))
        if words(one) > LONGEST
    ]
    assert long == []
    running = [
        words(one)
        for path in guides()
        for one in sentences(path.read_text(encoding="utf-8"))
        if words(one) >= 5  # not the cells of tables
    ]
    assert MEAN[0] <= sum(running) / len(running) <= MEAN[1]


def test_pages_are_short_and_all_of_them_a_book_that_can_be_read() -> None:
    sizes = {
        path.relative_to(FOLDER).as_posix(): sum(map(words, sentences(path.read_text(encoding="utf-8"))))
        for path in pages()
    }
    assert {name: size for name, size in sizes.items() if size > PAGE and FOLDER / name in guides()} == {}
    assert sum(sizes.values()) <= TOTAL


def test_pages_say_the_fields_words() -> None:
    found = {path.relative_to(FOLDER).as_posix(): words_of_ours(path.read_text("utf-8")) for path in pages()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("# A heading\n\nOne two three. Four `five six`\nseven.", [3, 3]),
        ("```bash\nrookery train\n```\nOne two.", [2]),
        ("| a b | c |\n|---|---|\n| one two three | 0.5 |", [2, 1, 3]),
        ("* one two\n* [three four](five.md) six", [2, 3]),
        ("<!-- no-test: a reason -->\nOne.", [1]),
    ],
)
def test_sentences_are_found(text: str, counts: list[int]) -> None:
    assert [words(one) for one in sentences(text)] == counts
