"""What comes with the package: `rookery presets` and `rookery docs`."""

from __future__ import annotations

import webbrowser
from typing import Any

import click

from launch.packages import HOME
from launch.presets import PRESETS, nearest, preset_names, sentence
from protocol.errors import ConfigurationError


class Preset(click.Choice[str]):
    """The name of a preset."""

    def __init__(self) -> None:
        super().__init__(preset_names())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise ConfigurationError("preset_unknown", value=value, hint=nearest(value), choices=[*self.choices])
        return str(value)


@click.command()
@click.argument("name", required=False, type=Preset(), metavar="[NAME]")
def presets(name: str | None) -> None:
    """Lists the ready-made configurations, or prints one.

    \b
    rookery presets
    rookery presets cartpole > mine.yaml
    """
    if name:
        click.echo((PRESETS / f"{name}.yaml").read_text(), nl=False)
        return
    names = preset_names()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:{width}} {sentence(name)}")


@click.command()
def docs() -> None:
    """Opens the documents in a browser, from this machine and without a network."""
    sites = [HOME / place / "rookery_docs" / "index.html" for place in (".", "build/site")]
    home = next((page for page in sites if page.is_file()), None)
    if home is None:
        raise ConfigurationError("documents_not_built", file=HOME)
    click.echo(home.as_uri())
    webbrowser.open(home.as_uri())
