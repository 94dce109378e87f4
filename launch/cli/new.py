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
_BATCHED = """\
first, second = NAME.make(4), NAME.make(4)
    (seen, _), (again, _) = first.reset(seed=1), second.reset(seed=1)
    assert first.observation_space("agent").contains(np.asarray(seen["agent"][0]))
    for turn in range(100):
        actions = {"agent": np.full(4, turn % 3 > 0, np.int64)}
        (seen, reward, *_), (again, *_) = first.step(actions), second.step(actions)
        assert reward["agent"].shape == (4,)
        assert (seen["agent"] == again["agent"]).all()"""
_ALONE = """\
corridor = NAME.Corridor()
    corridor.reset()
    told = [corridor.step(1) for _ in range(NAME.CELLS - 1)]
    assert told[-1][1:] == (1.0, True, False)"""
_CHECKS = {
    "gymnasium": ("from gymnasium.utils.env_checker import check_env", "check_env(NAME.make().unwrapped)"),
    "pettingzoo": ("from pettingzoo.test import parallel_api_test", "parallel_api_test(NAME.make(), num_cycles=100)"),
    "jax": ("import numpy as np", _BATCHED),
    "torch": ("import numpy as np", _BATCHED),
    "simulator": ("", _ALONE),
}
"""Kind of a project -> what it imports for its test, and does."""
_OURS = """\
id: NAME:make
  copies: 32                # played at once by each actor"""
_PROGRAMS = """\
id: external
  copies: 4                 # programs that each actor starts
  settings:
    command: python NAME.py {address} {name}
    world:
      id: NAME
      agents:
        - name: agent
          observation: {kind: box, shape: [8], low: 0, high: 1}
          action: {kind: discrete, n: 2}"""
_EVALUATION = """\
evaluation:
  every_steps: 20000        # what the policies earn without exploring: evaluations.jsonl
  episodes: 20
"""


def new_project(name: str, where: Path, kind: str = "gymnasium", model: bool = False) -> list[Path]:
    """Writes the project `name` of a `kind` in `_CHECKS`, of gymnasium perhaps with a `model` of its own, into the new
    folder `where`/`name`; the files.

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
    written, outside = [], kind == "simulator"
    parts = {
        "CHECK_IMPORT\n": f"{_CHECKS[kind][0]}\n".lstrip(),
        "CHECK": _CHECKS[kind][1],
        "ENVIRONMENT": _PROGRAMS if outside else _OURS,
        "EVALUATION\n": "" if outside else _EVALUATION,  # nobody can start those programs twice
        "SEQUENTIAL": str(not outside),
        "  NETWORK\n": _NETWORK if model else "",
        "NAME": name,
    }
    for template, file in (
        ("model.py" if model else f"{kind}.py", f"{name}.py"),
        ("train.yaml", "train.yaml"),
        ("test.py", f"test_{name}.py"),
    ):
        text = (_TEMPLATES / f"{template}.txt").read_text()
        for place, part in parts.items():
            text = text.replace(place, part)
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
@click.option(
    "--from",
    "kind",
    type=click.Choice([*_CHECKS]),
    default="gymnasium",
    show_default=True,
    help="Made with what.",
)
@click.option("--model", is_flag=True, help="One agent that sees an image, and a network of your own that reads it.")
@click.option("--in", "where", default=".", type=click.Path(file_okay=False, path_type=Path), help="Where; default: .")
def new(name: str, kind: str, model: bool, where: Path) -> None:
    """Writes a project NAME that runs as it is: an environment, a configuration, a test.

    It has one agent; from pettingzoo two. From jax and torch all copies are stepped by one call; from simulator the
    environment is a program of its own.

    \b
    rookery new my_env
    rookery new my_team --from pettingzoo
    cd my_env && rookery train train.yaml
    """
    with one_sentence("another --in"):
        if model and kind != "gymnasium":
            raise click.UsageError("a project with --model is from gymnasium")
        for path in new_project(name, where, kind, model):
            click.echo(f"wrote {path}")
    click.echo(f"next: cd {where / name} && rookery train train.yaml")
