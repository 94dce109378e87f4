"""How the pages of the site read: `python -m tests.prose` prints each page's words, mean and longest sentence.

In flow: launch/docs. Out flow: sentences and counts; tests/launch/test_site.py says what they may be.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.tools import ROOT

__all__ = ["FOLDER", "WORDS_OF_OURS", "guides", "main", "pages", "sentences", "words", "words_of_ours"]

FOLDER = ROOT / "launch" / "docs"
WORDS_OF_OURS = {
    "somebody": "say who: a worker, a user",
    "nobody": "say who: no worker",
    "whoever": "say who",
    "is told": "reported, logged, printed",
    "are told": "reported, logged, printed",
    "gone on with": "resumed",
    "goes on with": "resumes, continues with",
    "any more": "no longer",
    "programme": "curriculum",
    "who acts": "the actor",
    "who learns": "the learner",
    "what is fed": "the input",
    "come to": "reach",
    "comes to": "reaches",
    "came to": "reached",
}
"""What only we say -> what the field says."""
_WHOLE = "<!-- whole: "
_GENERATED = ("commands.md", "configuration.md")


def pages() -> list[Path]:
    """All pages that are written here: not those that show another document whole, nor what is generated."""
    every = sorted(FOLDER.rglob("*.md"))
    return [path for path in every if _WHOLE not in path.read_text("utf-8") and path.name not in _GENERATED]


def guides() -> list[Path]:
    """The pages that a person reads from top to bottom."""
    return [path for path in pages() if path.parent.name not in ("reference", "evidence", "moving")]


def sentences(text: str) -> list[str]:
    """Sentences of a page: of paragraphs, points of lists and cells of tables, without code blocks and headings."""
    text = re.sub(r"^( *)(`{3,}).*?^\1\2`*$", "\n", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "\n", text, flags=re.S)
    text = re.sub(r"^#.*$|^\|[-:| ]+\|$", "\n", text, flags=re.M)
    text = re.sub(r"^\|(.*)\|$", lambda row: re.sub(r"(?<!\\)\|", "\n\n", row[1]) + "\n", text, flags=re.M)
    text = re.sub(r"^ *(?:[*-]|\d+\.) ", "\n", text, flags=re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        flat = re.sub(r"`[^`]*`", "`code`", " ".join(paragraph.split()))
        found += [one for one in re.split(r"(?<=[.!?:])[)*_]* +(?=[A-Z`*_(\"])", flat) if words(one)]
    return found


def words(sentence: str) -> int:
    """How many it has; a piece of code is one, a sign or a number alone none."""
    return len(re.findall(r"[^\s]*[A-Za-z][^\s]*", sentence))


def words_of_ours(text: str) -> list[str]:
    """Which of them its sentences have."""
    flat = "\n".join(sentences(text)).lower()
    return [phrase for phrase in WORDS_OF_OURS if re.search(rf"\b{phrase}\b", flat)]


def main() -> None:
    """A line for each page, and one for all."""
    counts: list[int] = []
    for path in pages():
        mine = [words(one) for one in sentences(path.read_text(encoding="utf-8"))]
        counts += mine
        print(f"{sum(mine):6} words, longest {max(mine):3}: {path.relative_to(ROOT)}")
    running = [count for count in counts if count >= 5]
    print(f"{sum(counts)} words on {len(pages())} pages, {sum(running) / len(running):.1f} a sentence", end=" ")
    print(f"(of 5 words and more), {max(counts)} the longest")


if __name__ == "__main__":
    main()
