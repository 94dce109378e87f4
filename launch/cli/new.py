"""`rookery new`: a project that runs as it is, to be changed into one's own.

In flow: a name. Out flow: a folder with an environment, a configuration and a test.
"""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

import click

from protocol.errors import ConfigurationError, one_sentence

_TEMPLATES = Path(__file__).parents[1] / "templates"
_CHECKS = {
    "single": ("from gymnasium.utils.env_checker import check_env", "check_env({name}.make().unwrapped)"),
    "multi": ("from pettingzoo.test import parallel_api_test", "parallel_api_test({name}.make(), num_cycles=100)"),
}
_CHECKS["model"] = _CHECKS["single"]
"""What a project imports for its test, and does."""


def new_project(name: str, where: Path, kind: str = "single") -> list[Path]:
    """Writes the project `name` of `kind` `single`, `multi` or `model` into the new folder `where`/`name`; the files.

    ConfigurationError for a name that Python cannot import, or means something else by, and for a folder that is there.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigurationError("module_name_invalid", value=name)
    if _known(name):
        raise ConfigurationError("module_name_taken", value=name)
    folder = where / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigurationError("project_already_there", file=folder) from None
    imports, check = _CHECKS[kind]
    written = []
    for template, file in ((f"{kind}.py", f"{name}.py"), ("train.yaml", "train.yaml"), ("test.py", f"test_{name}.py")):
        text = (_TEMPLATES / f"{template}.txt").read_text()
        network = _NETWORK if kind == "model" else ""
        text = text.replace("CHECK_IMPORT", imports).replace("CHECK", check.format(name=name))
        text = text.replace("  NETWORK\n", network).replace("NAME", name)
        path = folder / file
        path.write_text(text)
        written.append(path)
    return written


_NETWORK = """\
  network:
    encoder:
      entry: NAME:Reader      # all further keys are its arguments
      width: 64
    hidden: [64]
"""
"""The section of a project's configuration that names its network."""


def _known(name: str) -> bool:
    """Whether Python means something by `name` already."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # there is a module without a specification, as __main__
        return True


@click.command()
@click.argument("name")
@click.option("--multi", is_flag=True, help="Several agents (PettingZoo) instead of one (Gymnasium).")
@click.option("--model", is_flag=True, help="One agent that sees an image, and a network of your own that reads it.")
@click.option("--in", "where", default=".", type=click.Path(file_okay=False, path_type=Path), help="Where; default: .")
def new(name: str, multi: bool, model: bool, where: Path) -> None:
    """Writes a project NAME that runs as it is: an environment, a configuration, a test.

    \b
    rookery new my_env
    cd my_env && rookery train train.yaml
    """
    with one_sentence("another --in"):
        if multi and model:
            raise click.UsageError("a project is --multi or --model, not both")
        for path in new_project(name, where, "multi" if multi else "model" if model else "single"):
            click.echo(f"wrote {path}")
    click.echo(f"next: cd {where / name} && rookery train train.yaml")
