"""The site of the documents: that it is built without a warning, and how its pages read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launch.docs.site.flowchart import drawn
from tests import prose
from tests.prose import FOLDER, pages, sentences, words, words_of_ours
from tests.tools import build_site


def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    """Links, anchors and the places of all pages are Sphinx's to judge."""
    build_site(tmp_path / "site")
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


def test_sentences_and_pages_are_short_and_all_of_them_a_book_that_can_be_read() -> None:
    assert prose.judged()[1] == []


def test_what_is_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "FOLDER", tmp_path)
    (tmp_path / "long.md").write_text("One two three four five six seven eight nine ten. " * 120 + "Word " * 41)
    assert prose.judged()[1] == ["long.md: a sentence of 41 words", "long.md: 1241 words"]


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
