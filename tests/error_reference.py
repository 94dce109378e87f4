"""The reference of all kinds of errors, made from their sentences: `python -m tests.error_reference` writes it.

In flow: SENTENCES and the error classes. Out flow: protocol/errors/README.md; a test says when it is another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from protocol.errors.sentences import SENTENCES
from tests.tools import ROOT

__all__ = ["PATH", "Class", "Raised", "classes", "main", "raised", "reference"]

PATH = ROOT / "protocol" / "errors" / "README.md"
_PRODUCT = ("protocol", "workers", "launch")
_OPENING = """# Errors

Made from [sentences.py](sentences.py) by `python -m tests.error_reference`.

Every error that Rookery raises on purpose has a *kind*, which stays when its sentence is reworded. A command ends with
the sentence and the kind in brackets, a worker writes both into its log, and what one process refuses to another
carries both:

    rookery: unknown configuration key 'policy.learning_rat' (is policy.learning_rate meant?); … [unknown_key]

In Python an error has `kind` and its facts as attributes, such as `key` (of the configuration), `file`, `line`, `peer`,
`policy`, `agent` and `environment`. What stands below in braces are such facts.
"""


class Class(NamedTuple):
    """An error class: where it stands, what it is for, and the exit code that it gives a worker."""

    name: str
    purpose: str
    exit_code: int


class Raised(NamedTuple):
    """A place in the product that makes an error of a kind. `facts`: names of its keyword arguments; `open`: whether
    others may come by `**`."""

    file: Path
    line: int
    name: str
    kind: str
    facts: frozenset[str]
    open: bool


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    return [*_parsed()]


def _parsed() -> Iterator[tuple[Path, ast.Module]]:
    for folder in _PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


@cache
def classes() -> list[Class]:
    """Those that SENTENCES has kinds for."""
    found = []
    for _, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in SENTENCES:
                codes = [
                    ast.literal_eval(one.value)
                    for one in node.body
                    if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "exit_code"
                ]
                purpose = (ast.get_docstring(node) or "").partition("\n\n")[0]
                found.append(Class(node.name, " ".join(purpose.split()), codes[0] if codes else 1))
    return sorted(found)


@cache
def raised() -> list[Raised]:
    """Every place that makes an error of one of those classes from a kind that is written there."""
    found = []
    for path, tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Name | ast.Attribute):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            name = "RookeryError" if name == "cls" and path.parent.name == "errors" else name
            if name in SENTENCES:
                given = [one.arg for one in node.keywords]
                for kind in _kinds(node.args[0]):
                    found.append(Raised(path, node.lineno, name, kind, frozenset(filter(None, given)), None in given))
    return found


def _kinds(argument: ast.expr) -> list[str]:
    """Of a text, or of one of two; empty text for anything else."""
    if isinstance(argument, ast.IfExp):
        return [*_kinds(argument.body), *_kinds(argument.orelse)]
    literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return [argument.value if literal else ""]  # type: ignore[attr-defined]


def reference() -> str:
    """The whole document."""
    parts = [_OPENING]
    for one in classes():
        parts.append(f"\n## {one.name}\n\n{one.purpose} Exit code {one.exit_code}.\n")
        parts.append("| kind | what is wrong | what to do |\n| --- | --- | --- |")
        for kind, sentence in sorted(SENTENCES[one.name].items()):
            wrong, _, remedy = sentence.replace("|", "\\|").partition("; ")
            parts.append(f"| `{kind}` | {wrong} | {remedy} |")
    return "\n".join(parts) + "\n"


def main() -> None:
    """Writes the document."""
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
