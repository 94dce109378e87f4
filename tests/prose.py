"""How the pages of the site read: `python -m tests.prose` prints words, mean, longest sentence, and what is too long.

In flow: launch/docs. Out flow: sentences and counts. It needs no more than the standard library, as `make docs` has it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["FOLDER", "WORDS_OF_OURS", "guides", "judged", "main", "pages", "sentences", "words", "words_of_ours"]

FOLDER = Path(__file__).resolve().parents[1] / "launch" / "docs"
LONGEST = 40
"""Words of a sentence."""
MEAN = (8, 20)
PAGE = 1_200
"""Words of a guide; all pages together have at most:"""
TOTAL = 45_000
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
_GENERATED = ("commands.md", "configuration.md", "presets.md")


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


def judged() -> tuple[str, list[str]]:
    """A line on all pages, and what is beyond its bound."""
    counts = {path.relative_to(FOLDER): [*map(words, sentences(path.read_text("utf-8")))] for path in pages()}
    reading = [path.relative_to(FOLDER) for path in guides()]
    running = [size for page in reading for size in counts[page] if size >= 5]  # not the cells of tables
    mean, total = sum(running) / len(running), sum(map(sum, counts.values()))
    found = [f"{page}: a sentence of {size} words" for page in counts for size in counts[page] if size > LONGEST]
    found += [f"{page}: {sum(counts[page])} words" for page in reading if sum(counts[page]) > PAGE]
    found += [] if MEAN[0] <= mean <= MEAN[1] and total <= TOTAL else ["all pages: too many words, or in a sentence"]
    longest = max(map(max, counts.values()))
    return f"{len(counts)} pages of {total:,} words, {mean:.1f} a sentence and {longest} at most", found


def main() -> None:
    """Prints them; the exit code is 1 where something is too long."""
    line, found = judged()
    print(line, *found, sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
