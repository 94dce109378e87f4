"""The reference of all commands, made from what `--help` knows: `python -m tests.command_reference` writes it.

In flow: the commands of click. Out flow: launch/docs/reference/commands.md; a test says when it is another.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping

import click

from launch.cli.exec import BECOMES
from launch.cli.main import COMMANDS, command
from tests.tools import ROOT

__all__ = ["PATH", "main", "reference"]

PATH = ROOT / "launch" / "docs" / "reference" / "commands.md"
_HEAD = """# All commands

Made from the commands by `python -m tests.command_reference`. `rookery COMMAND --help` prints the same."""


def reference() -> str:
    """The whole document."""
    parts = [_HEAD]
    for name, found in _commands({name: command(name) for name in COMMANDS}, "rookery"):
        context = click.Context(found, info_name=name, **found.context_settings)
        parts.append(f"## {name}\n\n```text\n{_told(found)}\n```\n\n`{' '.join(_usage(found, context, name))}`")
        rows = [row for parameter in found.get_params(context) for row in _row(parameter, context)]
        if rows:
            parts.append("\n".join(("| option | meaning |", "|---|---|", *rows)))
    return "\n\n".join(parts) + "\n"


def _commands(commands: Mapping[str, click.Command], name: str) -> Iterator[tuple[str, click.Command]]:
    """(its words, command) of each that does something, in the order in which `--help` lists them."""
    for key, found in sorted(commands.items()):
        if isinstance(found, click.Group):
            yield from _commands(found.commands, f"{name} {key}")
        elif not found.hidden:
            yield f"{name} {key}", _becomes(key) or found


def _becomes(name: str) -> click.Command | None:
    """What the program that the command becomes knows of itself."""
    module, _ = BECOMES.get(name, ("", ""))
    found = importlib.import_module(module) if module else None
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{module}.__main__")
    known = vars(found).values() if found else ()
    return next((one for one in known if isinstance(one, click.Command)), None)


def _told(command: click.Command) -> str:
    """Its help; a line of a backspace keeps what follows from being wrapped."""
    lines = inspect.cleandoc(command.help or "").splitlines()
    return "\n".join(line.replace("\b", "") for line in lines if line.strip() != "\b").strip()


def _usage(command: click.Command, context: click.Context, name: str) -> list[str]:
    return [name, *command.collect_usage_pieces(context)]


def _row(parameter: click.Parameter, context: click.Context) -> Iterator[str]:
    """None of an argument, which the line of its usage has, nor of what all have."""
    record = parameter.get_help_record(context)
    if record is not None and "--help" not in parameter.opts:
        option, meaning = (re.sub(r"\s+", " ", text).replace("|", "\\|") for text in record)
        yield f"| `{option}` | {meaning} |"


def main() -> None:
    """Writes the document."""
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
