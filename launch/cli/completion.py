"""What a shell offers where a preset or a file is wanted. In flow: what is typed. Out flow: presets, and files."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from launch.config_loader import preset_names, sentence


def presets_and_files(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Presets that begin so; besides, the shell looks for files."""
    named = [CompletionItem(name, help=sentence(name)) for name in preset_names() if name.startswith(typed)]
    return [*named, CompletionItem(typed, type="file")]
