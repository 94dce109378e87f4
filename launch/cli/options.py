"""What the words of a command line are taken as, and what is said of those that other libraries have for ours; what a
shell offers where a preset or a file is wanted.

In flow: words. Out flow: values, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import click
from click.shell_completion import CompletionItem

from launch.config_loader import check_word
from launch.presets import preset_names, sentence
from protocol.config.base import known_as
from protocol.config.run import Run
from protocol.errors import ConfigurationError

_OPTIONS = {
    "config": "give the file as first word",
    "cpu": "give --set device=cpu",
    "cuda": "give --set device=cuda",
    "gpu": "give --set device=cuda",
    "log_dir": "give --run-dir",
    "output_dir": "give --run-dir",
    "resume": "give the run's folder as first word",
}
"""Their option -> what to do here, where that is not to set a key."""

own_environment = click.option(
    "--env", metavar="MODULE:FUNCTION", help="Another environment: your own, gymnasium:ID, pettingzoo:MODULE."
)


class Configured(click.Command):
    """A command of which a configuration is told, by --set: options and words that are none lead to what is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as fault:
            remedy = self._remedy(fault.option_name)
            if not remedy:
                raise
            raise ConfigurationError("option_unknown", value=fault.option_name, remedy=remedy) from None
        if ctx.args and not ctx.resilient_parsing:
            check_word(ctx.args[0])
            ctx.fail(f"Got unexpected extra argument ({' '.join(ctx.args)})")
        return rest

    def _remedy(self, option: str) -> str:
        """What to do instead; empty where nobody knows."""
        name = option.lstrip("-").replace("-", "_")
        if name in _OPTIONS:
            return _OPTIONS[name]
        key, how = known_as(name, Run)
        if key in ("environment", "environment.id"):
            key, own = "environment.id", "--env"
        else:
            own = f"--{key}"
        if not key or any(own in one.opts for one in self.params):
            return f"give {own}" if key else how
        value = f"VALUE ({how})" if " " in how else how or "VALUE"
        return f"give --set {key}={value}"


class Count(click.IntRange):
    """A whole number, which may be written as 1e6."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]*)?[eE]\+?[0-9]{1,2}", value):
            number = Decimal(value)
            value = int(number) if number == int(number) else value
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number; write it as 1000000 or 1e6.", param, ctx)
        return super().convert(value, param, ctx)


def presets_and_files(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Presets that begin so; besides, the shell looks for files."""
    named = [CompletionItem(name, help=sentence(name)) for name in preset_names() if name.startswith(typed)]
    return [*named, CompletionItem(typed, type="file")]
