"""How Sphinx makes the site of the pages around this folder: `make docs` writes it to build/site, without a network.

A page with `<!-- whole: FILE -->` is, in the site, the whole text of FILE, a document that stays where its readers look
for it. Links between documents of the repository lead to their pages, links to code to a copy of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import protocol
from launch.docs.site.flowchart import drawn

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]
WHOLE = re.compile(r"<!-- whole: (\S+) -->")
LINK = re.compile(r"(?<=\]\()(?![a-z]+://)([^)\s#]+)(#[^)\s]*)?(?=\))")
MERMAID = re.compile(r"^```mermaid\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
THEMED = re.compile(r"^(!\[[^\]]*\]\(\S+-(light|dark)\.png\))$", re.MULTILINE)
LINK_TO_FOLDER = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)\s#]+)\)")

project = "Rookery"
author = "the Rookery contributors"
release = protocol.RELEASE
extensions = ["myst_parser"]
exclude_patterns = ["site"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

html_theme = "furo"
html_title = "Rookery"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def _origins() -> dict[Path, Path]:
    """Document of the repository -> the page that shows it."""
    pages = {path.resolve(): path for path in HERE.rglob("*.md")}
    for path in HERE.rglob("*.md"):
        whole = WHOLE.search(path.read_text(encoding="utf-8"))
        if whole:
            pages[(path.parent / whole[1]).resolve()] = path
    return pages


PAGES = _origins()


def _for_the_site(app: Any, name: str, source: list[str]) -> None:
    """The page's text, or that of the document it stands for, with links that hold in the site."""
    page = HERE / f"{name}.md"
    text, origin = source[0], page
    whole = WHOLE.search(text)
    if whole:
        origin = (page.parent / whole[1]).resolve()
        title = text.partition("\n")[0]
        text = origin.read_text(encoding="utf-8")
        text = text if text.startswith("# ") else f"{title}\n\n{text}"

    def linked(match: re.Match[str]) -> str:
        target = (origin.parent / match[1]).resolve()
        anchor = match[2] or ""
        return os.path.relpath(PAGES.get(target, target), page.parent) + (anchor if target in PAGES else "")

    def unlinked(match: re.Match[str]) -> str:
        return match[1] if (origin.parent / match[2]).is_dir() else match[0]

    text = re.sub(r"^<!-- (?:test-as|no-test|deadline):.*-->\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*```\w+) no-test$", r"\1", text, flags=re.MULTILINE)
    text = THEMED.sub(r"{.only-\2}\n\1", text)
    text = MERMAID.sub(lambda chart: f"```{{raw}} html\n{drawn(chart[1])}\n```", text)
    source[0] = LINK.sub(linked, LINK_TO_FOLDER.sub(unlinked, text))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _for_the_site)
