"""Links within the documents lead somewhere: to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.tools import ROOT, require

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def documents() -> list[Path]:
    """What git keeps of them."""
    require("git")
    told = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in told.stdout.split()]


def prose(text: str) -> str:
    return _CODE.sub("", text)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def broken(page: Path) -> list[str]:
    found = []
    for target in _LINK.findall(prose(page.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        to = (page.parent / name).resolve() if name else page
        if re.match(r"[a-z]+:", target) or (to.exists() and not anchor):
            continue
        if not to.is_file() or (to.suffix == ".md" and anchor not in anchors(to.read_text(encoding="utf-8"))):
            found.append(target)
    return found


def test_every_link_within_the_documents_leads_somewhere() -> None:
    assert {page.relative_to(ROOT).as_posix(): found for page in documents() if (found := broken(page))} == {}


@pytest.mark.parametrize("link", ["other.md", "page.md#nowhere", "#nowhere", "other.md#there"])
def test_a_link_that_leads_nowhere_is_found(link: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Here, `now`\n\n[a](#here-now) [b](page.md) [c](https://d.example/#e) [f]({link})\n")
    assert broken(page) == [link]
